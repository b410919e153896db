"""Percentiles of tick latency over the last seconds, in fixed memory. Pure.

Latencies are shares of a tick's own budget, so that sessions of any period count alike. Each interval has a histogram
of its own; sums over the last few are kept up to date as intervals come and go. The order of the samples inside an
interval has no effect. A missed tick that brought nothing is infinite, not absent.
"""

from collections import deque

BUCKETS_PER_BUDGET = 100
_TOP = 2 * BUCKETS_PER_BUDGET  # everything from two budgets up, infinity included, is one bucket


class Histogram:
    """Counts of shares, one percent of the budget wide."""

    __slots__ = ("counts", "finite", "missed", "total", "total_share")

    def __init__(self) -> None:
        self.counts = [0] * (_TOP + 1)
        self.total = 0
        self.missed = 0
        self.finite = 0  # samples with a latency below the last bucket …
        self.total_share = 0.0  # … and their sum

    def add(self, share: float, *, missed: bool) -> None:
        """One tick."""
        bucket = int(share * BUCKETS_PER_BUDGET) if share < 2.0 else _TOP
        self.counts[bucket] += 1
        self.total += 1
        self.missed += missed
        if bucket < _TOP:
            self.finite += 1
            self.total_share += share

    def merge(self, other: "Histogram", sign: int = 1) -> None:
        """Add (or, with -1, take away) another's counts."""
        if not other.total:
            return
        self.counts = [a + sign * b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += sign * other.total
        self.missed += sign * other.missed
        self.finite += sign * other.finite
        self.total_share = self.total_share + sign * other.total_share if self.finite else 0.0

    def quantile(self, q: float) -> float:
        """The share that `q` of the samples do not exceed, to one bucket upwards; 0 without samples."""
        left = self.total - int(q * self.total)  # how many may lie at or above the answer
        for bucket in range(_TOP, -1, -1):
            left -= self.counts[bucket]
            if left <= 0 and self.total:
                return float("inf") if bucket == _TOP else (bucket + 1) / BUCKETS_PER_BUDGET
        return 0.0

    @property
    def mean(self) -> float:
        """Mean share of the ticks that are not off the scale."""
        return self.total_share / self.finite if self.finite else 0.0

    @property
    def miss_ratio(self) -> float:
        return self.missed / self.total if self.total else 0.0


class LatencyWindow:
    """The current interval, and the sliding sum over the last few."""

    def __init__(self, intervals: int = 4) -> None:
        self.current = Histogram()
        self.last = Histogram()  # the newest complete interval
        self.recent = Histogram()  # sum of the last few
        self._parts: deque[Histogram] = deque()
        self._intervals = intervals

    def add(self, share: float, *, missed: bool) -> None:
        """One tick: its latency as a share of its budget (infinite: it brought nothing)."""
        self.current.add(share, missed=missed)

    def turn(self, interval: Histogram | None = None) -> None:
        """An interval is over: the current one, or one that was counted elsewhere."""
        self.last, self.current = interval or self.current, Histogram()
        self._parts.append(self.last)
        self.recent.merge(self.last)
        if len(self._parts) > self._intervals:
            self.recent.merge(self._parts.popleft(), -1)

    def forget(self) -> None:
        """Start afresh: what came before says nothing about what follows."""
        self.last, self.recent = Histogram(), Histogram()
        self._parts.clear()
