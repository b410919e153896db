"""When the KV pool will be full, if nothing holds the calls back: (1 - occupancy) / (sessions · growth of each). Pure.

Growth is measured, as tokens gained per session and second over about the last minute. Intervals in which sessions came
or went say nothing about it and are left out.
"""

from math import exp, inf

from engine.work import KvSnapshot

_MEMORY_S = 60.0


class WallForecast:
    """Fed with the pool's state once per tick."""

    def __init__(self) -> None:
        self._gained = 0.0  # tokens, the older the less they count
        self._lived_s = 0.0  # session-seconds in which they were gained, likewise
        self._before: tuple[float, KvSnapshot] | None = None  # None before the first

    def observe(self, now: float, kv: KvSnapshot) -> None:
        """The pool as it is now."""
        before, self._before = self._before, (now, kv)
        if before is None or before[1].sessions != kv.sessions:
            return
        passed_s = now - before[0]
        fade = exp(-passed_s / _MEMORY_S)
        gained = kv.resident_tokens - before[1].resident_tokens
        self._gained = self._gained * fade + gained
        self._lived_s = self._lived_s * fade + passed_s * kv.sessions

    @property
    def seconds(self) -> float:
        """Until no block is free; infinite while nothing grows."""
        if self._before is None or self._gained <= 0 or self._lived_s <= 0:
            return inf
        kv = self._before[1]
        growth = self._gained / self._lived_s * kv.sessions  # tokens per second, of all
        return kv.free_blocks * kv.block_size / growth if growth > 0 else inf
