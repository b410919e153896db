"""A microphone that is always on: 20 ms chunks in real time, speech when there is some."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.audio import CHUNK_MS, SILENT_CHUNK, chunks, speech_end_s
from engine.clock import Clock

_CHUNK_S = CHUNK_MS / 1000


@dataclass(frozen=True, slots=True)
class Spoken:
    """When an utterance was said, on the microphone's clock."""

    ended_at: float  # its last voiced chunk was sent
    sent_at: float  # its last chunk was sent


class Microphone:
    """Sends one chunk every 20 ms on an absolute grid; silence while nothing is queued."""

    def __init__(self, clock: Clock, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._clock = clock
        self._send = send
        # Chunks to say; with the last voiced one and the very last, whom to tell.
        self._queue: deque[tuple[bytes, asyncio.Future[float] | None]] = deque()

    async def run(self) -> None:
        """Stream until cancelled. A late chunk does not move the ones after it."""
        origin, k = self._clock.now(), 0
        while True:
            await self._clock.sleep_until(origin + k * _CHUNK_S)
            chunk, waiter = self._queue.popleft() if self._queue else (SILENT_CHUNK, None)
            await self._send(chunk)
            if waiter is not None and not waiter.done():
                waiter.set_result(self._clock.now())
            k += 1

    async def say(self, pcm: bytes) -> Spoken:
        """Say `pcm` (not empty); returns when its last chunk was sent."""
        loop = asyncio.get_running_loop()
        ended, sent = loop.create_future(), loop.create_future()
        pieces = list(chunks(pcm))
        last_voiced = max(0, round(speech_end_s(pcm) / _CHUNK_S) - 1)
        for index, piece in enumerate(pieces[:-1]):
            self._queue.append((piece, ended if index == last_voiced else None))
        self._queue.append((pieces[-1], sent))
        sent_at = await sent
        return Spoken(ended.result() if ended.done() else sent_at, sent_at)
