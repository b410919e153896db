"""The listen loop: one batch of frames being heard at a time, of all sessions that have one.

Batches form by themselves: whoever became ready while the last batch was heard is in the next. An idle server hears a
frame at once; a busy one hears many in one call.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from engine.clock import Clock
from engine.models.base import Heard
from engine.pool import Pool
from engine.session import Hearer
from engine.stepping import Failed
from engine.work import Frame

log = logging.getLogger("metronome.engine")


class Hears(Protocol):
    """The part of a model that hears; see `InteractionModel`."""

    def hear(self, batch: Sequence[tuple[Any, bytes]]) -> list[Heard]: ...


class Ear:
    """Owns the thread that hears, so that a slow transcription can never make a listening tick late."""

    def __init__(self, model: Hears, pool: Pool, clock: Clock, failed: Failed) -> None:
        self._model = model
        self._pool = pool
        self._clock = clock
        self._failed = failed
        self._ready: dict[str, Hearer] = {}  # insertion order is first come, first heard
        self._wake = asyncio.Event()
        self.hearing_since: float | None = None  # None between batches; the watchdog reads it

    def ready(self, session: Hearer) -> None:
        """This session has something to hear. Idempotent."""
        self._ready[session.id] = session
        self._wake.set()

    async def run(self) -> None:
        """Hear until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            sessions, self._ready = self._ready, {}
            batch = [(s, f) for s in sessions.values() if (f := self._next_frame(s)) is not None]
            if batch:
                await self._hear(batch)

    def _next_frame(self, session: Hearer) -> Frame | None:
        try:
            return session.next_frame()
        except Exception:
            log.exception("session %s: it could not take its next frame", session.id)
            self._failed("session", session.id)
            return None

    async def _hear(self, batch: list[tuple[Hearer, Frame]]) -> None:
        ticks = [(session.state, frame.pcm) for session, frame in batch]
        self.hearing_since = self._clock.now()
        try:
            heard = await self._pool.run(self._model.hear, ticks)
        except Exception:
            log.exception("hearing failed for %d sessions", len(batch))
            self._failed("hearing", "")
            for session, _ in batch:
                session.fail("engine_unavailable", "The speech detector failed.")
            return
        finally:
            self.hearing_since = None
        now = self._clock.now()
        for (session, frame), result in zip(batch, heard, strict=True):
            if session.closed:
                continue
            try:
                session.heard(frame, result, now)
            except Exception:
                log.exception("session %s: what it heard led to an error", session.id)
                self._failed("session", session.id)
