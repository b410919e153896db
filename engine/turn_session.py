"""A call with a turn-based model: listen, transcribe (on speculation in the pause), answer."""

import asyncio
from collections import OrderedDict

from engine.answer import Answer
from engine.inbox import ClearMark, CommitMark
from engine.lane import Lane, Mirror
from engine.listener import Usage
from engine.models.base import (
    Heard,
    IdleTimeout,
    ScoringModel,
    SessionSetup,
    Signal,
    SpeechPaused,
    SpeechStarted,
    SpeechStopped,
    Utterance,
)
from engine.response import Phase, ResponseRequest
from engine.session import Call, Session
from engine.speech.ports import Transcript

KEPT_TRANSCRIPTS = 64  # an answer waits for at most the newest few; older words are in its messages
MAX_PARALLEL_ANSWERS = 8  # one in the conversation, the others out of band


class TurnSession(Session):
    """Adds turns, transcripts and answers to a session."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._lane = self._new_lane(call.session_id)
        self._answers: dict[str, tuple[Answer, Lane, asyncio.Task[None]]] = {}
        self._transcripts: OrderedDict[str, asyncio.Future[str]] = OrderedDict()
        self._guess: tuple[int, asyncio.Task[Transcript]] | None = None  # (voiced_ms, its words)
        self._turn_over = False  # a SpeechStopped is being told: a commit now means that turn
        self._speech_stopped_at: float | None = None  # consumed by the answer to it

    def _new_lane(self, lane_id: str) -> Lane:
        return Lane(lane_id, self._parts.stepper, self._parts.limits_of(self.setup))

    # -- turns ---------------------------------------------------------------

    def commit(self, item_id: str) -> bool:
        # Known from now on, so that an answer asked for before the mark is met waits for its words.
        self._transcripts[item_id] = asyncio.get_running_loop().create_future()
        while len(self._transcripts) > KEPT_TRANSCRIPTS:
            _give_up(self._transcripts.popitem(last=False)[1])
        if self._turn_over:  # what the detector found, not what has arrived since
            self._turn_over = False
            self._cut(item_id)
            return True
        return super().commit(item_id)

    def _apply(self, setup: SessionSetup) -> None:
        if setup.scores_words != self.setup.scores_words:
            self._guess = None
        super()._apply(setup)
        self._lane.context.limits = self._parts.limits_of(setup)

    def _met(self, mark: CommitMark | ClearMark) -> None:
        if isinstance(mark, CommitMark):
            self._cut(mark.item_id)
        else:
            self._guess = None
            self._parts.model.clear(self.state)

    def _act(self, heard: Heard) -> None:
        for signal in heard.signals:
            if self.closed:
                return
            self._tell(signal)

    def _tell(self, signal: Signal) -> None:
        if isinstance(signal, SpeechStarted):
            self._guess = None
            self.listener.speech_started(signal.at_ms)
        elif isinstance(signal, SpeechPaused):
            self._speculate()
        elif isinstance(signal, SpeechStopped):
            self._speech_stopped_at = self._parts.clock.now()
            self._turn_over = True
            self.listener.speech_stopped(signal.at_ms)
            self._turn_over = False
        elif isinstance(signal, IdleTimeout):
            self.listener.idle_timeout(signal.start_ms, signal.at_ms)

    def _speculate(self) -> None:
        """Transcribe in the pause: if silence lasts, the words are there when the turn is decided."""
        utterance = self._parts.model.utterance(self.state, cut=False)
        if utterance is not None and (self._guess is None or self._guess[0] != utterance.voiced_ms):
            self._guess = utterance.voiced_ms, self._spawn(self.id, self._consider(utterance))

    async def _consider(self, utterance: Utterance) -> Transcript:
        """The words so far, which may also decide how long the pause must be to end the turn."""
        words = await self._words(utterance)
        if self.setup.turn_detection.eagerness is not None and not self.closed:
            await self._parts.pool.run(self._parts.model.weigh, self.state, utterance, words.text)
        return words

    def _cut(self, item_id: str) -> None:
        utterance = self._parts.model.utterance(self.state, cut=True)
        guess, self._guess = self._guess, None
        self._spawn(self.id, self._transcribe(item_id, utterance, guess))

    async def _transcribe(
        self,
        item_id: str,
        utterance: Utterance | None,
        guess: tuple[int, asyncio.Task[Transcript]] | None,
    ) -> None:
        if utterance is None:
            words = Transcript("")
        elif guess is not None and guess[0] == utterance.voiced_ms:
            words = await guess[1]
        else:
            words = await self._words(utterance)
        if self.closed:
            return
        seconds = utterance.duration_s if utterance else 0.0
        self.listener.transcribed(item_id, words.text, seconds, words.tokens)
        waiting = self._transcripts.get(item_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(words.text)

    async def _words(self, utterance: Utterance) -> Transcript:
        model, pool = self._parts.model, self._parts.pool
        if self.setup.scores_words and isinstance(model, ScoringModel):
            return await pool.run(model.scored, utterance)
        return Transcript(await pool.run(model.transcribe, utterance))

    async def _transcript(self, item_id: str) -> str:
        """The words of a spoken item; empty if it is not known (deleted, or never spoken)."""
        words = self._transcripts.get(item_id)
        return "" if words is None else await asyncio.shield(words)

    # -- answers -------------------------------------------------------------

    def respond(self, request: ResponseRequest) -> None:
        if len(self._answers) >= MAX_PARALLEL_ANSWERS:
            self.listener.response_ended(
                request.response_id, "failed", Usage(), "too many responses at once"
            )
            return
        lane, state = self._lane, self.state
        if request.out_of_band:
            lane = self._new_lane(f"{self.id}/{request.response_id}")
            state = self._parts.model.open(self.setup)
        answer = Answer(self._parts, lane, state, request, self.listener)
        answer.speech_stopped_at, self._speech_stopped_at = self._speech_stopped_at, None
        task = self._spawn(self.id, self._answer(answer, lane))
        self._answers[request.response_id] = answer, lane, task

    async def _answer(self, answer: Answer, lane: Lane) -> None:
        try:
            await answer.run(self._transcript)
        finally:
            self._answers.pop(answer.request.response_id, None)
            if lane is not self._lane:
                lane.close()

    def cancel(self, response_id: str) -> None:
        entry = self._answers.pop(response_id, None)
        if entry is not None:
            answer, lane, task = entry
            answer.cancel()
            task.cancel()
            # Cancelled before it began, the task never comes to do this itself.
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
        for response_id in list(self._answers):
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
