"""Finds the caller's turns in a stream of speech probabilities. Pure: one number per 32 ms in, signals out.

A frame is *voiced* once its probability reaches the threshold, and stays so until it falls under the
exit threshold (hysteresis, as Silero's authors do it). Three voiced frames in a row begin a turn, so
that a click does not; enough unvoiced frames in a row end it:

    QUIET    --3 voiced frames-------------> SPEAKING   SpeechStarted
    SPEAKING --7 unvoiced frames-----------> SPEAKING   SpeechPaused, once per silence
    SPEAKING --enough silence--------------> QUIET      SpeechStopped
    SPEAKING --longest turn reached--------> QUIET      SpeechStopped; what follows is the next turn
    QUIET    --nobody spoke since arm_idle-> QUIET      IdleTimeout, once per arm_idle

How much silence is enough is a setting; or, where the session's eagerness says that the words decide, what `settle`
was told in the pause, and the longest that may be until then. In such a session a caller who says "mm-hm" while the
assistant speaks need not interrupt it:

    QUIET    --3 voiced frames, an answer is being heard--> DOUBTFUL  nothing is told yet
    DOUBTFUL --640 ms of speech, or `settle`--------------> SPEAKING  SpeechStarted
    DOUBTFUL --7 unvoiced frames--------------------------> DOUBTFUL  SpeechPaused, for the words
    DOUBTFUL --`dismiss`, or the longest silence----------> QUIET     it was nothing

Every SpeechStarted is followed by exactly one SpeechStopped, unless the owner says to forget the turn
(`reset`, or turn detection switched off). Positions count all audio ever pushed.
"""

import enum

from engine.models.base import (
    IdleTimeout,
    Signal,
    SpeechPaused,
    SpeechStarted,
    SpeechStopped,
    TurnDetection,
)
from engine.speech.end_of_turn import longest_silence_ms
from engine.speech.ports import FRAME_MS

TAIL_MS = 200  # silence kept after the last voiced frame; a transcriber cuts off words without it
_START_FRAMES = 3
_PAUSE_FRAMES = 7  # 224 ms: covers the tail, so the turn's audio is complete when the pause is told
_HYSTERESIS = 0.15
_BACKCHANNEL_MS = 640  # of speech: what "okay" and "right" take, counted by Silero
_LAST_WORDS_MS = 1000  # what is said while no more of an answer than this is left may answer it


class Phase(enum.Enum):
    """Whether a turn is under way."""

    QUIET = enum.auto()
    DOUBTFUL = enum.auto()
    SPEAKING = enum.auto()


