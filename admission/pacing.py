"""Who enters how fast. Pure.

A join costs the others something at once: its header is read in their steps. So joins are rationed to a share of the
engine's time. And a fleet whose youngest members have not been seen yet says little about itself: where nothing was
calibrated, only so many sessions may be on probation at a time.
"""

from collections import deque

from admission.obstacle import Obstacle
from admission.port import Lease


class JoinTokens:
    """A token bucket: a join costs one token."""

    def __init__(self, burst: float) -> None:
        self.rate = 0.0  # tokens per second; set by the controller
        self._burst = burst
        self._tokens = burst
        self._at: float | None = None  # of the last refill

    def available(self, now: float) -> float:
        """Tokens now."""
        bound = max(self._burst, self.rate * 0.25)
        if self._at is None:
            self._tokens, self._at = bound, now
        elif now > self._at:
            self._tokens = min(bound, self._tokens + (now - self._at) * self.rate)
            self._at = now
        return self._tokens

    def take(self) -> None:
        """Somebody enters."""
        self._tokens -= 1

    def wait_s(self) -> float:
        """Seconds until there is a token."""
        return max(0.0, 1 - self._tokens) / self.rate if self.rate > 0 else 1.0


class Probation:
    """Counts the sessions younger than `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._young: deque[Lease] = deque()  # by age; with those that left before they came of age
        self._gone = 0  # of those in the deque

    def entered(self, lease: Lease) -> None:
        self._young.append(lease)

    def left(self, lease: Lease) -> None:
        """A lease was released (and is marked so)."""
        if self._young and lease.admitted_at >= self._young[0].admitted_at:
            self._gone += 1

    def count(self, now: float) -> int:
        """Sessions on probation now. O(1) amortised."""
        young = self._young
        while young and young[0].admitted_at <= now - self._seconds:
            self._gone -= young.popleft().released
        return len(young) - self._gone


def pacing_obstacle(
    now: float, joins: JoinTokens, probation: Probation | None, active: int, fewest: float
) -> Obstacle | None:
    """Why nobody else may enter just now. `probation`: None where what a join will cost is known."""
    tokens = joins.available(now)
    if tokens < 1:
        return Obstacle("join_rate", "join_rate", 1, tokens)
    if probation is None:
        return None
    young = probation.count(now)
    allowed = max(fewest, 0.25 * (active - young))
    return Obstacle("probation", "probation", young + 1, allowed) if young + 1 > allowed else None
