"""Percentiles in fixed memory."""

from math import inf
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from admission.latency_window import Histogram, LatencyWindow

shares = st.lists(st.floats(0, 3) | st.just(inf), min_size=1, max_size=60)


def _filled(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value, missed=value > 1)
    return histogram


@given(shares, st.randoms())
def test_the_order_inside_an_interval_is_irrelevant(values: list[float], random: Random) -> None:
    """Any permutation of the samples gives the same counts."""
    shuffled = list(values)
    random.shuffle(shuffled)
    one, other = _filled(values), _filled(shuffled)
    assert (one.counts, one.missed) == (other.counts, other.missed)


@given(shares, st.sampled_from([0.5, 0.9, 0.99, 0.999]))
def test_a_quantile_is_at_most_a_bucket_above_the_exact_one(values: list[float], q: float) -> None:
    """And never below it."""
    exact = sorted(values)[min(len(values) - 1, int(q * len(values)))]
    found = _filled(values).quantile(q)
    if exact >= 2:
        assert found == inf
    else:
        assert exact - 1e-9 <= found <= exact + 0.02


def test_an_empty_window_has_no_latency() -> None:
    """Zero traffic is neither hot nor stalled."""
    window = LatencyWindow()
    window.turn()
    assert (window.recent.quantile(0.99), window.recent.miss_ratio) == (0.0, 0.0)


def test_only_the_last_intervals_count() -> None:
    """A sum over two intervals forgets the third newest."""
    window = LatencyWindow(intervals=2)
    for share in (0.9, 0.1, 0.1):
        window.add(share, missed=False)
        window.turn()
    assert window.recent.total == 2
    assert window.recent.quantile(0.99) < 0.2


def test_ticks_without_output_are_infinite_not_absent() -> None:
    """A stalled engine makes the percentile infinite."""
    assert _filled([0.1, inf]).quantile(0.99) == inf


@given(st.lists(shares, min_size=1, max_size=6))
def test_the_sliding_sum_is_the_sum_of_its_parts(intervals: list[list[float]]) -> None:
    """However intervals come and go."""
    window = LatencyWindow(intervals=3)
    for values in intervals:
        for value in values:
            window.add(value, missed=value > 1)
        window.turn()
    expected = _filled([value for values in intervals[-3:] for value in values])
    assert window.recent.counts == expected.counts
    assert window.recent.missed == expected.missed
