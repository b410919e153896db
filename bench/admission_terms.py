"""Who calls, what breaks, what a door must offer and what a run saw: the words that admission is simulated in."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from admission.port import Lease, Rejection, Request
from admission.resources import Reading

Floats = npt.NDArray[np.float64]

BIN_S = 0.5


class Door(Protocol):
    """What the simulator needs of a controller, the production one included."""

    interval_s: float

    def try_admit(self, now: float, request: Request) -> Lease | Rejection: ...
    def release(self, now: float, lease: Lease) -> None: ...
    def ticks(self, shares: Floats, missed: int) -> None: ...
    def step(self, sessions: int, seconds: float, residents: int, tokens: float) -> None: ...
    def control(self, now: float, reading: Reading) -> None: ...


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who wants a session of this length, from this moment on, and keeps asking."""

    at: float
    lasts_s: float
    tenant: str = "default"


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong with the engine."""

    slow: tuple[tuple[float, float, float], ...] = ()  # (from, to, factor)
    stalls: tuple[tuple[float, float], ...] = ()  # (at, seconds)

    @property
    def any(self) -> bool:
        return bool(self.slow or self.stalls)

    @property
    def over_at(self) -> float:
        """End of the last one."""
        return max([to for _, to, _ in self.slow] + [at + s for at, s in self.stalls], default=0.0)


@dataclass(slots=True)
class Tally:
    """What a run saw."""

    owed: int = 0
    missed: int = 0
    rejected: int = 0
    admitted: int = 0
    peak: int = 0
    served_s: float = 0.0  # seconds of calls whose ticks were in time
    trace: list[tuple[float, int, float]] = field(default_factory=list)  # (t, active, limit)
    bins: list[tuple[int, int]] = field(default_factory=list)  # (owed, missed) by interval of BIN_S
    by_tenant: dict[str, int] = field(default_factory=dict)  # active at the end

    @property
    def miss(self) -> float:
        return self.missed / self.owed if self.owed else 0.0
