"""One call with a model that hears for itself: its turns, and which of their audio the model was given."""

import numpy as np

from engine.models.base import SessionSetup
from engine.models.caller import Caller
from engine.models.chat import Detokenizer
from engine.speech.mel import QUIET, StreamingMel
from engine.speech.ports import SPEECH_RATE, Samples
from engine.speech.turn_detector import Phase

_PER_MS = SPEECH_RATE // 1000


class AudioCaller(Caller):
    """Adds a cursor to a `Caller`: audio of the turn before it has been handed out."""

    def __init__(
        self, setup: SessionSetup, vad_state: Samples, detokenizer: Detokenizer, bins: int
    ) -> None:
        super().__init__(setup, vad_state, detokenizer)
        self.opened = False  # a chunk of the turn under way has been made
        self.mel = StreamingMel(bins)  # of the turn under way
        self._bins = bins
        self._given = 0  # position after the newest sample handed out of a turn under way

    def fresh(self) -> Samples:
        """Audio of the turn under way that was not handed out yet; none between turns."""
        with self._lock:
            if self._detector.phase is Phase.SPEAKING:
                return self._hand_out(self._detector.start_ms * _PER_MS)
            return self._none() if self.detects else self._hand_out(self._buffer.start)

    def ended(self) -> Samples:
        """The same for the turn that has just ended."""
        with self._lock:
            turn = self.finished[-1]
            start = turn.start_ms * _PER_MS
            samples: Samples = np.frombuffer(turn.pcm, np.float32)[max(0, self._given - start) :]
            return samples

    def rest(self) -> Samples:
        """The same for a turn that is cut off now, whether or not anybody spoke; none if its end was handed out."""
        with self._lock:
            if self.finished:
                return self._none()
            if self._detector.phase is Phase.SPEAKING:
                return self._hand_out(self._detector.start_ms * _PER_MS)
            return np.concatenate([self._hand_out(self._buffer.start), self._rest])

    def next_turn(self) -> None:
        """Chunks from here on belong to another turn, which may be as loud as this one was."""
        self.opened = False
        self.mel = StreamingMel(self._bins, max(QUIET, self.mel.loudest))

    def _hand_out(self, start: int) -> Samples:
        samples = self._buffer.read(max(start, self._given), self._buffer.end)
        self._given = self._buffer.end
        return samples

    @staticmethod
    def _none() -> Samples:
        return np.zeros(0, np.float32)
