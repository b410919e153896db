"""The engine: sessions, the listen loop, the step loop and the beat, under one roof.

push_audio → FrameInbox → Ear (batched `hear`) → turns → Answer → Stepper → Backend.step → Answer → listener
"""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from engine.backend import EngineDead
from engine.clock import Clock
from engine.context import ContextLimits
from engine.ear import Ear
from engine.executor import Executor
from engine.frame_session import FrameSession
from engine.grid import next_beat
from engine.hearing_session import HearingSession
from engine.kv_policy import KvPolicy
from engine.listener import SessionListener
from engine.models.base import InteractionModel, SessionSetup
from engine.observer import Observer
from engine.pool import Pools
from engine.session import Session
from engine.settings import EngineSettings, Parts
from engine.stepping import Stepper
from engine.turn_session import TurnSession
from engine.voiced_frame_session import VoicedFrameSession
from engine.work import KvSnapshot

log = logging.getLogger("metronome.engine")


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """What the engine holds now."""

    sessions: int
    answering: int
    kv: KvSnapshot | None  # None before the first step
    step_started_at: float | None  # None between steps


def default_pools(model: InteractionModel, settings: EngineSettings) -> Pools:
    """Threads, unless the model's own work is too small to be worth a thread switch."""
    return Pools.inline() if model.spec.hears_inline else Pools.threads(settings.pool_threads)


def _kind_of(model: InteractionModel) -> type[FrameSession] | type[TurnSession]:
    if model.spec.decides_turns:
        return VoicedFrameSession if model.spec.writes else FrameSession
    return HearingSession if model.spec.hears_audio else TurnSession


class Engine:
    """Serves every session of one model. Call everything on the event loop."""

    def __init__(  # noqa: PLR0913 - the composition root's parts, all named
        self,
        model: InteractionModel,
        executor: Executor,
        clock: Clock,
        observer: Observer,
        settings: EngineSettings,
        policy: KvPolicy,
        pools: Pools | None = None,  # None: threads, as the model and the settings ask
    ) -> None:
        self.model = model
        self.stalled = False  # a step or a hearing has been under way for more than two ticks
        self.alive = False  # True between a successful start and stop or death
        self._executor = executor
        self._clock = clock
        self._settings = settings
        self._policy = policy
        self._stepper = Stepper(executor, clock, observer, settings.prefill_budget)
        self._pools = pools or default_pools(model, settings)
        self._ear = Ear(model, self._pools.ear, clock)
        self._observer = observer
        self._sessions: dict[str, Session] = {}
        self._parts: Parts | None = None  # None until started
        self._jobs: asyncio.TaskGroup | None = None  # None unless running
        self._empty_kv: KvSnapshot | None = None

    # -- life ----------------------------------------------------------------

    async def start(self) -> KvSnapshot:
        """Build the backend; the empty pool. `run` comes next."""
        kv = self._empty_kv = await self._executor.start()
        limits = ContextLimits(
            self._policy, kv.block_size, self._executor.max_context, self._executor.can_drop
        )
        self._parts = Parts(
            self.model,
            self._stepper,
            self._pools.speech,
            self._clock,
            self._observer,
            self._settings,
            limits,
        )
        self.alive = True
        return kv

    async def run(self) -> None:
        """Serve until `stop`. Raises EngineDead after failing every session."""
        death: EngineDead | None = None
        async with asyncio.TaskGroup() as jobs:
            self._jobs = jobs
            loops = [jobs.create_task(self._ear.run()), jobs.create_task(self._beat())]
            try:
                await self._stepper.run()
            except EngineDead as error:
                log.critical("the engine died: %s", error)
                death = error
            self.alive = False
            for task in loops:
                task.cancel()
            self._end_all(death)
        self._jobs = None
        if death is not None:
            raise death

    def _end_all(self, death: EngineDead | None) -> None:
        code = "engine_unavailable" if death else "server_shutdown"
        message = (
            "The engine failed; please reconnect." if death else "The server is shutting down."
        )
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            session.fail(code, message)

    async def stop(self) -> None:
        """Finish the step in flight, free the backend, join the threads. After `run` has returned, or instead."""
        self.alive = False
        self._stepper.stop()
        await self._executor.shutdown()
        self._pools.shutdown()

    def request_stop(self) -> None:
        """Let `run` return after the step in flight."""
        self._stepper.stop()

    # -- sessions ------------------------------------------------------------

    def open(self, session_id: str, setup: SessionSetup, listener: SessionListener) -> Session:
        """A new call. Raises EngineDead if the engine does not run."""
        if self._parts is None or not self.alive:
            raise EngineDead("the engine is not running")
        assert session_id not in self._sessions, session_id
        session = _kind_of(self.model)(
            session_id, setup, listener, self._parts, self._ear, self._spawn
        )
        self._sessions[session_id] = session
        return session

    def close(self, session_id: str) -> None:
        """End a call: its jobs stop, its context is freed with the next step. Idempotent, never waits."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def _spawn(self, session_id: str, job: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        assert self._jobs is not None, "sessions live only while the engine runs"
        task = self._jobs.create_task(self._guard(session_id, job))
        # Cancelled before it began, the guard never comes to await the job.
        task.add_done_callback(lambda _: job.close())
        return task

    async def _guard(self, session_id: str, job: Coroutine[Any, Any, Any]) -> Any:
        """The engine's boundary: a job that breaks ends its session, never the engine."""
        try:
            return await job
        except Exception:
            log.exception("session %s: a job failed", session_id)
            session = self._sessions.get(session_id)
            if session is not None:
                session.fail("server_error", "The server failed while it worked on this session.")
            return ""

    # -- time ----------------------------------------------------------------

    async def _beat(self) -> None:
        """Once per tick, on an absolute grid: judge what was owed."""
        period = self.model.spec.tick_ms / 1000
        start = self._clock.now()
        while True:
            await self._clock.sleep_until(next_beat(start, period, self._clock.now()))
            now = self._clock.now()
            self._watch(now, period)
            for session in list(self._sessions.values()):
                session.beat(now, period)

    def _watch(self, now: float, period_s: float) -> None:
        """The watchdog. It runs on the loop, so a thread that hangs cannot silence it."""
        begun = [
            t for t in (self._stepper.step_started_at, self._ear.hearing_since) if t is not None
        ]
        stuck_s = now - min(begun, default=now)
        stalled = stuck_s > 2 * period_s
        if stalled != self.stalled:
            log.warning("the engine %s", "stalled" if stalled else "moves again")
            self.stalled = stalled
        if stuck_s > self._settings.stall_limit_s:
            for session in list(self._sessions.values()):
                if session.is_owed(now):
                    self._sessions.pop(session.id, None)
                    session.fail(
                        "engine_stalled", "The engine stopped answering; please reconnect."
                    )

    def snapshot(self) -> EngineSnapshot:
        """What the engine holds now."""
        return EngineSnapshot(
            len(self._sessions),
            sum(s.answering for s in self._sessions.values()),
            self._stepper.kv or self._empty_kv,
            self._stepper.step_started_at,
        )
