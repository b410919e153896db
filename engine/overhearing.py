"""The caller's turns in a call with a frame-locked model, found beside it: the model itself never sees any of this.

    caller audio ─┬─▶ the model, tick by tick
                  └─▶ an inbox of its own ─▶ voice activity ─▶ speech started, stopped
                                             (a thread of its own, all calls in one batch) ─▶ words (the pool)

So nothing here can make a tick late. A call that cannot keep up falls behind by `BACKLOG_S` at most; what it missed is
heard as silence of the same length, because positions count all audio ever pushed.
"""

from collections.abc import Callable

from engine.bystander import NO_TRANSCRIBER, Bystander
from engine.framer import Framer
from engine.inbox import ClearMark, CommitMark, FrameInbox
from engine.models.base import Heard, SessionSetup
from engine.models.caller_turns import CallerTurns
from engine.pool import Pool
from engine.session import Call, EarPort
from engine.turn_listening import TurnListening, TurnModel
from engine.work import Frame

HEARD_MS = 96  # heard at a time: three frames of voice activity, the fewest that begin a turn
BACKLOG_S = 30
_CATCH_UP_S = 1  # silence heard at a time, for audio that was missed


class Overhearing(TurnListening):
    """One call. Everything but `hear` and transcription runs on the event loop."""

    state: CallerTurns

    def __init__(
        self, call: Call, bystander: Bystander, ear: EarPort, failed: Callable[[str, str], None]
    ) -> None:
        """`failed` ends the call that this is beside."""
        self.id = call.session_id
        self.listener = call.listener
        self.closed = False
        self.setup = bystander.setup_of(call.setup)
        self.state = bystander.hearing.open(self.setup)
        self._spawn = call.spawn
        self._pool = call.parts.pool
        self._bystander = bystander
        self._ear = ear
        self._failed = failed
        self._framer = self._new_framer()
        rate = self.setup.input_rate
        self._inbox = FrameInbox(BACKLOG_S * rate * 2, drop_oldest=True)
        self._missed_bytes = 0
        self._new_setup: SessionSetup | None = None  # applied between two frames
        self._hearing = False

    # -- the caller's side -----------------------------------------------------

    def push(self, pcm: bytes, now: float) -> None:
        """Caller audio, as the session takes it."""
        for piece in self._framer.push(pcm):
            self._put(piece, now)

    def configure(self, setup: SessionSetup) -> None:
        """New settings, from the next frame on."""
        self._new_setup = self._bystander.setup_of(setup)
        self._ear.ready(self)

    def commit(self, item_id: str, now: float) -> bool:
        """The turn that is being told, or else all audio pushed so far, is `item_id`. False: too many commits wait."""
        if self._cut_over(item_id):
            return True
        rest = self._framer.flush()
        if rest:
            self._put(rest, now)
        return self._mark(CommitMark(item_id))

    def clear(self) -> None:
        """Forget what was pushed since the last commit."""
        self._framer.flush()
        self._mark(ClearMark())

    def _mark(self, mark: CommitMark | ClearMark) -> bool:
        taken = self._inbox.mark(mark)
        self._ear.ready(self)
        return taken

    def _put(self, pcm: bytes, now: float) -> None:
        gone = self._inbox.put(Frame(0, pcm, now, now))
        self._missed_bytes += sum(len(frame.pcm) for frame in gone)
        self._ear.ready(self)

    def _new_framer(self) -> Framer:
        return Framer(self.setup.input_rate * HEARD_MS // 1000 * 2)

    # -- the model's side ------------------------------------------------------

    def began(self) -> None:
        """The model speaks: where words decide, a backchannel is not told of."""
        self.state.stop_waiting()

    def ended(self) -> None:
        """The model is silent."""
        self.state.await_speech(0)

    # -- the ear's side --------------------------------------------------------

    def next_frame(self) -> Frame | None:
        """Take the next audio to hear, applying settings and marks on the way; None if there is none."""
        if self._hearing or self.closed:
            return None
        if self._new_setup is not None:
            self._apply(self._new_setup)
            self._new_setup = None
        if self._missed_bytes:
            size = min(self._missed_bytes, self.setup.input_rate * 2 * _CATCH_UP_S)
            self._missed_bytes -= size
            self._hearing = True
            return Frame(0, bytes(size), 0.0, 0.0)
        while self._inbox.head() is not None:
            entry = self._inbox.pop()
            if isinstance(entry, Frame):
                self._hearing = True
                return entry
            self._met(entry)
        return None

    def heard(self, frame: Frame, heard: Heard, now: float) -> None:
        """Voice activity has judged the frame."""
        self._hearing = False
        self._act(heard)
        if self._missed_bytes or self._inbox.head() is not None:
            self._ear.ready(self)

    def fail(self, code: str, message: str) -> None:
        """The ear broke: a client left to wait for the end of a turn would be worse off than without a call."""
        self._failed(code, message)

    def _apply(self, setup: SessionSetup) -> None:
        renewed = setup.input_rate != self.setup.input_rate
        if setup.scores_words != self.setup.scores_words:
            self._guess = None
        self.setup = setup
        if renewed:
            self._framer = self._new_framer()
        self._bystander.hearing.configure(self.state, setup)

    # -- turns -----------------------------------------------------------------

    @property
    def _turn_model(self) -> TurnModel:
        return self._bystander.hearing

    @property
    def _word_pool(self) -> Pool:
        return self._pool

    def _speculate(self) -> None:
        if self._bystander.transcribes:
            super()._speculate()

    def _cut(self, item_id: str) -> None:
        if self._bystander.transcribes:
            super()._cut(item_id)
            return
        self._bystander.hearing.utterance(self.state, cut=True)
        self.listener.transcription_failed(item_id, NO_TRANSCRIBER)

    def close(self) -> None:
        """Hear no more. Idempotent."""
        self.closed = True
        self._inbox.clear()
        if self._guess is not None:
            self._guess[1].cancel()


def overhearing(call: Call, failed: Callable[[str, str], None]) -> Overhearing | None:
    """What listens beside this call's model; None where the deployment has nobody."""
    bystander, ear = call.parts.bystander, call.side_ear
    return None if bystander is None or ear is None else Overhearing(call, bystander, ear, failed)
