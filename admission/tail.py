"""How far the slowest ticks lie above an even tick, learned while serving. Pure.

An even tick (every step as long as the mean) takes at most υ·d of its budget. Real ones take υ·d·(1 + κ·d/θ0): what
disturbs a step is amplified the more, the further d has grown beyond θ0. Each tick served gives a κ; wanted is the one
that only one tick in a thousand exceeds. Rare hiccups need minutes to be seen, so counts fade slowly; and because the
law is only roughly one, bands of load are counted apart, and the heaviest band ever visited speaks. A new band starts
with what the one before it knew, counted as if it had been seen: few ticks do not overrule many.
"""

from collections import deque
from math import inf, log

from admission.latency_window import BUCKETS_PER_BUDGET, Histogram

_LOWEST, _STEP = 0.004, 1.12
_BUCKETS = 64  # up to κ = 5
_BAND = 1.3  # width of a band of load, as a ratio of d/θ0
_BANDS = 24
_FADE = 0.998  # per interval of half a second in which the band was visited: half in three minutes
_INHERITED = 30_000.0  # ticks that the knowledge of the band before counts for
_HERITAGE = 2.0  # × as many of them beyond the inherited κ as the quantile asks for
_COLLAPSE = 0.5  # share of an interval's ticks missed that is no tail any more
_RARE = 0.001
_LAG = 6  # intervals until a measurement is believed: a fault may come to light meanwhile


class _Band:
    """Counts of κ at one load."""

    def __init__(self, kappa: float) -> None:
        self.counts = [0.0] * (_BUCKETS + 1)
        self.counts[_bucket_of(kappa)] = _HERITAGE * _RARE * _INHERITED
        self.total = _INHERITED

    def quantile(self) -> float:
        """The κ that one tick in a thousand exceeds, to one bucket upwards."""
        left = _RARE * self.total
        for bucket in range(_BUCKETS, 0, -1):
            left -= self.counts[bucket]
            if left <= 0:
                return _LOWEST * _STEP**bucket
        return _LOWEST


class TailRatio:
    """κ, by band of load."""

    def __init__(self, value: float = 0.05, heaviest: int = -1) -> None:
        self.value = value
        self.heaviest = heaviest  # band that speaks; -1: none yet
        self._bands: dict[int, _Band] = {}
        self._pending: deque[tuple[Histogram, float, float]] = deque()

    @property
    def careful(self) -> float:
        """With a margin: it was measured on few of the slowest ticks."""
        return 1.2 * self.value

    def observe(self, ticks: Histogram, even_share: float, amplification: float) -> None:
        """An interval's ticks, with υ·d and d/θ0 as they were in it."""
        if ticks.total and even_share > 0 and ticks.miss_ratio < _COLLAPSE:
            self._pending.append((ticks, even_share, max(1.0, amplification)))
        if len(self._pending) > _LAG:
            self.learn(*self._pending.popleft())

    def forget_recent(self) -> None:
        """What was measured last was a fault, not load."""
        self._pending.clear()

    def learn(self, ticks: Histogram, even_share: float, amplification: float) -> None:
        """Believe a measurement."""
        number = min(_BANDS, int(log(amplification) / log(_BAND)))
        if number not in self._bands:
            self._bands[number] = _Band(self.value)
        band = self._bands[number]
        band.counts = [count * _FADE for count in band.counts]
        for bucket, count in enumerate(ticks.counts):
            if count:
                share = (bucket + 0.5) / BUCKETS_PER_BUDGET
                band.counts[_bucket_of((share / even_share - 1) / amplification)] += count
        band.total = _FADE * band.total + ticks.total
        self.heaviest = max(self.heaviest, number)
        if self.heaviest in self._bands:
            self.value = self._bands[self.heaviest].quantile()


def _bucket_of(kappa: float) -> int:
    if kappa <= _LOWEST:
        return 0
    if kappa == inf:
        return _BUCKETS
    return min(_BUCKETS, 1 + int(log(kappa / _LOWEST) / log(_STEP)))
