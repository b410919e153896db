"""The engine: sessions, the listen loop, the step loop and the beat, under one roof.

push_audio → FrameInbox → Ear (batched `hear`) → turns → Answer → Stepper → Backend.step → Answer → listener
"""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from engine.backend import EngineDead
from engine.bystander import Bystander
from engine.clock import Clock
from engine.context import ContextLimits
from engine.ear import Ear
from engine.executor import Executor
from engine.faults import Fault, Faults
from engine.grid import next_beat
from engine.kv_policy import KvPolicy
from engine.lag import Lag, lag_of
from engine.listener import SessionListener
from engine.models.base import InteractionModel, SessionSetup
from engine.observer import Observer
from engine.pool import Pools
from engine.session import Call, Session
from engine.session_kinds import session_of
from engine.settings import EngineSettings, Parts
from engine.stepping import Stepper
from engine.wall import WallForecast
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
    """Threads; but none for hearing that is too small to be worth a thread switch."""
    return Pools.threads(settings.pool_threads, inline_ear=model.spec.hears_inline)


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
        bystander: Bystander
        | None = None,  # beside a frame-locked model: tells what the caller says
    ) -> None:
        self.model = model
        self.stalled = False  # a step or a hearing has been under way for more than two ticks
        self.alive = False  # True between a successful start and stop or death
        self.is_hung = False  # a thread was left behind that may never end
        self.faults = Faults()
        self._executor = executor
        self._clock = clock
        self._settings = settings
        self._policy = policy
        self._pools = pools or default_pools(model, settings)
        self._own_pools = pools is None
        self._bystander = bystander
        self._observer = observer
        self._sessions: dict[str, Session] = {}
        self._parts: Parts | None = None  # None until started
        self._jobs: asyncio.TaskGroup | None = None  # None unless running
        self._empty_kv: KvSnapshot | None = None
        self._renew()

    def _renew(self) -> None:
        """The parts that belong to one life of the backend."""
        budget = self._settings.prefill_budget
        self._stepper = Stepper(self._executor, self._clock, self._observer, budget, self._failed)
        self._ear = Ear(self.model, self._pools.ear, self._clock, self._failed)
        self._side_ear: Ear | None = None
        if self._bystander is not None:
            hearing = self._bystander.hearing
            self._side_ear = Ear(hearing, self._pools.beside, self._clock, self._failed)
        self._wall = WallForecast()
        self._given_up = asyncio.Event()  # a step or a hearing hangs for good

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
            asyncio.Semaphore(self._settings.out_of_band),
            self._bystander,
        )
        self.alive = True
        return kv

    async def run(self) -> None:
        """Serve until `request_stop`. Raises EngineDead after failing every session."""
        async with asyncio.TaskGroup() as jobs:
            self._jobs = jobs
            loops = [jobs.create_task(self._ear.run()), jobs.create_task(self._beat())]
            if self._side_ear is not None:
                loops.append(jobs.create_task(self._side_ear.run()))
            death = await self._step_until_stop(jobs)
            self.alive = False
            for task in loops:
                task.cancel()
            self._end_all(death)
        self._jobs = None
        if death is not None:
            raise death

    async def _step_until_stop(self, jobs: asyncio.TaskGroup) -> EngineDead | None:
        """What ended the step loop: None if it was asked to stop."""
        stepping = jobs.create_task(self._step())
        hanging = jobs.create_task(self._given_up.wait())
        await asyncio.wait((stepping, hanging), return_when=asyncio.FIRST_COMPLETED)
        hanging.cancel()
        if stepping.done():
            death = stepping.result()
        else:
            stepping.cancel()
            self.is_hung = True
            death = EngineDead(f"nothing has moved for {self._settings.hang_limit_s:g} s")
        if death is not None:
            self.faults.note("death")
            log.critical("the engine died: %s", death)
        return death

    async def _step(self) -> EngineDead | None:
        """The engine's boundary: whatever a step raises, every session is told."""
        try:
            await self._stepper.run()
        except EngineDead as death:
            return death
        except Exception as error:
            log.exception("a step failed")
            return EngineDead(f"{type(error).__name__}: {error}")
        return None

    async def restart(self) -> KvSnapshot:
        """After a death: free what is left, then start again with a new backend. `run` comes next.

        Raises:
            EngineDead: there can be no new one; the message says why.
        """
        try:
            await self._executor.shutdown()
            if self.is_hung and self._own_pools:  # the ear may be what hangs
                self._pools.abandon()
                self._pools = default_pools(self.model, self._settings)
            self._renew()
            self.stalled = False
            return await self.start()
        except Exception as error:
            log.exception("the engine cannot be restarted")
            raise EngineDead(f"{type(error).__name__}: {error}") from error

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
        if self.is_hung:
            self._pools.abandon()
        else:
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
        call = Call(
            session_id, setup, listener, self._parts, self._ear, self._spawn, self._side_ear
        )
        session = session_of(self.model.spec)(call)
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
            self._failed("session", session_id)
            return ""

    def _failed(self, fault: Fault, session_id: str) -> None:
        """Count what went wrong; our own mistake ends the session it happened in."""
        self.faults.note(fault)
        # A lane beside the conversation is named after its session.
        session = self._sessions.get(session_id.partition("/")[0])
        if fault == "session" and session is not None:
            session.fail("server_error", "The server failed while it worked on this session.")

    # -- time ----------------------------------------------------------------

    async def _beat(self) -> None:
        """Once per tick, on an absolute grid: judge what was owed."""
        period = self.model.spec.tick_ms / 1000
        start = self._clock.now()
        while True:
            await self._clock.sleep_until(next_beat(start, period, self._clock.now()))
            now = self._clock.now()
            self._watch(now, period)
            if self._stepper.kv is not None and not self._policy.bounded:
                self._wall.observe(now, self._stepper.kv)
            for session in list(self._sessions.values()):
                try:
                    session.beat(now, period)
                except Exception:
                    log.exception("session %s: its tick failed", session.id)
                    self._failed("session", session.id)

    def _watch(self, now: float, period_s: float) -> None:
        """The watchdog. It runs on the loop, so a thread that hangs cannot silence it."""
        since = [t for t in (self._stepper.stuck_since, self._ear.hearing_since) if t is not None]
        stuck_s = now - min(since, default=now)
        stalled = stuck_s > 2 * period_s
        if stalled != self.stalled:
            log.warning("the engine %s", "stalled" if stalled else "moves again")
            self.stalled = stalled
            if stalled:
                self.faults.note("stall")
        if stuck_s > self._settings.stall_limit_s:
            for session in list(self._sessions.values()):
                if session.is_owed(now):
                    self._sessions.pop(session.id, None)
                    session.fail(
                        "engine_stalled", "The engine stopped answering; please reconnect."
                    )
        beside = self._side_ear.hearing_since if self._side_ear is not None else None
        # What listens beside a model may be slow and no call is late, but not for ever: turns would never end.
        if max(stuck_s, now - (beside or now)) > self._settings.hang_limit_s:
            self._given_up.set()

    def lag(self) -> Lag:
        """How far behind the calls are now. For a scrape, not for a tick."""
        block_size = 1 if self._empty_kv is None else self._empty_kv.block_size
        tick_s = self.model.spec.tick_ms / 1000
        return lag_of(self._sessions.values(), self._clock.now(), tick_s, block_size)

    @property
    def wall_s(self) -> float:
        """Seconds until the KV pool is full, if the policy lets it fill; else infinite."""
        return self._wall.seconds

    def snapshot(self) -> EngineSnapshot:
        """What the engine holds now."""
        return EngineSnapshot(
            len(self._sessions),
            sum(s.answering for s in self._sessions.values()),
            self._stepper.kv or self._empty_kv,
            self._stepper.step_started_at,
        )
