"""When the server is ready: once a turn that nobody hears has met its budget. Then the door opens."""

import asyncio
import gc
import logging
from dataclasses import dataclass, field
from math import inf

from admission.port import AdmissionPort
from engine.backend import EngineDead
from engine.clock import Clock
from engine.engine import Engine
from server.health import Health, Phase
from server.lifeline import Lifeline
from server.warmup import Muted, WarmUpFailed, warm_up

_TRIES = 3  # in a row; then callers are let in, ready or not
_AGAIN_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Readiness:
    """Warms up every new engine."""

    engine: Engine
    clock: Clock
    health: Health
    admission: AdmissionPort
    observer: Muted
    lifeline: Lifeline
    voice: str
    budget_s: float  # from the request to the first output
    warm: asyncio.Event = field(default_factory=asyncio.Event)  # set once the first engine was

    async def run(self) -> None:
        """Until cancelled."""
        cold = self.lifeline.cold
        while True:
            await cold.wait()
            cold.clear()
            await self._until_ready()

    @property
    def _is_starting(self) -> bool:
        """True while it is this engine that has to warm up."""
        return self.health.phase is Phase.STARTING and not self.lifeline.is_between_lives

    async def _until_ready(self) -> None:
        """Try until a turn meets its budget; past _TRIES only while nobody else uses the engine."""
        if self._is_starting:
            self.observer.on = False
        tries = 0
        while self._is_starting:
            if tries < _TRIES or self.admission.active == 0:
                tries += 1
                self._judge(await self._took_s())
            if self.health.is_ready or (tries == _TRIES and self._is_starting):
                self._open()
            if tries >= _TRIES:
                await self.clock.sleep_until(self.clock.now() + _AGAIN_S)

    async def _took_s(self) -> float:
        try:
            return await warm_up(self.engine, self.clock, self.voice)
        except WarmUpFailed as error:
            _log.error("the warm-up turn failed: %s", error)
        except EngineDead:
            pass  # said where the engine runs
        return inf

    def _judge(self, took_s: float) -> None:
        said = f"first output after {took_s:.2f} s"
        if not self._is_starting:
            return  # the engine died or the server drains meanwhile
        if took_s <= self.budget_s:
            self.health.become(Phase.READY, said)
        else:
            self.health.note = f"{said}, budget {self.budget_s:.2f} s"

    def _open(self) -> None:
        """From here on what happens is counted."""
        self.observer.on = True
        self.admission.reopen("engine_down")
        if not self.health.is_ready and not self.warm.is_set():
            _log.warning("not ready, but serving: %s", self.health.note)
        self.warm.set()
        _settle_memory()


def _settle_memory() -> None:
    """Take what was loaded out of the garbage collector's sight, and let it look less often.

    torch, vLLM and a model are some hundred thousand objects that never go; every full collection would walk them with
    all calls waiting. What a frame makes is freed by its reference count.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
