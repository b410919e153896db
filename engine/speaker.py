"""The words of one answer on their way out: as text, or cut into clauses and spoken one after another.

The first clause is cut early; later ones are spoken while the caller still listens to those before.
"""

import asyncio
from collections import deque

from engine.listener import SessionListener
from engine.models.base import TurnModel
from engine.response import ResponseRequest
from engine.settings import Parts
from engine.slo import Obligation
from engine.speech.clauses import ClauseCutter

SPOKEN_CHARS_PER_S = 14.0  # conversational English; only decides when decoding may pause


class Speaker:
    """`say` and what ends it are called on the loop, where `run` waits for the voice."""

    def __init__(
        self,
        parts: Parts,
        model: TurnModel,
        request: ResponseRequest,
        listener: SessionListener,
        owed: Obligation,
    ) -> None:
        self.text = ""  # all words so far
        self._parts = parts
        self._model = model
        self._request = request
        self._listener = listener
        self._owed = owed
        self._cutter = ClauseCutter()
        self._clauses: deque[str] = deque()  # written, not yet spoken; bounded by lead_s
        self._progress = asyncio.Event()  # clauses came, or there will be no more
        self._over = False  # there will be no more words
        self._stopped = False  # and those that wait are not wanted

    @property
    def waiting_s(self) -> float:
        """About how long the clauses take that are not spoken yet."""
        return sum(map(len, self._clauses)) / SPOKEN_CHARS_PER_S

    def say(self, text: str, now: float) -> None:
        """More words."""
        if not text:
            return
        self.text += text
        if self._request.audio:
            self._clauses.extend(self._cutter.feed(text))
            if self._clauses:
                self._progress.set()
        else:
            self._owed.came(now)
            self._listener.response_text(self._request.response_id, text)

    def finish(self) -> None:
        """That was all: `run` returns once it is spoken."""
        self._over = True
        if self._request.audio:
            self._clauses.extend(self._cutter.flush())
        self._progress.set()

    def stop(self) -> None:
        """Nothing more is wanted, not even what was said: `run` returns."""
        self._over = self._stopped = True
        self._clauses.clear()
        self._progress.set()

    async def run(self) -> None:
        """Turn clauses into audio until there are no more."""
        request, pool = self._request, self._parts.pool
        while True:
            await self._progress.wait()
            self._progress.clear()
            while self._clauses:
                clause = self._clauses.popleft()
                pcm = await pool.run(self._model.speak, clause, request.voice, request.speed)
                if self._stopped:  # it failed while the voice worked
                    return
                self._deliver(clause, pcm)
            if self._over:
                return

    def _deliver(self, clause: str, pcm: bytes) -> None:
        """Text first, then the audio that speaks it, in slices."""
        rate, response_id = self._model.spec.output_rate, self._request.response_id
        now = self._parts.clock.now()
        self._listener.response_text(response_id, clause)
        if not pcm:  # a clause of signs alone is not spoken
            return
        self._owed.came(now)
        self._owed.playhead.extend(now, len(pcm) / 2 / rate)
        size = rate * self._parts.settings.slice_ms // 1000 * 2
        for start in range(0, len(pcm), size):
            self._listener.response_audio(response_id, pcm[start : start + size])
