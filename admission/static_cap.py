"""A fixed number of places: the simplest door, and the one to fall back to."""

from admission.port import Lease, Reason, Rejection, Request

BASE_RETRY_S = 2.0  # a call lasts minutes, a place that frees up does so within seconds on average
MAX_RETRY_S = 30.0
MESSAGES: dict[Reason, str] = {
    "draining": "The server is shutting down and takes no new sessions.",
    "engine_stalled": "The engine is not keeping up; no new sessions for now.",
    "engine_down": "The engine is not running.",
}


class StaticCap:
    """Admits while fewer than `max_sessions` leases are out.

    Every lease is counted from `try_admit` to its first `release`, whoever calls how often:
    leases out + places free == max_sessions, always. Closed, it opens again only for the reason it was closed for.
    """

    __slots__ = ("_closed", "_limit", "_out", "_refused_in_a_row")

    def __init__(self, max_sessions: int) -> None:
        if max_sessions < 1:
            raise ValueError(f"max_sessions must be at least 1, not {max_sessions}")
        self._limit: int = max_sessions
        self._out: int = 0  # leases given and not yet released
        self._closed: Reason | None = None  # why nobody enters any more
        self._refused_in_a_row: int = 0  # since the last place was given

    def try_admit(self, now: float, request: Request) -> Lease | Rejection:
        """A place, or why not."""
        if self._closed is not None:
            message = MESSAGES.get(self._closed, "The server takes no new sessions.")
            return Rejection(self._closed, self._retry_after_s(), message)
        if self._out >= self._limit:
            message = f"All {self._limit} sessions are in use; try again later."
            return Rejection("capacity", self._retry_after_s(), message)
        self._out += 1
        self._refused_in_a_row = 0
        return Lease(request.tenant, now)

    def why_not(self, now: float, request: Request) -> Reason | None:
        """What `try_admit` would refuse for now; None: nothing."""
        if self._closed is not None:
            return self._closed
        return "capacity" if self._out >= self._limit else None

    def is_premium(self, request: Request) -> bool:
        """As the request says: no place is reserved here."""
        return request.premium

    def _retry_after_s(self) -> float:
        """Grows with the crowd: doubled for every full house refused since the last admission."""
        doublings = min(self._refused_in_a_row // self._limit, 8)  # bounded: 2**n must not run away
        self._refused_in_a_row += 1
        return min(BASE_RETRY_S * 2.0**doublings, MAX_RETRY_S)

    def release(self, now: float, lease: Lease) -> None:
        """Give the place back. A second release of the same lease changes nothing."""
        if lease.released:
            return
        assert self._out > 0, f"released {lease} of another door"
        lease.released = True
        self._out -= 1

    def close(self, reason: Reason) -> None:
        """Refuse everyone from now on. The first reason stands."""
        if self._closed is None:
            self._closed = reason

    def reopen(self, reason: Reason) -> None:
        """Let people in again, if it was closed for `reason`; closed for another it stays closed."""
        if self._closed == reason:
            self._closed = None

    @property
    def active(self) -> int:
        """Leases out."""
        return self._out

    @property
    def limit(self) -> int:
        """Leases that may be out."""
        return self._limit
