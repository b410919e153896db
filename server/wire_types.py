"""Which type of event a text is, for counting. Pure."""

import msgspec

from protocol.client_events import SUPPORTED_CLIENT_EVENTS

CLIENT_EVENT_TYPES = SUPPORTED_CLIENT_EVENTS
APPEND = "input_audio_buffer.append"

# What this server sends. A label set must be closed; anything else is counted as "other".
SERVER_EVENT_TYPES: tuple[str, ...] = (
    "error",
    "session.created",
    "session.updated",
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    "input_audio_buffer.cleared",
    "input_audio_buffer.timeout_triggered",
    "conversation.item.added",
    "conversation.item.done",
    "conversation.item.deleted",
    "conversation.item.retrieved",
    "conversation.item.truncated",
    "conversation.item.input_audio_transcription.delta",
    "conversation.item.input_audio_transcription.completed",
    "conversation.item.input_audio_transcription.failed",
    "response.created",
    "response.output_item.added",
    "response.output_item.done",
    "response.content_part.added",
    "response.content_part.done",
    "response.output_audio.delta",
    "response.output_audio.done",
    "response.output_audio_transcript.delta",
    "response.output_audio_transcript.done",
    "response.output_text.delta",
    "response.output_text.done",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.done",
    "rate_limits.updated",
)


class _Typed(msgspec.Struct):
    type: str = "other"


class _Detail(msgspec.Struct):
    code: str | None = None


class _ErrorEvent(msgspec.Struct):
    error: _Detail


_typed = msgspec.json.Decoder(_Typed)
_error_event = msgspec.json.Decoder(_ErrorEvent)


def client_kind(text: str) -> str:
    """The type that a client's text claims; "other" where it cannot be read."""
    try:
        return _typed.decode(text).type
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return "other"


def error_code(text: str) -> str:
    """The code of one of our `error` events."""
    return _error_event.decode(text).error.code or "none"
