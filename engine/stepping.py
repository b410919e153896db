"""The step loop: one batch in flight, planned anew at every step.

Sessions hand in appends; each step takes those that are due first and fit, beside whatever is still decoding. A
session has at most one append waiting and one under way; a new one waits for the old one's quota (a few tokens), so
cancelling an answer costs nothing but not asking for more.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from engine.clock import Clock
from engine.executor import Executor
from engine.faults import Fault
from engine.observer import Observer, StepStats
from engine.planner import plan
from engine.work import Append, Drop, KvSnapshot, StepResult, TickBatch, TokenChunk

log = logging.getLogger("metronome.engine")

Failed = Callable[[Fault, str], None]  # what went wrong, and in the lane or session of this id


class ChunkSink(Protocol):
    """Who asked for the tokens."""

    def sent(self, append: Append, now: float) -> None:
        """The append leaves for the backend now."""
        ...

    def take(self, chunk: TokenChunk, now: float) -> None:
        """Tokens came; exactly one call per append has `finished` set, unless the session was closed."""
        ...


class Stepper:
    """Owns the executor. Everything here runs on the event loop."""

    def __init__(
        self,
        executor: Executor,
        clock: Clock,
        observer: Observer,
        prefill_budget: int,
        failed: Failed,
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._observer = observer
        self._prefill_budget = prefill_budget
        self._failed = failed
        self._waiting: dict[str, Append] = {}  # at most one per session
        # In order; all of a session's go before its append, one with each step.
        self._drops: dict[str, list[Drop]] = {}
        self._closes: list[str] = []
        self._sinks: dict[str, ChunkSink] = {}
        self._running: set[str] = set()  # sessions whose append the backend has
        self._wake = asyncio.Event()
        self._stopping = False
        self.kv: KvSnapshot | None = None  # the pool after the last step
        self.step_started_at: float | None = None  # None between steps
        # Since when the backend has had work and brought nothing; None while it has none. For the watchdog: a full
        # pool does not make steps slow, it makes them empty.
        self.stuck_since: float | None = None

    def submit(self, append: Append, sink: ChunkSink) -> None:
        """Ask for tokens. Replaces what this session had waiting; what is under way finishes first."""
        self._waiting[append.session_id] = append
        self._sinks[append.session_id] = sink
        self._wake.set()

    def drop(self, drop: Drop) -> None:
        """Forget a range of a session's context, before its next append.

        Several may wait, when answers are begun and cancelled while the session's last append is still under way. Each
        is told in terms of what those before it leave.
        """
        self._drops.setdefault(drop.session_id, []).append(drop)
        self._wake.set()

    def withdraw(self, session_id: str) -> None:
        """Forget what this session has waiting; tokens under way still come."""
        self._waiting.pop(session_id, None)

    def close(self, session_id: str) -> None:
        """Free the session's context before the next step. Idempotent, never waits."""
        self.withdraw(session_id)
        self._drops.pop(session_id, None)
        self._running.discard(session_id)
        if self._sinks.pop(session_id, None) is not None:
            self._closes.append(session_id)
            self._wake.set()

    def is_dropping(self, session_id: str) -> bool:
        return session_id in self._drops

    def stop(self) -> None:
        """Let `run` return after the step in flight."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Step while there is work. Raises EngineDead."""
        while not self._stopping:
            started = self._clock.now()
            batch = self._plan(started)
            if not (batch.appends or batch.drops or batch.closes or self._executor.busy):
                self._wake.clear()
                await self._wake.wait()
                continue
            self.step_started_at, stepped = started, len(self._running)
            if self.stuck_since is None:
                self.stuck_since = started
            result = await self._executor.step(batch)
            finished = self._clock.now()
            self.step_started_at = None
            moved = bool(result.chunks) or result.kv != self.kv
            self._deliver(result, finished)
            if not self._executor.busy:
                self.stuck_since = None
            elif moved:
                self.stuck_since = finished
            self._report(result, stepped, self._clock.now() - started)

    def _plan(self, now: float) -> TickBatch:
        """What may start with the next step."""
        closes, self._closes = tuple(self._closes), []
        drops = self._take_drops()
        blocked = self._running | self._drops.keys() if self._drops else self._running
        ready = [a for session_id, a in self._waiting.items() if session_id not in blocked]
        appends = plan(ready, self._prefill_budget) if ready else []
        for append in appends:
            del self._waiting[append.session_id]
            self._running.add(append.session_id)
            self._sinks[append.session_id].sent(append, now)
        return TickBatch(tuple(appends), drops, closes)

    def _take_drops(self) -> tuple[Drop, ...]:
        """The oldest drop of each session that has one and no append under way."""
        if not self._drops:
            return ()
        due = [session_id for session_id in self._drops if session_id not in self._running]
        drops = tuple(self._drops[session_id].pop(0) for session_id in due)
        for session_id in due:
            if not self._drops[session_id]:
                del self._drops[session_id]
        return drops

    def _deliver(self, result: StepResult, now: float) -> None:
        self.kv = result.kv
        for chunk in result.chunks:
            sink = self._sinks.get(chunk.session_id)
            if sink is None:  # closed while the step ran
                continue
            if chunk.finished:
                self._running.discard(chunk.session_id)
            if chunk.error is not None:
                self._failed("append", chunk.session_id)
            try:
                sink.take(chunk, now)
            except Exception:
                log.exception("session %s: its tokens could not be taken", chunk.session_id)
                self._failed("session", chunk.session_id)

    def _report(self, result: StepResult, sessions: int, wall_s: float) -> None:
        self._observer.step(
            StepStats(
                sessions,
                result.engine_s,
                max(0.0, wall_s - result.engine_s),
                result.shift_s,
                result.kv,
            )
        )


SubmitAppend = Callable[[Append, ChunkSink], None]
