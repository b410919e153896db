"""A call with a turn-based model: listen, transcribe (on speculation in the pause), answer."""

import asyncio
from collections import OrderedDict

from engine.answer import Answer
from engine.lane import Lane, Mirror
from engine.listener import Usage
from engine.models.base import SessionSetup, Signal, SpeechStopped
from engine.pool import Pool
from engine.response import Phase, ResponseRequest
from engine.session import Call, Session
from engine.turn_listening import TurnListening, TurnModel

KEPT_TRANSCRIPTS = 64  # an answer waits for at most the newest few; older words are in its messages
MAX_PARALLEL_ANSWERS = 9  # one in the conversation, the others out of band


class TurnSession(TurnListening, Session):
    """Adds turns, transcripts and answers to a session."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._lane = self._new_lane(call.session_id)
        self._answers: dict[str, tuple[Answer, Lane, asyncio.Task[None]]] = {}
        self._queued: dict[str, asyncio.Task[None]] = {}  # out of band, waiting for memory
        self._transcripts: OrderedDict[str, asyncio.Future[str]] = OrderedDict()
        self._speech_stopped_at: float | None = None  # consumed by the answer to it

    def _new_lane(self, lane_id: str) -> Lane:
        return Lane(lane_id, self._parts.stepper, self._parts.limits_of(self.setup))

    # -- turns ---------------------------------------------------------------

    def commit(self, item_id: str) -> bool:
        # Known from now on, so that an answer asked for before the mark is met waits for its words.
        self._transcripts[item_id] = asyncio.get_running_loop().create_future()
        while len(self._transcripts) > KEPT_TRANSCRIPTS:
            _give_up(self._transcripts.popitem(last=False)[1])
        return self._cut_over(item_id) or super().commit(item_id)

    def _apply(self, setup: SessionSetup) -> None:
        if setup.scores_words != self.setup.scores_words:
            self._guess = None
        super()._apply(setup)
        self._lane.context.limits = self._parts.limits_of(setup)

    def _tell(self, signal: Signal) -> None:
        if isinstance(signal, SpeechStopped):
            self._speech_stopped_at = self._parts.clock.now()
        super()._tell(signal)

    def _understood(self, item_id: str, text: str) -> None:
        waiting = self._transcripts.get(item_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(text)

    @property
    def _turn_model(self) -> TurnModel:
        return self._parts.model

    @property
    def _word_pool(self) -> Pool:
        return self._parts.pool

    async def _transcript(self, item_id: str) -> str:
        """The words of a spoken item; empty if it is not known (deleted, or never spoken)."""
        words = self._transcripts.get(item_id)
        return "" if words is None else await asyncio.shield(words)

    # -- answers -------------------------------------------------------------

    def respond(self, request: ResponseRequest) -> None:
        if len(self._answers) + len(self._queued) >= MAX_PARALLEL_ANSWERS:
            self._refuse(request, "too many responses at once")
        elif not request.out_of_band:
            answer = Answer(self._parts, self._lane, self.state, request, self.listener)
            answer.speech_stopped_at, self._speech_stopped_at = self._speech_stopped_at, None
            task = self._spawn(self.id, self._answer(answer, self._lane))
            self._answers[request.response_id] = answer, self._lane, task
        elif not self._parts.settings.out_of_band:
            self._refuse(request, "this server gives no responses outside the conversation")
        else:
            self._queued[request.response_id] = self._spawn(self.id, self._beside(request))

    def _refuse(self, request: ResponseRequest, reason: str) -> None:
        self.listener.response_ended(request.response_id, "failed", Usage(), reason)

    async def _beside(self, request: ResponseRequest) -> None:
        """Answer outside the conversation, once there is memory for it: for so many of all calls' at a time."""
        response_id, parts = request.response_id, self._parts
        async with parts.beside:
            task = self._queued.pop(response_id)
            lane = self._new_lane(f"{self.id}/{response_id}")
            answer = Answer(parts, lane, parts.model.open(self.setup), request, self.listener)
            self._answers[response_id] = answer, lane, task
            await self._answer(answer, lane)

    async def _answer(self, answer: Answer, lane: Lane) -> None:
        try:
            await answer.run(self._transcript)
        finally:
            self._answers.pop(answer.request.response_id, None)
            if lane is not self._lane:
                lane.close()

    def cancel(self, response_id: str) -> None:
        if (waiting := self._queued.pop(response_id, None)) is not None:
            waiting.cancel()
        entry = self._answers.pop(response_id, None)
        if entry is not None:
            answer, lane, task = entry
            answer.cancel()
            task.cancel()
            # Its memory is free before whoever waits for it begins.
            if lane is not self._lane:
                lane.close()

    @property
    def answering(self) -> bool:
        return any(a.phase is not Phase.ENDED for a, _, _ in self._answers.values())

    def beat(self, now: float, period_s: float) -> None:
        super().beat(now, period_s)
        for answer, _, _ in list(self._answers.values()):
            answer.beat(now, period_s, self.ledger)

    @property
    def mirror(self) -> Mirror:
        return self._lane.context

    def owed_since(self, now: float) -> float | None:
        since = [
            super().owed_since(now),
            *(a.owed_since(now) for a, _, _ in self._answers.values()),
        ]
        return min((s for s in since if s is not None), default=None)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        for response_id in [*self._answers, *self._queued]:
            self.cancel(response_id)
        for words in self._transcripts.values():
            _give_up(words)
        if self._guess is not None:
            self._guess[1].cancel()
        self._lane.close()


def _give_up(words: "asyncio.Future[str]") -> None:
    """Nobody will find out what was said: whoever waits goes on with nothing."""
    if not words.done():
        words.set_result("")
