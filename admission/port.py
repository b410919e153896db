"""The door: who may enter. Time is passed in; nothing here waits."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

Reason = Literal[
    "capacity", "kv", "quota", "join_rate", "probation", "draining", "engine_stalled", "engine_down"
]


@dataclass(frozen=True, slots=True)
class Request:
    """Somebody knocks. Zero means: as the deployment's default session."""

    tenant: str = "default"
    tick_s: float = 0.16  # its period
    budget_s: float = 0.0  # from audio complete to output; 0: the period
    steps_per_tick: float = 0.0  # engine steps that one tick takes
    plateau_tokens: int = 0  # its context at full age
    premium: bool = False  # may take the reserved places


@dataclass(frozen=True, slots=True)
class Rejection:
    """Not now."""

    reason: Reason
    retry_after_s: float
    message: str
    bound: str = ""  # the bound that refused, as `explain` names it
    used: float = 0.0  # of that bound, in its unit, with this session in
    limit: float = 0.0  # of that bound
    position: int = 0  # in the line, of whoever waited or might have; 0: nobody waits for this


@dataclass(eq=False, slots=True)
class Lease:
    """A place taken; released exactly once, by `AdmissionPort.release`."""

    tenant: str
    admitted_at: float
    released: bool = field(default=False)
    request: Request | None = None  # what was let in; None where nothing depends on it


class AdmissionPort(Protocol):
    """Gives out leases."""

    def try_admit(self, now: float, request: Request) -> Lease | Rejection:
        """A place, or why not. O(1)."""
        ...

    def why_not(self, now: float, request: Request) -> Reason | None:
        """What `try_admit` would refuse for now; None: nothing. Counts nothing. O(1)."""
        ...

    def is_premium(self, request: Request) -> bool:
        """True for whoever may take the reserved places."""
        ...

    def release(self, now: float, lease: Lease) -> None:
        """Give the place back. A second release of the same lease changes nothing."""
        ...

    def close(self, reason: Reason) -> None:
        """Refuse everyone from now on (draining, engine down). The first reason stands."""
        ...

    def reopen(self, reason: Reason) -> None:
        """Let people in again, if it was closed for `reason`; closed for another it stays closed."""
        ...

    @property
    def active(self) -> int:
        """Leases out."""
        ...

    @property
    def limit(self) -> int:
        """Leases that may be out."""
        ...
