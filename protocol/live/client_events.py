"""What a Live client may send, and the settings it starts with. Keys not named here are ignored."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from protocol.errors import ProtocolError, invalid_value, missing
from protocol.session_patch import VoiceId
from protocol.validation import checked


class LiveFormat(msgspec.Struct):
    """The one audio format of both directions."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: Literal[8000, 16000, 24000] | None = None


class LiveOutput(msgspec.Struct):
    """`session.audio.output`."""

    voice: str | VoiceId | None = None


class LiveAudio(msgspec.Struct):
    """`session.audio`."""

    format: LiveFormat | None = None
    output: LiveOutput | None = None


class TextPart(msgspec.Struct):
    """A piece of a message."""

    text: str


class InitialMessage(msgspec.Struct):
    """A message of the conversation so far."""

    role: Literal["developer", "user", "assistant"]
    content: list[TextPart]


class LiveSession(msgspec.Struct):
    """The `session` of session.start."""

    model: str
    audio: LiveAudio | None = None
    delegation: dict[str, Any] | None = None  # accepted; nothing is ever delegated here
    input: list[InitialMessage] | None = None
    instructions: str | None = None


class _Event(msgspec.Struct, kw_only=True):
    type: str
    event_id: str | None = None


class SessionStart(_Event):
    """Comes first."""

    session: LiveSession


class SessionUpdate(_Event):
    """Only what is delegated can be changed, and nothing is; accepted."""

    session: dict[str, Any] | UnsetType = UNSET


class AudioAppend(_Event):
    """Caller audio."""

    audio: str


class ContextAppend(_Event):
    """Text for the model: instructions, silent context, or something to say."""

    content: str


class Plain(_Event):
    """An event that says all by its type."""


SHAPES: dict[str, type[_Event]] = {
    "session.start": SessionStart,
    "session.update": SessionUpdate,
    "session.input_audio.append": AudioAppend,
    "session.input_audio.mute": Plain,
    "session.input_audio.unmute": Plain,
    "session.instructions.append": ContextAppend,
    "session.thinking.append": ContextAppend,
    "session.commentary.append": ContextAppend,
    "session.close": Plain,
}
LiveEvent = SessionStart | SessionUpdate | AudioAppend | ContextAppend | Plain


def decode(text: str | bytes) -> LiveEvent | ProtocolError:
    """The client event in `text`; never raises on what a client may have sent."""
    try:
        raw = msgspec.json.decode(text)
    except (ValueError, RecursionError) as complaint:  # msgspec's errors are ValueErrors
        return ProtocolError("invalid_json", f"Could not parse the event as JSON: {complaint}.")
    if not isinstance(raw, dict):
        return ProtocolError("invalid_type", "An event must be a JSON object.")
    kind = raw.get("type")
    named = raw.get("event_id")
    event_id = named if isinstance(named, str) else None
    if kind is None:
        return missing("type").about(event_id)
    if not isinstance(kind, str) or kind not in SHAPES:
        supported = ", ".join(f"'{name}'" for name in SHAPES)
        message = f"Invalid value: '{str(kind)[:100]}'. Supported values are: {supported}."
        return invalid_value(message, "type").about(event_id)
    event = checked(raw, SHAPES[kind], "")
    return event.about(event_id) if isinstance(event, ProtocolError) else event  # type: ignore[return-value]  # the table's values are LiveEvent's members
