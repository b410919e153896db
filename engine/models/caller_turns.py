"""What is heard of one caller: recent audio, and the turns that voice activity finds in it."""

import threading
from collections import deque
from collections.abc import Sequence

import numpy as np

from engine.models.base import SessionSetup, Signal, SpeechStopped, Utterance
from engine.speech.denoise import noise_reducer
from engine.speech.ports import FRAME_SAMPLES, SPEECH_RATE, Samples
from engine.speech.resample import Resampler
from engine.speech.turn_detector import Phase, TurnDetector
from engine.speech.utterance import UtteranceBuffer

CAPACITY_S = 120  # caller audio held at most; a turn is ended a little before it would be cut
_MAX_FINISHED = 256  # turns over but not yet taken; the engine takes each before it hears more
_SAMPLES_PER_MS = SPEECH_RATE // 1000


class CallerTurns:
    """One session's state. The lock guards what both the loop and a pool thread touch, briefly.

    Positions are samples at 16 kHz since the call began:

        # [buffer.start, buffer.end) kept · [buffer.end, heard_end) in `rest`, or inside `hear` now
    """

    def __init__(self, setup: SessionSetup, vad_state: Samples) -> None:
        self.setup = setup
        self.vad_state = vad_state  # only `hear` touches it
        self.finished: deque[Utterance] = deque()  # turns that are over, oldest first
        self.lost_turns = 0  # dropped from `finished` at its bound, ever
        self._lock = threading.Lock()
        self._resampler = Resampler(setup.input_rate, SPEECH_RATE)
        self._reducer = noise_reducer(setup.noise_reduction)  # None: what comes is what is heard
        self._detector = TurnDetector(setup.turn_detection, (CAPACITY_S - 10) * 1000)
        self._buffer = UtteranceBuffer(CAPACITY_S * SPEECH_RATE)
        self._rest = np.zeros(0, np.float32)  # heard, but short of a frame
        self._heard_end = 0  # position after the newest sample that `hear` was given

    @property
    def detects(self) -> bool:
        """True if turns are found by voice activity; False for push to talk."""
        return self.setup.turn_detection.enabled

    def configure(self, setup: SessionSetup) -> None:
        """Go on under new settings. Audio kept for push to talk survives the switch."""
        with self._lock:
            if setup.input_rate != self.setup.input_rate:
                self._resampler = Resampler(setup.input_rate, SPEECH_RATE)
            if setup.noise_reduction != self.setup.noise_reduction:
                self._reducer = noise_reducer(setup.noise_reduction)
            self.setup = setup
            self._detector.configure(setup.turn_detection)

    # -- hearing: one pool thread at a time ------------------------------------

    def frames(self, pcm: bytes) -> Samples:
        """float32[n, 512]: the voice activity frames that `pcm` completes; hand them to `judge`."""
        fresh = self._resampler.push(pcm)
        if self._reducer is not None:
            fresh = self._reducer.push(fresh)
        with self._lock:
            self._heard_end += len(fresh)
            stretch = np.concatenate([self._rest, fresh])
            whole = len(stretch) // FRAME_SAMPLES * FRAME_SAMPLES
            self._rest = stretch[whole:]
        frames: Samples = stretch[:whole].reshape(-1, FRAME_SAMPLES)
        return frames

    def judge(self, frames: Samples, probabilities: Sequence[float]) -> tuple[Signal, ...]:
        """Store frames and find turns in them; without turn detection `probabilities` are unused."""
        signals = []
        with self._lock:
            if not self.detects:
                self._buffer.push(frames.reshape(-1))
                self._detector.skip(len(frames))
                return ()
            for frame, probability in zip(frames, probabilities, strict=True):
                self._buffer.push(frame)
                signal = self._detector.push(probability)
                if signal is not None:
                    signals.append(signal)
                    if isinstance(signal, SpeechStopped):
                        self._finish(self._turn(self._detector.end_ms))
            self._buffer.forget(self._detector.keep_from_ms * _SAMPLES_PER_MS)
        return tuple(signals)

    def _finish(self, utterance: Utterance) -> None:
        if len(self.finished) == _MAX_FINISHED:
            self.finished.popleft()
            self.lost_turns += 1
        self.finished.append(utterance)

    # -- turns: the event loop -------------------------------------------------

    def current(self) -> Utterance | None:
        """The oldest turn not taken yet, be it over or under way."""
        with self._lock:
            if self.finished:
                return self.finished[0]
            if self._detector.phase is not Phase.QUIET:
                return self._turn(self._detector.end_ms)
            return None if self.detects else self._kept()

    def cut(self) -> Utterance | None:
        """The same, taken away. With no turn at all it is whatever audio is still kept."""
        with self._lock:
            if self.finished:
                return self.finished.popleft()
            if self._detector.phase is not Phase.QUIET:
                taken: Utterance | None = self._turn(self._detector.now_ms)
            else:
                taken = self._kept()
            self._forget(self._buffer.end + len(self._rest))
            return taken

    def clear(self) -> None:
        """Forget all audio that was ever given to `hear`, judged or not."""
        with self._lock:
            self.finished.clear()
            self._forget(self._heard_end)

    def await_speech(self, playback_ms: int) -> None:
        """Idle time counts from the end of what is still to be played."""
        with self._lock:
            self._detector.arm_idle(self._detector.now_ms + playback_ms)

    def stop_waiting(self) -> None:
        """An answer is under way: no idle timeout."""
        with self._lock:
            self._detector.disarm_idle()

    def settle(self, voiced_ms: int, silence_ms: int) -> None:
        """The turn with that much speech in it ends after that much silence."""
        with self._lock:
            self._detector.settle(voiced_ms, silence_ms)

    def dismiss(self, voiced_ms: int) -> bool:
        """Forget the turn with that much speech if it did not seem to be one; see `TurnDetector.dismiss`."""
        with self._lock:
            return self._detector.dismiss(voiced_ms)

    def _forget(self, before: int) -> None:
        self._buffer.forget(before)
        self._detector.reset(-(-before // _SAMPLES_PER_MS))

    def _turn(self, stop_ms: int) -> Utterance:
        start_ms = self._detector.start_ms
        samples = self._buffer.read(start_ms * _SAMPLES_PER_MS, stop_ms * _SAMPLES_PER_MS)
        return Utterance(samples.tobytes(), start_ms, stop_ms, self._detector.voiced_ms)

    def _kept(self) -> Utterance | None:
        start = self._buffer.start
        samples = self._buffer.read(start, self._buffer.end)
        unframed = self._rest[max(0, start - self._buffer.end) :]
        samples = np.concatenate([samples, unframed])
        if not len(samples):
            return None
        start_ms, stop_ms = (p // _SAMPLES_PER_MS for p in (start, start + len(samples)))
        voiced_ms = 0 if self.detects else stop_ms - start_ms
        return Utterance(samples.tobytes(), start_ms, stop_ms, voiced_ms)
