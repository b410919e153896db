"""The limit that listens to latency alone."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.aimd import AimdLimit
from admission.latency_window import LatencyWindow
from admission.settings import Temper

TEMPER = Temper()
CEILING = 400.0
interval = st.tuples(
    st.lists(st.floats(0, 2.5) | st.just(inf), max_size=30),  # shares
    st.floats(0, 500),  # active
    st.booleans(),  # quiet
)


def _run(intervals: list[tuple[list[float], float, bool]]) -> list[tuple[float, float, float]]:
    """(limit before, limit after, active) of each interval."""
    window, aimd = LatencyWindow(), AimdLimit(TEMPER, 8, CEILING)
    steps = []
    for number, (values, active, quiet) in enumerate(intervals):
        for value in values:
            window.add(value, missed=value > 1)
        window.turn()
        before = aimd.value
        aimd.update(number * TEMPER.interval_s, window, active, quiet=quiet)
        steps.append((before, aimd.value, active))
    return steps


@given(st.lists(interval, max_size=40))
def test_the_limit_stays_within_its_bounds(
    intervals: list[tuple[list[float], float, bool]],
) -> None:
    """Finite, at least the minimum, at most the ceiling."""
    for _, after, _ in _run(intervals):
        assert TEMPER.min_limit <= after <= CEILING


@given(st.lists(interval, max_size=40))
def test_one_decrease_per_congestion_event(
    intervals: list[tuple[list[float], float, bool]],
) -> None:
    """Two decreases are a cooldown apart, and none goes below half the fleet."""
    last = -inf
    for number, (before, after, active) in enumerate(_run(intervals)):
        if after < before:
            now = number * TEMPER.interval_s
            assert now - last > TEMPER.cooldown_s
            assert after >= min(before, 0.5 * active)
            last = now


@given(st.lists(interval, max_size=40))
def test_no_growth_unless_the_limit_was_used_and_nobody_entered(
    intervals: list[tuple[list[float], float, bool]],
) -> None:
    """App-limited or still joining: what is measured says nothing about a larger limit."""
    for (before, after, active), (_, _, quiet) in zip(_run(intervals), intervals, strict=True):
        if after > before:
            assert quiet
            assert active >= 0.5 * before


def _limit_after(values: list[float]) -> float:
    window, aimd = LatencyWindow(), AimdLimit(TEMPER, 100, CEILING)
    for number in range(3):
        for value in values:
            window.add(value, missed=value > 1)
        window.turn()
        aimd.update(10.0 + number, window, 100, quiet=True)
    return aimd.value


@given(
    st.lists(st.floats(0, 2.5), min_size=1, max_size=30),
    st.lists(st.floats(0, 1), min_size=30, max_size=30),
)
def test_larger_latencies_never_give_a_larger_limit(values: list[float], more: list[float]) -> None:
    """Pointwise."""
    worse = [value + extra for value, extra in zip(values, more, strict=False)]
    assert _limit_after(worse) <= _limit_after(values)


def _congested(aimd: AimdLimit, window: LatencyWindow, intervals: int) -> None:
    for number in range(intervals):
        for _ in range(20):
            window.add(1.5, missed=True)
        window.turn()
        aimd.update(number * TEMPER.interval_s, window, 100, quiet=True)


def test_a_decrease_starts_from_the_fleet_not_from_a_limit_far_above_it() -> None:
    """Or many cuts would go unfelt."""
    window, aimd = LatencyWindow(), AimdLimit(TEMPER, 300, CEILING)
    _congested(aimd, window, 3)
    assert aimd.value == pytest.approx(90)


def test_a_hiccup_is_not_congestion() -> None:
    """Late for two intervals and then not: the limit stays."""
    window, aimd = LatencyWindow(), AimdLimit(TEMPER, 300, CEILING)
    for _ in range(3):
        _congested(aimd, window, 2)
        for _ in range(4):
            window.add(0.3, missed=False)
            window.turn()
            aimd.update(50.0, window, 100, quiet=False)
    assert aimd.value == 300


def test_nobody_enters_while_ticks_are_close_to_late() -> None:
    """Before anything is late."""
    window, aimd = LatencyWindow(), AimdLimit(TEMPER, 300, CEILING)
    for share in [0.5] * 95 + [0.95] * 5:
        window.add(share, missed=False)
    window.turn()
    assert aimd.hold(window)
