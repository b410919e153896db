"""The small interfaces behind which hearing and voice live.

Implementations are chosen by id (engine/models/registry.py). All of them are called from pool threads, several at a
time, so they keep no mutable state of their own: a session's state is passed in and comes back out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]

SPEECH_RATE = 16_000  # Hz; what voice activity and transcription hear
FRAME_SAMPLES = 512  # one voice activity frame
FRAME_MS = FRAME_SAMPLES * 1000 // SPEECH_RATE  # 32


class SpeechUnavailable(RuntimeError):
    """A speech part cannot be built here; the message is one line and says what to install or fetch."""


class VoiceActivity(Protocol):
    """Says how likely each frame is to be speech, many sessions in one call."""

    state_size: int  # float32 numbers that carry a session from one frame to the next; may be 0

    def probabilities(self, frames: Samples, states: Samples) -> tuple[Samples, Samples]:
        """Speech probability of one frame of each of B sessions, and their next states.

        Args:
            frames: float32[B, 512] at 16 kHz, full scale ±1.
            states: float32[B, state_size], all zeros for a session's first frame.

        Returns:
            float32[B] in 0–1, and float32[B, state_size].
        """
        ...


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One token of a transcript, and how sure the transcriber was of it."""

    text: str  # as it stands in the transcript
    spelling: bytes  # UTF-8, or a part of it where a character takes several tokens
    logprob: float  # natural logarithm of its probability among all tokens


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was said. The spellings of the tokens, where there are any, join to the text."""

    text: str
    tokens: tuple[ScoredToken, ...] = ()


class Transcriber(Protocol):
    """Turns speech into text."""

    def transcribe(self, samples: Samples) -> str:
        """The words in float32[n] at 16 kHz; empty if nothing intelligible was said."""
        ...


@runtime_checkable
class ScoringTranscriber(Transcriber, Protocol):
    """One that can say how sure it is of each token."""

    def scored(self, samples: Samples) -> Transcript:
        """As `transcribe`, with the tokens that the words are made of."""
        ...


class Voice(Protocol):
    """Turns text into speech."""

    rate: int  # Hz of the pcm16 it makes
    names: Sequence[str]  # voices it has; any other name is answered with the first of them

    def speak(self, text: str, voice: str, speed: float) -> bytes:
        """Mono pcm16, little endian, silence at both ends trimmed; empty if there is nothing to say.

        Args:
            text: one clause or sentence.
            voice: a name; unknown ones get the default voice.
            speed: 0.25 to 1.5, where 1 is the voice's own pace.
        """
        ...
