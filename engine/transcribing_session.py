"""A call with a frame-locked transcriber: turns are found beside it, their words are what it has written by then.

    caller audio ─┬─▶ the model, tick by tick ─▶ words, a little behind the sound ─▶ [ written ]
                  └─▶ voice activity ─▶ turns ─▶ [ owed: item, position in the audio ] ──┴─▶ transcribed

An item is owed the words up to its end. They are there once the model has heard that far and as much more as its words
are behind, and is not in the middle of one. Words between two turns belong to the later.
"""

from collections import deque
from dataclasses import dataclass

from engine.frame_session import FrameSession
from engine.inbox import Refused
from engine.listener import Usage
from engine.models.base import Heard, TickOutput, Utterance
from engine.overhearing import Overhearing
from engine.response import ResponseRequest
from engine.session import Call
from engine.work import Frame

PAUSE_S = 0.3  # without audio from a client whose item is owed words: it may have sent all it has
LONGEST_WORD_MS = 800  # ten tokens; after so long an item has to do with what is written
MAX_WRITTEN = 16_384  # characters that belong to no item yet; the oldest go
_ANSWERS_NOTHING = "This model transcribes; it gives no answers."


@dataclass(frozen=True, slots=True)
class _Owed:
    """An item whose words are to come. Instants are ms of audio that the model has heard."""

    item_id: str
    seconds: float  # of speech in it
    due_ms: int  # its words are there, unless one is being written
    latest_ms: int


class _Turns(Overhearing):
    """Finds turns and leaves their words to the session."""

    session: "TranscribingSession"

    @property
    def tells_turn(self) -> bool:
        """`speech_stopped` is being told: a commit now means that turn."""
        return self._turn_over

    def _speculate(self) -> None:
        """There is nothing to guess: words come by themselves."""

    def _cut(self, item_id: str) -> None:
        utterance = self._bystander.hearing.utterance(self.state, cut=True)
        self.session.owe(item_id, utterance)


class TranscribingSession(FrameSession):
    """Writes down what its caller says."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        bystander, ear = call.parts.bystander, call.side_ear
        self._beside: _Turns | None = None  # None: only commits make items
        if bystander is not None and ear is not None:
            self._beside = _Turns(call, bystander, ear, self.fail)
            self._beside.session = self
        self._written: deque[str] = deque()
        self._characters = 0  # in it
        self._owed: deque[_Owed] = deque()  # bounded by the commits that may wait
        self._committed: dict[
            str, int
        ] = {}  # item id -> ms heard when it was committed by the client
        self._pushed_ms = 0.0  # the same in time, at the rates there were
        self._pushed_at = 0.0  # the newest of it
        self._silence_ms = 0  # fed to the model between commits, on top of that
        self._heard_ms = 0  # by the model
        self._forget_until_ms = 0  # words of cleared audio come up to here

    # -- the caller's side -----------------------------------------------------

    def push_audio(self, pcm: bytes, now: float) -> Refused | None:
        refused = super().push_audio(pcm, now)
        if refused is None:
            self._pushed_at = now
            self._pushed_ms += len(pcm) / 2 / self.setup.input_rate * 1000
        return refused

    def commit(self, item_id: str) -> bool:
        if self._beside is None or not self._beside.tells_turn:
            self._committed[item_id] = int(self._pushed_ms) + self._silence_ms
            self._finish_hearing()
        if self._beside is None:
            self.owe(item_id, None)
            return True
        taken = super().commit(item_id)
        if not taken:
            self._committed.pop(item_id, None)
        return taken

    def _finish_hearing(self) -> None:
        """The caller may send nothing more, and the words of the last sound are still to come: silence brings them."""
        tick_ms = self._parts.model.spec.tick_ms
        silence_ms = self._parts.model.spec.words_behind_ms + LONGEST_WORD_MS + tick_ms
        silence = bytes(2 * (self.setup.input_rate * silence_ms // 1000))
        self._silence_ms += silence_ms
        # Past the turns' ear, which has no use for it.
        super(FrameSession, self).push_audio(silence, self._parts.clock.now())

    def clear_audio(self) -> None:
        super().clear_audio()
        if not self._owed:
            self._take_written()
            heard_ms = int(self._pushed_ms) + self._silence_ms
            self._forget_until_ms = heard_ms + self._parts.model.spec.words_behind_ms

    # -- the model's ticks --------------------------------------------------------

    def _act(self, heard: Heard) -> None:
        """A tick before the model writes anything."""
        self._heard_ms += self._parts.model.spec.tick_ms

    def _deliver(self, output: TickOutput) -> None:
        self._heard_ms += self._parts.model.spec.tick_ms
        if output.text and self._heard_ms > self._forget_until_ms:
            self._written.append(output.text)
            self._characters += len(output.text)
            while self._characters > MAX_WRITTEN:
                self._characters -= len(self._written.popleft())
        self._settle(between_words=output.turn_over)

    def _dropped(self, frame: Frame, now: float) -> None:
        super()._dropped(frame, now)
        self._heard_ms += self._parts.model.spec.tick_ms  # nobody waits for its words

    def beat(self, now: float, period_s: float) -> None:
        super().beat(now, period_s)
        if self._owed and now - self._pushed_at > PAUSE_S and self._waiting is None:
            self._finish_hearing()

    # -- items -------------------------------------------------------------------

    def owe(self, item_id: str, utterance: Utterance | None) -> None:
        """The item is owed the words up to the end of its turn, or up to where the client committed it."""
        end_ms = self._committed.pop(item_id, None)
        if end_ms is None:
            assert utterance is not None, item_id
            end_ms = utterance.stop_ms + self._silence_ms
        due_ms = end_ms + self._parts.model.spec.words_behind_ms
        seconds = utterance.duration_s if utterance else 0.0
        self._owed.append(_Owed(item_id, seconds, due_ms, due_ms + LONGEST_WORD_MS))
        self._settle(between_words=True)

    def _settle(self, *, between_words: bool) -> None:
        while self._owed and not self.closed:
            owed = self._owed[0]
            if self._heard_ms < (owed.due_ms if between_words else owed.latest_ms):
                return
            self._owed.popleft()
            self.listener.transcribed(owed.item_id, self._take_written().strip(), owed.seconds)

    def _take_written(self) -> str:
        text = "".join(self._written)
        self._written.clear()
        self._characters = 0
        return text

    def respond(self, request: ResponseRequest) -> None:
        self.listener.response_ended(request.response_id, "failed", Usage(), _ANSWERS_NOTHING)
