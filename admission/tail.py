"""How far the slowest ticks lie above an even tick, learned while serving. Pure.

An even tick (every step as long as the mean) takes at most υ·d of its budget; the slowest in a thousand takes
υ·d·(1 + ε). Simulated over a factor of five in load, ε stays the same within a third, on steady machines and on noisy
ones; still, bands of load are counted apart, and the heaviest band ever visited speaks, and today's where it is not far
below and many ticks were seen there. Rare hiccups need minutes to be seen, so counts fade slowly. A new band starts
with what the one before it knew, counted as if it had been seen: few ticks do not overrule many.

What the slowest exceed of what the slowest in a hundred let expect are pauses that load has no part in (the machine did
something else): they are added, not multiplied, and only so much of a budget is set aside for them.
"""

from collections import deque
from collections.abc import Sequence
from math import floor, inf, log
from typing import NamedTuple

from admission.latency_window import BUCKETS_PER_BUDGET, Histogram

_LOWEST, _STEP = 0.02, 1.1
_BUCKETS = 64  # up to ε = 9
_BAND = 1.3  # width of a band of load, as a ratio of υ·d
_FADE = 0.998  # per interval of half a second in which the band was visited: half in three minutes
# Ticks that earlier knowledge counts for at most, some minutes of a full house; where steps vary little, a third of it.
_INHERITED = 150_000.0
_NOISY = 0.15
_SPEAKS = 30_000  # ticks until a lighter band than the heaviest has a say
_GUESSED = 3000.0  # ticks that the guess before any measurement counts for
_HERITAGE = 2.0  # × as many of them beyond the inherited ε as the quantile asks for
_COLLAPSE = 0.5  # share of an interval's ticks missed that is no tail any more
_RARE = 0.001
_LIKELY = 1.6  # ratio of the ε of one in a thousand to that of one in a hundred: 1.4 on steady machines, 2 on noisy
_MAX_PAUSE = 0.25  # share of the budget that is set aside for pauses at most
_TELLS = 15_000  # ticks until a band says how ε falls with load, …
_CHANCE = 0.3  # … and the power that it falls with where nothing but chance is at work
_MARGIN = 0.025
_MARGIN_BY_NOISE, _QUIET = 1.2, 0.05
_FAR = 0.3  # this much beyond the load that was measured the margin for noise counts in full, at it by half
_NO_BAND = -1000
_NEAR = 2  # bands
_LAG = 6  # intervals until a measurement is believed: a fault may come to light meanwhile


class Tail(NamedTuple):
    """What is known of the slowest ticks."""

    slowest: float = 0.25  # ε of one in a thousand
    likely: float = 0.25  # the same, as the slowest in a hundred let expect
    even_share: float = 0.1  # of the budget, where that was measured

    def at(self, even_share: float, falls: float) -> "Tail":
        """What it lets expect at a heavier load, where ε falls with this power of it."""
        less = min(1.0, self.even_share / even_share) ** falls
        return Tail(less * self.slowest, less * self.likely, even_share)

    def as_triple(self) -> tuple[float, float, float]:
        """As it is remembered."""
        return self.slowest, self.likely, self.even_share


class _Band:
    """Counts of ε at one load."""

    def __init__(self, known: Tail, weight: float) -> None:
        self.counts = [0.0] * (_BUCKETS + 1)
        self.counts[_bucket_of(known.slowest)] = _HERITAGE * _RARE * weight
        self.counts[_bucket_of(known.likely / _LIKELY)] += _HERITAGE * 10 * _RARE * weight
        self.even_share = known.even_share
        self.total = weight
        self.seen = 0  # ticks really counted, …
        self.own = [0.0] * (_BUCKETS + 1)  # … fading, too

    def tail(self) -> Tail:
        """What the counts say."""
        slowest, likely = self._exceeded_by(_RARE), _LIKELY * self._exceeded_by(10 * _RARE)
        return Tail(max(slowest, likely), likely, self.even_share)

    @property
    def seen_excess(self) -> float:
        """ε of the slowest in a hundred of the ticks really counted."""
        return _exceeded_by(10 * _RARE * sum(self.own), self.own)

    def _exceeded_by(self, share: float) -> float:
        return _exceeded_by(share * self.total, self.counts)


def _exceeded_by(left: float, counts: Sequence[float]) -> float:
    """The ε that so many of these exceed."""
    for bucket in range(_BUCKETS, 0, -1):
        if counts[bucket] > left:  # within the bucket, as if evenly spread over its logarithm
            return float(_LOWEST * _STEP ** (bucket - left / counts[bucket]))
        left -= counts[bucket]
    return _LOWEST


