"""What a wire protocol is to the rest of the server: texts and facts in, commands and texts out.

The engine side speaks of audio, words, turns and answers, and of no event's name; each protocol makes of that what its
clients expect. `RealtimeConnection` and `LiveConnection` are the two there are.
"""

from collections.abc import Sequence
from typing import Protocol

from protocol.commands import Command, TokenLogprob
from protocol.response import ResponseUsage


class Facade(Protocol):
    """The protocol state of one call. Never waits, reads a clock or raises on what a client sends."""

    def start(self) -> list[Command]:
        """The call begins; the first command is a Configure."""
        ...

    def receive(self, text: str | bytes) -> list[Command]:
        """One message from the client."""
        ...

    def take_events(self) -> list[str]:
        """JSON texts for the socket, in order; clears the queue."""
        ...

    def error(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        event_id: str | None = None,
        type: str = "server_error",
    ) -> None:
        """Something went wrong that is not this machine's doing."""
        ...

    def output_rate(self, response_id: str) -> int:
        """Rate in Hz of the pcm16 that an answer takes."""
        ...

    def speech_started(self, audio_ms: int) -> list[Command]: ...
    def speech_stopped(self, audio_ms: int) -> list[Command]: ...
    def idle_timeout(self, start_ms: int, end_ms: int) -> list[Command]: ...
    def transcribed(
        self, item_id: str, text: str, seconds: float, logprobs: Sequence[TokenLogprob] = ()
    ) -> list[Command]: ...
    def transcription_failed(self, item_id: str, message: str) -> list[Command]: ...
    def response_text(self, response_id: str, text: str) -> None: ...
    def response_audio(self, response_id: str, pcm: bytes) -> None: ...
    def response_call(
        self, response_id: str, index: int, name: str, arguments: str, *, done: bool
    ) -> None: ...
    def response_ended(
        self, response_id: str, reason: str, usage: ResponseUsage, error: str | None
    ) -> list[Command]: ...
    def spoke(self, pcm: bytes, text: str) -> None: ...
    def fell_silent(self) -> None: ...
