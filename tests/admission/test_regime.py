"""The engine's speed: when another one is the truth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.regime import Regime

INTERVAL_S = 0.5
FAST, SLOW = 0.72, 0.93  # where the law is a little too slow even for the slow one


def _live(regime: Regime, *spells: tuple[float, float]) -> tuple[float, float] | None:
    """Live through (speed, seconds); what the law has to change by, and when that was known."""
    now_s = 0.0
    for speed, seconds in spells:
        for _ in range(int(seconds / INTERVAL_S)):
            now_s += INTERVAL_S
            if (factor := regime.follow(speed, INTERVAL_S)) is not None:
                return factor, now_s
    return None


def test_a_machine_that_is_faster_in_its_slow_minutes_too_is_believed_soon() -> None:
    """It was slow, fast and slow again: it is as fast as when it is slow, and ten minutes are not needed to tell."""
    spells = [(FAST, 40.0), (SLOW, 40.0)] * 4
    factor, known_s = _live(Regime(), *spells) or (0.0, 0.0)
    assert factor == pytest.approx(SLOW, rel=0.03)
    assert 120 <= known_s <= 200


@pytest.mark.parametrize("spells", [[(FAST, 590.0)], [(FAST, 60.0), (SLOW, 530.0)]])
def test_what_was_seen_once_may_be_luck(spells: list[tuple[float, float]]) -> None:
    """Not believed for ten minutes; then as the slowest that was seen."""
    regime = Regime()
    assert _live(regime, *spells) is None
    last = spells[-1][0]
    factor, _ = _live(regime, (last, 30.0)) or (0.0, 0.0)
    assert factor == pytest.approx(last, rel=0.02)


def test_a_hiccup_is_no_slow_minute() -> None:
    """A second at the usual speed now and then does not make two speeds."""
    assert _live(Regime(), *[(FAST, 20.0), (0.9, 1.0)] * 14) is None


def test_slower_and_faster_are_regimes_of_their_own() -> None:
    """A fault of a minute and a half, and luck of the same length after it: neither has lasted."""
    assert _live(Regime(), (1.6, 90.0), (0.6, 90.0)) is None


@given(st.lists(st.tuples(st.floats(0.3, 3.0), st.floats(1.0, 200.0)), max_size=12))
def test_nobody_is_let_in_for_more_than_the_slowest_spell_allows(
    spells: list[tuple[float, float]],
) -> None:
    """However the speed changes: where faster is believed, no spell that was followed was slower than that by more."""
    regime, slowest = Regime(), 0.0
    for speed, seconds in spells:
        for interval in range(int(seconds / INTERVAL_S)):
            before = regime.lasts_s
            factor = regime.follow(speed, INTERVAL_S)
            if factor is not None:
                assert factor > 1 or factor >= 0.99 * slowest
            if factor is not None or regime.lasts_s < before or not regime.lasts_s:
                slowest = 0.0
            elif interval >= 12 and regime.gain < 1:  # the gain is where the speed is
                slowest = max(slowest, speed)
            assert 0.25 <= regime.gain <= 4