class TailRatio:
    """ε, by band of load."""

    def __init__(
        self, known: Tail | None = None, heaviest: int = _NO_BAND, weight: float = _GUESSED
    ) -> None:
        self.known = known or Tail()
        self.heaviest = heaviest  # band that speaks
        self.weight = min(weight, _INHERITED)  # ticks that what is known so far rests on
        self._bands: dict[int, _Band] = {heaviest: _Band(self.known, self.weight)}
        self._pending: deque[tuple[Histogram, float, float]] = deque()

    def even_limit(self, target_share: float, noise: float) -> float:
        """The share of the budget that an even tick may take for the slowest in a thousand to reach the target.

        With a margin: it was measured on few of the slowest ticks, and the more steps vary and the lighter the load
        that they were measured at, the less they say.
        """
        tail, falls = self.known, self.falls
        room = target_share - min(_MAX_PAUSE, (tail.slowest - tail.likely) * tail.even_share)
        limit = room / (1 + tail.likely + _MARGIN)
        for _ in range(4 if falls else 0):
            limit = room / (1 + tail.at(limit, falls).likely + _MARGIN)
        distance = min(1.0, max(0.0, limit / tail.even_share - 1) / _FAR)
        by_noise = _MARGIN_BY_NOISE * max(0.0, noise - _QUIET) * (1 + distance) / 2
        return room / (1 + tail.at(limit, falls).likely + _MARGIN + by_noise)

    @property
    def falls(self) -> float:
        """The power of the load that ε falls with, as far as two bands tell: 0 where ticks are slow for their steps
        alone, 1 where pauses add the same at any load.

        Near the top it falls faster than far below, so the heaviest band speaks, and the next that is far enough away.
        """
        telling = sorted(n for n, band in self._bands.items() if band.seen >= _TELLS)
        lighter = [n for n in telling if n <= telling[-1] - _NEAR]
        if not lighter:
            return 0.0
        light, heavy = self._bands[lighter[-1]], self._bands[telling[-1]]
        apart = log(heavy.even_share / light.even_share)
        power = log(light.seen_excess / heavy.seen_excess) / max(apart, 0.2)
        return min(1.0, max(0.0, (power - _CHANCE) / (1 - _CHANCE)))

    def observe(self, ticks: Histogram, even_share: float, noise: float) -> None:
        """An interval's ticks, with υ·d as it was in it and by how much steps vary."""
        if ticks.total and even_share > 0 and ticks.miss_ratio < _COLLAPSE:
            self._pending.append((ticks, even_share, noise))
        if len(self._pending) > _LAG:
            self.learn(*self._pending.popleft())

    def forget_recent(self) -> None:
        """What was measured last was a fault, not load."""
        self._pending.clear()

    def learn(self, ticks: Histogram, even_share: float, noise: float) -> None:
        """Believe a measurement."""
        number = floor(log(even_share) / log(_BAND))
        if number not in self._bands:
            inherited = _INHERITED * min(1.0, max(1 / 3, noise / _NOISY))
            known = self.known.at(even_share, self.falls)
            self._bands[number] = _Band(known, min(self.weight, inherited))
        band = self._bands[number]
        band.counts = [count * _FADE for count in band.counts]
        band.own = [count * _FADE for count in band.own]
        for bucket, count in enumerate(ticks.counts):
            if count:
                share = (bucket + 0.5) / BUCKETS_PER_BUDGET
                bucket_there = _bucket_of(share / even_share - 1)
                band.counts[bucket_there] += count
                band.own[bucket_there] += count
        band.total = _FADE * band.total + ticks.total
        band.seen += ticks.total
        band.even_share += 0.1 * (even_share - band.even_share)
        self.heaviest = max(self.heaviest, number)
        self.weight = min(_INHERITED, self.weight + ticks.total)
        has_a_say = number >= self.heaviest - _NEAR and band.seen >= _SPEAKS
        speaking = (self.heaviest, number) if has_a_say else (self.heaviest,)
        self.known = max(self._bands[n].tail() for n in speaking)


def _bucket_of(excess: float) -> int:
    if excess <= _LOWEST:
        return 0
    if excess == inf:
        return _BUCKETS
    return min(_BUCKETS, 1 + int(log(excess / _LOWEST) / log(_STEP)))
