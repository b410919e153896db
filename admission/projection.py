"""Today's fleet at full age: how long a step would take, and whether every tick would still be in time. Pure.

Sessions ask for `steps_per_tick` steps every tick, at phases that do not know of each other. If a step takes d seconds,
a session is in a step for the share d·steps/tick of the time, so the mean step holds d·Λ sessions and reads d·K tokens:

    Λ = Σ steps_i/tick_i          steps asked for per second
    K = Σ steps_i/tick_i · kv_i   tokens asked to be read per second
    d = f(d) = θ0 + θ1·dΛ + θ2·dK + θ3·(dK)^CURVE

A tick waits up to a step to be let in and then takes its steps, so it takes at most υ·d of its budget, where
υ = (steps + 1)/budget, if all steps are alike; the slowest in a thousand takes υ·d·(1 + ε), and ε is measured
(tail.py). The fleet fits while f(d*) ≤ d*, where d* is the step at which that tick reaches its target.

After a hiccup of the engine everybody is in every step. The fleet comes back from there only if even then steps are
short enough for the session with the fastest pace: f at d = 1/pace must be below a share of that d. Where cost grows
faster than in proportion this is the smaller bound, and latency does not warn of it. Sessions that leave out late
ticks (engine/staleness.py) come back with next to nothing to spare; others work off what waits with what is spared.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

# Of the term for cost that grows faster than in proportion. A square would be fitted well where there are data and
# exaggerate beyond them.
CURVE = 1.3

Coefficients = tuple[float, ...]  # θ0 … θ3


@dataclass(frozen=True)
class Kind:
    """What the projection needs to know of a session."""

    tick_s: float
    budget_s: float
    steps: float
    plateau_tokens: float

    @cached_property
    def rate(self) -> float:
        """Steps per second."""
        return self.steps / self.tick_s

    @cached_property
    def urgency(self) -> float:
        """Share of its budget that a tick takes per second of step time."""
        return max((self.steps + 1) / self.budget_s, self.rate)


class Demand(NamedTuple):
    """What a fleet asks for at full age. A tuple, because one is made per arrival and departure."""

    rate: float = 0.0  # Λ
    tokens: float = 0.0  # K
    urgency: float = 0.0  # of the most urgent session
    pace: float = 0.0  # steps per second of the fastest one


def demand_of(kinds: Iterable[tuple[Kind, int]]) -> Demand:
    """What so many sessions of each kind ask for."""
    rate = tokens = urgency = pace = 0.0
    for kind, count in kinds:
        if count:
            asked = count * kind.rate
            rate += asked
            tokens += asked * kind.plateau_tokens
            urgency = max(urgency, kind.urgency)
            pace = max(pace, kind.rate)
    return Demand(rate, tokens, urgency, pace)


def load(c: Coefficients, step_s: float, rate: float, tokens: float) -> float:
    """f(d*)/d*: above 1 the fleet does not fit."""
    read = step_s * tokens
    return float(c[0] + c[1] * step_s * rate + c[2] * read + c[3] * read**CURVE) / step_s


def scale_to_full(c: Coefficients, step_s: float, rate: float, tokens: float) -> float:
    """How many times this fleet would fit: the s with load(s·rate, s·tokens) = 1."""
    room = step_s - c[0]
    read = step_s * tokens
    linear, curved = c[1] * step_s * rate + c[2] * read, c[3] * read**CURVE
    if room <= 0:
        return 0.0
    # linear·s + curved·s^CURVE = room is convex and rising in s, so Newton from above comes down to the root.
    times = room / linear
    for _ in range(12):
        over = linear * times + curved * times**CURVE - room
        times -= over / (linear + CURVE * curved * times ** (CURVE - 1))
    return times


def step_now(c: Coefficients, rate: float, tokens: float, longest_s: float) -> float:
    """The fixed point d = f(d), at most `longest_s` (where every session is in every step)."""
    step_s = c[0]
    for _ in range(40):
        read = step_s * tokens
        following = c[0] + c[1] * step_s * rate + c[2] * read + c[3] * read**CURVE
        following = min(following, longest_s)
        if abs(following - step_s) < 1e-4 * step_s:
            break
        step_s = following
    return max(step_s, 1e-9)
