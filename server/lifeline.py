"""What becomes of the server when its engine dies.

    exit      the calls are told, the process drains and ends with status 1: whoever supervises it starts a new one
    restart   the calls are told, a new backend is built in this process, it warms up, and the door opens again

Either way nobody is let in meanwhile, `/readyz` answers 503, and every call ends with an error and a close code that
clients reconnect on. An engine that keeps dying is not worth restarting: past MAX_RESTARTS in RESTARTS_WITHIN_S
seconds the process ends as with `exit`.
"""

import asyncio
import logging
from collections import deque

from admission.port import AdmissionPort
from engine.backend import EngineDead
from engine.clock import Clock
from engine.engine import Engine
from server.config_schema import OnDeath
from server.health import Health, Phase

MAX_RESTARTS = 3
RESTARTS_WITHIN_S = 600.0

_log = logging.getLogger(__name__)


class Lifeline:
    """Runs the engine, through as many lives as the policy gives it."""

    def __init__(
        self,
        engine: Engine,
        admission: AdmissionPort,
        health: Health,
        clock: Clock,
        on_death: OnDeath,
    ) -> None:
        self.restarts = 0  # ever
        # A new engine has to warm up: set when one was started.
        self.cold = asyncio.Event()
        self.cold.set()
        self._engine = engine
        self._admission = admission
        self._health = health
        self._clock = clock
        self._on_death = on_death
        # When it was restarted, the newest few.
        self._restarted_at: deque[float] = deque(maxlen=MAX_RESTARTS)
        self._stopping = False

    @property
    def is_between_lives(self) -> bool:
        """True while no engine runs, and until its successor's warm-up begins."""
        return self.cold.is_set() or not self._engine.alive

    def request_stop(self) -> None:
        """Let `run` return after the step in flight, or the restart."""
        self._stopping = True
        self._engine.request_stop()

    async def run(self) -> None:
        """Serve until `request_stop`, or until the engine is dead for good and with it `Health`."""
        while not self._stopping:
            try:
                await self._engine.run()
                return
            except EngineDead as death:
                self._admission.close("engine_down")
                if not await self._revived(str(death)):
                    self._health.become(Phase.DEAD, self._health.note)
                    return

    async def _revived(self, why: str) -> bool:
        """Start a new engine, if there may be one."""
        health, now = self._health, self._clock.now()
        health.note = why
        if self._on_death == "exit" or self._stopping or health.phase is Phase.DRAINING:
            return False
        often = len(self._restarted_at) == MAX_RESTARTS
        if often and now - self._restarted_at[0] < RESTARTS_WITHIN_S:
            health.note = f"{why} (after {MAX_RESTARTS} restarts in a short while)"
            return False
        self._restarted_at.append(now)
        if health.phase is not Phase.STARTING:
            health.become(Phase.STARTING, f"the engine died, a new one is being started: {why}")
        try:
            await self._engine.restart()
        except EngineDead as death:
            health.note = f"{why}; then no new one could be started: {death}"
            return False
        self.restarts += 1
        _log.warning("a new engine runs")
        self.cold.set()
        return True
