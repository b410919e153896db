"""Why somebody is refused: the bound in the way, and the words for it. Pure."""

from dataclasses import dataclass

from admission.port import Reason, Rejection

MESSAGES: dict[Reason, str] = {
    "capacity": "All sessions that can be kept in time are in use; try again later.",
    "kv": "The memory for sessions is in use; try again later.",
    "quota": "This key has all the sessions it may have at once.",
    "join_rate": "Too many sessions are starting at once; try again in a moment.",
    "probation": "The newest sessions are still being watched; try again in a moment.",
    "draining": "The server is shutting down and takes no new sessions.",
    "engine_stalled": "The engine is not keeping up; no new sessions for now.",
    "engine_down": "The engine is not running.",
}


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The bound that refuses somebody: its name, what would be used of it, and its limit."""

    reason: Reason
    bound: str
    used: float = 0.0
    limit: float = 0.0

    def rejection(self, retry_after_s: float) -> Rejection:
        """The answer to whoever knocks."""
        message = MESSAGES[self.reason]
        return Rejection(
            self.reason, retry_after_s, message, self.bound, float(self.used), float(self.limit)
        )
