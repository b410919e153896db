"""A call with a frame-locked model that writes: what it writes is spoken off the beat.

A tick ends when its tokens are there. Its text is cut into clauses, and one task turns them into sound while the next
ticks go on: the voice is never on the path of a tick. A turn is over when its last clause has been spoken.
"""

import asyncio
from collections import deque

from engine.frame_session import FrameSession
from engine.models.base import TickOutput
from engine.session import Call
from engine.speech.clauses import ClauseCutter


class VoicedFrameSession(FrameSession):
    """Adds a voice to a `FrameSession`."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._cutter = ClauseCutter()
        # None: the turn ends here. Bounded by what the model writes in the time a clause takes to speak.
        self._clauses: deque[str | None] = deque()
        self._more = asyncio.Event()
        self._epoch = 0  # bumped by `cancel`: a clause being spoken then is not wanted any more
        self._voicing = call.spawn(call.session_id, self._speak())

    def _deliver(self, output: TickOutput) -> None:
        if output.speaking:
            self._clauses.extend(self._cutter.feed(output.text))
        if output.turn_over or (self._speaking and not output.speaking):
            self._clauses.extend([*self._cutter.flush(), None])
        self._speaking = output.speaking and not output.turn_over
        if self._clauses:
            self._more.set()

    async def _speak(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            while self._clauses:
                clause = self._clauses.popleft()
                if clause is None:
                    self._fell_silent()
                else:
                    await self._say(clause)

    async def _say(self, clause: str) -> None:
        epoch, model = self._epoch, self._parts.model
        pcm = await self._parts.pool.run(model.speak, clause, "", 1.0)
        if self.closed or epoch != self._epoch:
            return
        size = model.spec.output_rate * self._parts.settings.slice_ms // 1000 * 2
        self._spoke(pcm[:size], clause)
        for start in range(size, len(pcm), size):
            self._spoke(pcm[start : start + size], "")

    def cancel(self, response_id: str) -> None:
        """What waits to be spoken is dropped; what the model still writes in this turn is not."""
        super().cancel(response_id)
        self._epoch += 1
        self._cutter = ClauseCutter()
        over = None in self._clauses
        self._clauses.clear()
        if over:
            self._clauses.append(None)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self._voicing.cancel()