class TurnDetector:
    """The turns of one session."""

    def __init__(self, settings: TurnDetection, max_turn_ms: int = 110_000) -> None:
        self.phase = Phase.QUIET
        self.start_ms = 0  # where the turn under way begins, prefix padding included
        self.voiced_ms = 0  # how much of it is voiced
        self._settings = settings
        self._max_turn_ms = max_turn_ms
        self._now_ms = 0  # end of the newest frame
        self._voiced_end_ms = 0  # end of the newest voiced frame
        self._floor_ms = 0  # audio before this belongs to an earlier turn, or was forgotten
        self._voiced = False  # the newest frame was
        self._run = 0  # frames in a row that are voiced (QUIET) or unvoiced (SPEAKING)
        self._settled_ms: int | None = (
            None  # silence that ends the turn as it is now; None: unknown
        )
        self._idle_from_ms: int | None = None  # nobody has spoken since here; None: not waiting
        self._answering = False  # an answer is being made
        self._heard_until_ms = 0  # where the playback of the newest answer ends

    @property
    def now_ms(self) -> int:
        """The end of the newest frame."""
        return self._now_ms

    @property
    def end_ms(self) -> int:
        """Where the turn under way would end if nothing more were said: the last voiced frame and a tail."""
        return min(self._voiced_end_ms + TAIL_MS, self._now_ms)

    @property
    def keep_from_ms(self) -> int:
        """Audio from here on may still become part of a turn."""
        if self.phase is not Phase.QUIET:
            return self.start_ms
        run_ms = self._run * FRAME_MS
        return max(self._floor_ms, self._now_ms - run_ms - self._settings.prefix_padding_ms)

    def configure(self, settings: TurnDetection) -> None:
        """Judge the next frame by `settings`; switching detection off forgets the turn under way."""
        self._settings = settings
        if self.phase is Phase.DOUBTFUL and settings.eagerness is None:
            self._settled_ms = settings.silence_duration_ms  # nobody will be asked for the words
        if not settings.enabled:
            self.reset(self._floor_ms)
            self._idle_from_ms = None

    def reset(self, floor_ms: int) -> None:
        """Forget the turn under way; no turn to come reaches back before `floor_ms`."""
        self.phase = Phase.QUIET
        self._voiced = False
        self._run = 0
        self._settled_ms = None
        self._floor_ms = max(self._floor_ms, floor_ms)

    def settle(self, voiced_ms: int, silence_ms: int) -> None:
        """The turn ends after `silence_ms`, if it is still the one with `voiced_ms` of speech."""
        if self.phase is not Phase.QUIET and self.voiced_ms == voiced_ms:
            self._settled_ms = silence_ms

    def dismiss(self, voiced_ms: int) -> bool:
        """Forget a doubtful turn with that much speech, unless it may well be meant as a reply. True if forgotten."""
        if self.phase is not Phase.DOUBTFUL or self.voiced_ms != voiced_ms:
            return False
        if not self._answering and self._now_ms + _LAST_WORDS_MS > self._heard_until_ms:
            return False
        self.reset(self.end_ms)
        return True

    def arm_idle(self, from_ms: int) -> None:
        """Start waiting for the caller, `from_ms` into all audio (where the answer's playback ends)."""
        self._idle_from_ms = from_ms
        self._answering = False
        self._heard_until_ms = from_ms

    def disarm_idle(self) -> None:
        """Stop waiting: an answer is under way."""
        self._idle_from_ms = None
        self._answering = True

    def skip(self, frames: int) -> None:
        """Pass over frames without judging them (push to talk)."""
        self._now_ms += frames * FRAME_MS

    def push(self, probability: float) -> Signal | None:
        """Judge one frame; at most one thing happens per frame."""
        settings = self._settings
        self._now_ms += FRAME_MS
        enough = max(settings.threshold - _HYSTERESIS, 0.01) if self._voiced else settings.threshold
        # Frames before the floor were forgotten while they were on their way here.
        self._voiced = probability >= enough and self._now_ms > self._floor_ms
        if self._voiced:
            self._voiced_end_ms = self._now_ms
        return self._quiet() if self.phase is Phase.QUIET else self._speaking()

    def _quiet(self) -> Signal | None:
        self._run = self._run + 1 if self._voiced else 0
        if self._run >= _START_FRAMES:
            return self._start()
        timeout_ms = self._settings.idle_timeout_ms
        since_ms = self._idle_from_ms
        if self._run or since_ms is None or timeout_ms is None:
            return None
        if self._now_ms < since_ms + timeout_ms:
            return None
        self._idle_from_ms = None
        return IdleTimeout(since_ms, self._now_ms)

    def _start(self) -> SpeechStarted | None:
        begun_ms = self._now_ms - self._run * FRAME_MS
        self.start_ms = max(self._floor_ms, begun_ms - self._settings.prefix_padding_ms)
        self.voiced_ms = self._run * FRAME_MS
        self._run = 0
        is_heard = self._answering or self._now_ms < self._heard_until_ms
        if self._settings.eagerness is not None and is_heard:
            self.phase = Phase.DOUBTFUL
            return None
        return self._tell()

    def _tell(self) -> SpeechStarted:
        self.phase = Phase.SPEAKING
        self._idle_from_ms = None
        return SpeechStarted(self.start_ms)

    @property
    def _enough_ms(self) -> int:
        """The silence that ends the turn under way."""
        eagerness = self._settings.eagerness
        if eagerness is None:
            return self._settings.silence_duration_ms
        return self._settled_ms or longest_silence_ms(eagerness)

    def _speaking(self) -> Signal | None:
        self._run = 0 if self._voiced else self._run + 1
        if self._voiced:
            self.voiced_ms += FRAME_MS
            self._settled_ms = None
        doubtful = self.phase is Phase.DOUBTFUL
        if doubtful and (self._settled_ms is not None or self.voiced_ms >= _BACKCHANNEL_MS):
            return self._tell()
        stop_frames = max(1, -(-self._enough_ms // FRAME_MS))
        too_long = self._now_ms - self.start_ms >= self._max_turn_ms
        if self._run >= stop_frames or too_long:
            ended_ms = self.end_ms
            self.reset(ended_ms)
            return None if doubtful else SpeechStopped(self._voiced_end_ms, self._now_ms)
        return SpeechPaused(self._voiced_end_ms) if self._run == _PAUSE_FRAMES else None
