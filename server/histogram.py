"""Histogram counts as plain lists: 0.2 us per observation against 1.2-2.5 us of prometheus_client's own.

Measured on two shared cores, Python 3.11; see docs on the front end's cost per frame.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate


class Histogram:
    """Counts per bucket. A value equal to a bound belongs to that bound's bucket, as `le` says."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        assert list(bounds) == sorted(set(bounds)), bounds
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)  # the last one is +Inf
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """(`le`, cumulative count) for each bound and +Inf."""
        labels = [repr(float(bound)) for bound in self._bounds] + ["+Inf"]
        return list(zip(labels, accumulate(self._counts), strict=True))

    @property
    def total(self) -> float:
        """Sum of all values."""
        return self._total

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self._counts)


def observe_each(histograms: Iterable[Histogram], values: Iterable[float]) -> None:
    """Count one value in each, for as many as there are values. Flat, since it runs for every frame."""
    for histogram, value in zip(histograms, values, strict=False):
        histogram._counts[bisect_left(histogram._bounds, value)] += 1
        histogram._total += value
