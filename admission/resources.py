"""What is not latency: KV memory, CPU for ingest, and an engine that does not move. Pure."""

from collections import deque
from dataclasses import dataclass
from math import inf

_GROWTH_MEMORY_S = 30.0


@dataclass(frozen=True, slots=True)
class Reading:
    """What the machine's dials say at the end of an interval."""

    residents: int = 0  # sessions with a context
    resident_tokens: float = 0.0  # in all contexts
    held_blocks: float = 0.0
    step_age_s: float = 0.0  # of the step under way
    cpu_s: float = 0.0  # CPU time of all threads since the last reading


class KvPool:
    """Every session's plateau is promised to it when it enters: no call is ever preempted for another.

    Without a plateau (KV policy `unbounded`) nothing can be promised; then what counts is how long the pool lasts at
    the pace at which it fills.
    """

    def __init__(self, total_blocks: int, reserve: float) -> None:
        self.usable_blocks = int(total_blocks * (1 - reserve))
        self.promised_blocks = 0
        self._growth = 0.0  # blocks per second, measured
        self._held = 0.0  # blocks at the last look …
        self._looked = False  # … if there was one

    def fits(self, blocks: int) -> bool:
        """True if another session's plateau can be promised."""
        return not self.usable_blocks or self.promised_blocks + blocks <= self.usable_blocks

    def promise(self, blocks: int) -> None:
        self.promised_blocks += blocks

    def free(self, blocks: int) -> None:
        self.promised_blocks -= blocks

    def observe(self, held_blocks: float, interval_s: float) -> None:
        """The pool now, `interval_s` after the last look."""
        if self._looked:
            rate = max(0.0, held_blocks - self._held) / interval_s
            self._growth += min(1.0, interval_s / _GROWTH_MEMORY_S) * (rate - self._growth)
        self._held, self._looked = held_blocks, True

    def wall_s(self, pace: float) -> float:
        """Forecast: seconds to a full pool that fills at `pace` blocks per second, or as fast as it was seen to."""
        left, fastest = max(0.0, self.usable_blocks - self._held), max(pace, self._growth)
        return left / fastest if fastest > 1e-9 else inf


class IngestLoad:
    """CPU that hearing, speaking and carrying take, per tick served, against the cores there are."""

    def __init__(self, cores: float, share: float) -> None:
        self._usable = cores * share
        self._looks: deque[tuple[float, float, int]] = deque(maxlen=20)  # (seconds, CPU s, ticks)
        self.per_tick_s = 0.0
        self.used_cores = 0.0
        self.limit = inf  # sessions that the cores carry

    def observe(self, cpu_s: float, ticks: int, interval_s: float) -> None:
        """What an interval took."""
        self._looks.append((interval_s, cpu_s, ticks))
        seconds, cpu, served = (sum(column) for column in zip(*self._looks, strict=True))
        self.used_cores = cpu / seconds
        self.per_tick_s = cpu / served if served else 0.0

    def plan(self, active: float, ticks_per_s: float) -> None:
        """Set the limit for sessions like those active.

        None below half the cores: an idle machine proves nothing about a busy one.
        """
        self.limit = inf
        if self._usable and active and self.used_cores >= 0.5 * self._usable:
            needed = max(self.used_cores, self.per_tick_s * ticks_per_s)
            self.limit = active * self._usable / needed


class StallLatch:
    """Set when ticks are owed and none comes; let go when they come in time again.

    After it lets go, what is measured is not believed for a while: the backlog of the stall says nothing about load.
    """

    def __init__(self, hold_s: float, longest_s: float = 10.0) -> None:
        self._hold_s = hold_s
        self._longest_s = longest_s  # then the slow engine is the engine there is
        self.is_set = False
        self._since = 0.0
        self._believe_at = -inf

    def update(
        self, now: float, owed: int, on_time: int, step_age_s: float, budget_s: float
    ) -> None:
        """An interval is over: ticks judged in it, those in time, and the age of the step under way."""
        if (owed and not on_time) or step_age_s > max(2 * budget_s, 1.0):
            if not self.is_set:
                self.is_set, self._since = True, now
            return
        if self.is_set and (on_time > 0.8 * owed or now - self._since > self._longest_s):
            self.is_set = False
            self._believe_at = now + self._hold_s

    def believes(self, now: float) -> bool:
        """True if what is measured now says something about load."""
        return not self.is_set and now >= self._believe_at
