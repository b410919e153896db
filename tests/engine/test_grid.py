"""The absolute tick grid."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.grid import TickGrid, next_beat


def test_live_audio_is_due_one_period_after_it_arrived() -> None:
    """Frames that arrive on the beat have one period each."""
    grid = TickGrid(0.08)
    assert [grid.place(10 + k * 0.08) for k in range(3)] == pytest.approx([10.08, 10.16, 10.24])


def test_jitter_does_not_shift_the_grid() -> None:
    """One late frame gets its period from its arrival; the next is due where it always was."""
    grid = TickGrid(0.1)
    grid.place(0.0)
    assert grid.place(0.15) == pytest.approx(0.25)
    assert grid.place(0.2) == pytest.approx(0.3)


def test_a_burst_keeps_its_audio_clock() -> None:
    """Ten ticks appended at once are due a period apart, as they would have been live."""
    grid = TickGrid(0.1)
    assert [grid.place(5.0) for _ in range(10)] == pytest.approx([5.1 + k / 10 for k in range(10)])


def test_a_pause_of_the_caller_moves_the_anchor() -> None:
    """After a silence on the wire the grid starts anew at the next arrival."""
    grid = TickGrid(0.1)
    grid.place(0.0)
    assert grid.place(7.0) == pytest.approx(7.1)
    assert grid.place(7.1) == pytest.approx(7.2)


def test_the_grid_does_not_drift_in_three_hours() -> None:
    """The deadline of tick k is anchor + (k + 1)·period, however large k is."""
    grid = TickGrid(0.08)
    last = 0.0
    for k in range(135_000):
        last = grid.place(k * 0.08)
    assert last == pytest.approx(135_000 * 0.08, abs=1e-6)


@given(st.lists(st.floats(0, 3), min_size=1, max_size=60))
def test_deadlines_never_go_back_and_never_precede_a_period(gaps: list[float]) -> None:
    """Whatever the arrivals: deadlines rise, and each frame has at least one period."""
    grid, now, last = TickGrid(0.16), 0.0, 0.0
    for gap in gaps:
        now += gap
        deadline = grid.place(now)
        assert deadline >= now + 0.16 - 1e-9
        assert deadline >= last - 1e-9
        last = deadline


def test_a_period_must_be_positive() -> None:
    """A grid without a period is refused."""
    with pytest.raises(ValueError, match="tick"):
        TickGrid(0)


def test_a_late_beat_is_skipped_not_shifted() -> None:
    """Beats stay on start + k·period even after a long stall."""
    assert next_beat(1.0, 0.5, 1.0) == pytest.approx(1.5)
    assert next_beat(1.0, 0.5, 3.7) == pytest.approx(4.0)


@given(st.floats(0, 1e6), st.sampled_from([0.02, 0.08, 0.16, 0.2, 1.0]), st.integers(0, 100_000))
def test_a_beat_is_always_later_than_now(start: float, period: float, k: int) -> None:
    """Also when now is a beat: a grid that stood still would spin for ever."""
    now = start + k * period
    assert now < next_beat(start, period, now) <= now + period * 1.001
