"""How far the slowest ticks lie above an even tick, learned while serving. Pure.

An even tick (every step as long as the mean) takes at most υ·d of its budget. Real ones take υ·d·(1 + κ·d/θ0): what
disturbs a step is amplified the more, the further d has grown beyond θ0. Each tick served gives a κ; wanted is the one
that only one tick in a thousand exceeds. Rare hiccups need minutes to be seen, so counts fade slowly; and because the
law is only roughly one, bands of load are counted apart, and the heaviest load with enough ticks speaks.
"""

from collections import deque
from math import inf, log

from admission.latency_window import BUCKETS_PER_BUDGET, Histogram

_LOWEST, _STEP = 0.004, 1.12
_BUCKETS = 64  # up to κ = 5
_BAND = 1.3  # width of a band of load, as a ratio of d/θ0
_BANDS = 24
_FADE = 0.998  # per interval of half a second in which the band was visited: half in three minutes
_ENOUGH = 2000.0  # ticks until a band may speak
_RARE = 0.001
_LAG = 6  # intervals until a measurement is believed: a fault may come to light meanwhile


class _Band:
    """Counts of κ at one load."""

    def __init__(self) -> None:
        self.counts = [0.0] * (_BUCKETS + 1)
        self.total = 0.0

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

    def __init__(self, value: float = 0.05) -> None:
        self.value = value
        self._bands: dict[int, _Band] = {}
        self._pending: deque[tuple[Histogram, float, float]] = deque()

    @property
    def careful(self) -> float:
        """With a margin: it was measured on few of the slowest ticks."""
        return 1.2 * self.value

    def observe(self, ticks: Histogram, even_share: float, amplification: float) -> None:
        """An interval's ticks, with υ·d and d/θ0 as they were in it."""
        if ticks.total and even_share > 0:
            self._pending.append((ticks, even_share, max(1.0, amplification)))
        if len(self._pending) > _LAG:
            self.learn(*self._pending.popleft())

    def forget_recent(self) -> None:
        """What was measured last was a fault, not load."""
        self._pending.clear()

    def learn(self, ticks: Histogram, even_share: float, amplification: float) -> None:
        """Believe a measurement."""
        number = min(_BANDS, int(log(amplification) / log(_BAND)))
        band = self._bands.setdefault(number, _Band())
        band.counts = [count * _FADE for count in band.counts]
        for bucket, count in enumerate(ticks.counts):
            if count:
                share = (bucket + 0.5) / BUCKETS_PER_BUDGET
                band.counts[_bucket_of((share / even_share - 1) / amplification)] += count
        band.total = _FADE * band.total + ticks.total
        speaking = [n for n, b in self._bands.items() if b.total >= _ENOUGH]
        # What heavier loads showed counts for as long as it takes to get back there.
        if speaking:
            self.value = self._bands[max(speaking)].quantile()


def _bucket_of(kappa: float) -> int:
    if kappa <= _LOWEST:
        return 0
    if kappa == inf:
        return _BUCKETS
    return min(_BUCKETS, 1 + int(log(kappa / _LOWEST) / log(_STEP)))
