"""What the connection asks of the engine side: neutral facts, no event names, no clock, no IO."""

from typing import Any, Literal

import msgspec


class TurnDetectionSettings(msgspec.Struct, frozen=True):
    """When speech counts as begun and ended; `enabled` False is push to talk."""

    enabled: bool = True
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    idle_timeout_ms: int | None = None
    # What was said decides how long the silence must be, instead of a fixed time; None: it does not.
    eagerness: Literal["low", "medium", "high", "auto"] | None = None


class TruncationSettings(msgspec.Struct, frozen=True):
    """What of a conversation is let go when it has grown too long."""

    mode: Literal["auto", "disabled", "retention_ratio"] = "auto"
    retention_ratio: float = 1.0  # share of the limit that is kept when it is reached
    post_instructions: int | None = (
        None  # the limit: tokens behind the instructions; None is the server's own
    )


class Configure(msgspec.Struct, frozen=True):
    """The session's settings changed (sent once at the start, too)."""

    instructions: str
    turn_detection: TurnDetectionSettings
    input_rate: int  # Hz of the pcm in PushAudio
    language: str | None
    tools: tuple[dict[str, Any], ...]
    truncation: TruncationSettings = TruncationSettings()
    voice: str = ""  # for models whose voice is part of how a call begins
    noise_reduction: Literal["near_field", "far_field"] | None = None
    logprobs: bool = False  # say how sure the transcriber is of each token


class TokenLogprob(msgspec.Struct, frozen=True):
    """How sure the transcriber is of one token of a transcript, in the form the wire has for it."""

    token: str
    logprob: float  # natural logarithm of its probability
    bytes: list[int]  # its UTF-8


class PushAudio(msgspec.Struct, frozen=True, gc=False):
    """Caller audio: mono pcm16, little endian, at the configured input rate."""

    pcm: bytes


class CommitAudio(msgspec.Struct, frozen=True):
    """The buffered caller audio becomes the user item `item_id`; transcribe it."""

    item_id: str


class ShowItem(msgspec.Struct, frozen=True):
    """The user item `item_id` shows this: words and image files (PNG, JPEG, WebP), in order."""

    item_id: str
    content: tuple[str | bytes, ...]


class ClearAudio(msgspec.Struct, frozen=True):
    """Forget buffered caller audio."""


class ContextMessage(msgspec.Struct, frozen=True):
    """One turn of the conversation as the model must see it.

    `audio` is True for a user item whose words come from its transcription (the engine waits for it); `text` then
    holds what is known so far.
    """

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    item_id: str
    audio: bool = False
    call: bool = False  # of the assistant's: a function call, as JSON text, and no words


class CreateResponse(msgspec.Struct, frozen=True):
    """Answer now."""

    response_id: str
    instructions: str
    messages: tuple[ContextMessage, ...]
    audio: bool  # speak the answer; False: text only
    voice: str
    speed: float
    max_output_tokens: int | None
    out_of_band: bool  # not part of the default conversation: must not touch its resident context
    tools: tuple[dict[str, Any], ...]
    tool_choice: Any  # "auto", "none", "required" or {"type": "function", "name": …}
    parallel_tool_calls: bool  # False: one call at most


class CancelResponse(msgspec.Struct, frozen=True):
    """Stop this response; nothing of it may follow."""

    response_id: str


class Hangup(msgspec.Struct, frozen=True):
    """Close the socket once everything queued has been sent."""

    code: int
    reason: str


Command = (
    Configure
    | PushAudio
    | CommitAudio
    | ClearAudio
    | ShowItem
    | CreateResponse
    | CancelResponse
    | Hangup
)
