"""What a session tells its owner. Called on the event loop; must not block."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from engine.speech.ports import ScoredToken


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one response, and the audio it came with."""

    input_tokens: int = 0
    cached_tokens: int = 0  # of input_tokens: already resident
    output_tokens: int = 0
    input_audio_ms: int = 0
    output_audio_ms: int = 0


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of a function call that an answer makes."""

    index: int  # which of the answer's calls: 0, 1, …
    name: str
    arguments: str  # more of their JSON text
    done: bool  # they are complete


EndReason = Literal["completed", "max_output_tokens", "failed"]


class SessionListener(Protocol):
    """The engine's side of a call, as facts. `audio_ms` counts all caller audio ever pushed."""

    def speech_started(self, audio_ms: int) -> None: ...
    def speech_stopped(self, audio_ms: int) -> None: ...
    def idle_timeout(self, start_ms: int, end_ms: int) -> None: ...
    def transcribed(
        self, item_id: str, text: str, seconds: float, tokens: Sequence[ScoredToken] = ()
    ) -> None:
        """The words of a spoken item. `tokens`: what they are made of, where the session wants it and it is known."""
        ...

    def transcription_failed(self, item_id: str, message: str) -> None: ...
    def image_failed(self, item_id: str, message: str) -> None:
        """What the item shows was not seen; the message is for the client."""
        ...

    def response_text(self, response_id: str, text: str) -> None:
        """More answer text (text mode: as decoded; audio mode: just ahead of the audio that speaks it)."""
        ...

    def response_audio(self, response_id: str, pcm: bytes) -> None:
        """More answer audio, pcm16 at the model's output rate."""
        ...

    def function_call(self, response_id: str, part: CallPart) -> None:
        """The answer calls a function: more of its arguments."""
        ...

    def response_ended(
        self, response_id: str, reason: EndReason, usage: Usage, error: str | None
    ) -> None:
        """Exactly once per response that was not cancelled; nothing of it follows."""
        ...

    def spoke(self, pcm: bytes, text: str) -> None:
        """A frame-locked model produced output of its own accord."""
        ...

    def fell_silent(self) -> None:
        """A frame-locked model stopped producing output."""
        ...

    def failed(self, code: str, message: str) -> None:
        """The session is lost; close it."""
        ...
