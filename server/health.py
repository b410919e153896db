"""Where the server is in its life, and the answers of the probes.

    STARTING <-> READY -> DRAINING -> (exit)
        \\_________\\________/-> DEAD

READY becomes STARTING again while a new engine takes the place of one that died. DEAD is for good: `/livez` turns 503,
the process ends, and whoever supervises it starts a new one.
"""

import logging
from enum import Enum

_log = logging.getLogger(__name__)


class Phase(Enum):
    """One lifecycle; the value is what the probes say."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.STARTING: frozenset({Phase.READY, Phase.DRAINING, Phase.DEAD}),
    Phase.READY: frozenset({Phase.STARTING, Phase.DRAINING, Phase.DEAD}),
    Phase.DRAINING: frozenset({Phase.DEAD}),
    Phase.DEAD: frozenset(),
}


class Health:
    """The server's phase and a sentence about it."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        # Why it is in this phase, for people.
        self.note = "loading"
        # The engine has not answered for more than two ticks; it may yet.
        self.stalled = False

    def become(self, phase: Phase, note: str = "") -> None:
        """Enter `phase`.

        Raises:
            ValueError: there is no such step; nothing changed.
        """
        if phase not in TRANSITIONS[self.phase]:
            raise ValueError(f"{self.phase.value} -> {phase.value} is not a step of the lifecycle")
        _log.info("%s -> %s%s", self.phase.value, phase.value, f": {note}" if note else "")
        self.phase = phase
        self.note = note

    @property
    def is_live(self) -> bool:
        """False once the engine is lost."""
        return self.phase is not Phase.DEAD

    @property
    def is_ready(self) -> bool:
        """True while new sessions are welcome."""
        return self.phase is Phase.READY and not self.stalled
