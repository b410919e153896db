"""Arithmetic of the KV benchmarks: tenths of a call, trends, perplexities. Pure."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.scoring import percentile


@dataclass(frozen=True, slots=True)
class Tenth:
    """One of ten equal stretches of a call's life."""

    age_from: int  # tokens, at its first tick
    age_to: int  # at its last
    p50: float
    p99: float


def tenths(ages: Sequence[int], values: Sequence[float]) -> list[Tenth]:
    """Median and 99th percentile of `values` by tenth of the ticks; `ages` are tokens at each tick.

    Raises:
        ValueError: there are fewer than ten ticks.
    """
    if len(values) < 10:
        raise ValueError(f"{len(values)} ticks do not have ten parts")
    found = []
    for part in range(10):
        start, stop = part * len(values) // 10, (part + 1) * len(values) // 10
        stretch = values[start:stop]
        found.append(
            Tenth(
                ages[start], ages[stop - 1], statistics.median(stretch), percentile(stretch, 0.99)
            )
        )
    return found


def last_over_first(parts: Sequence[Tenth], full_age: int) -> float:
    """Median of the last tenth over that of the first one in which every tick was older than `full_age` tokens.

    NaN if no tenth but the last is that old.
    """
    full = next((part for part in parts[:-1] if part.age_from >= full_age), None)
    return parts[-1].p50 / full.p50 if full is not None else math.nan


@dataclass(frozen=True, slots=True)
class Trend:
    """A straight line through points, by least squares."""

    slope: float  # per unit of x
    error: float  # standard error of the slope, if points scatter independently
    middle: float  # value in the middle

    @property
    def is_flat(self) -> bool:
        """True if the slope is no further from zero than three standard errors."""
        return abs(self.slope) <= 3 * self.error


def trend(xs: Sequence[float], ys: Sequence[float]) -> Trend:
    """The line through the points.

    Raises:
        ValueError: there are fewer than three points, or all have the same x.
    """
    if len(xs) < 3:
        raise ValueError("a trend takes three points")
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    if spread == 0:
        raise ValueError("all points have the same x")
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in zip(xs, ys, strict=True))
    return Trend(slope, math.sqrt(rest / (len(xs) - 2) / spread), mean_y)


def perplexity(logprobs: Sequence[float]) -> float:
    """e to the mean negative log-probability; NaN of nothing."""
    return math.exp(-statistics.fmean(logprobs)) if logprobs else math.nan


def wall_s(free_tokens: int, tokens_per_s: float) -> float:
    """Seconds until a pool with this much room is full, sessions growing this fast together."""
    return free_tokens / tokens_per_s if tokens_per_s > 0 else math.inf
