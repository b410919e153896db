"""The eleven events a client may send, decoded straight from JSON into a tagged union.

Unknown keys are ignored on purpose: clients send fields of API versions older and newer than this one. Nested objects
stay plain dicts here; `session_config`, `response_options` and `items` check them where their meaning is known.
"""

from typing import Any

import msgspec


class _Event(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    event_id: str | None = None


class SessionUpdate(_Event, frozen=True, kw_only=True, tag="session.update"):
    """Change some of the session's settings."""

    session: dict[str, Any]


class AudioAppend(_Event, frozen=True, kw_only=True, gc=False, tag="input_audio_buffer.append"):
    """More caller audio, base64."""

    audio: str


class AudioCommit(_Event, frozen=True, kw_only=True, tag="input_audio_buffer.commit"):
    """What was said so far is a user turn."""


class AudioClear(_Event, frozen=True, kw_only=True, tag="input_audio_buffer.clear"):
    """Forget what was said since the last commit."""


class OutputClear(_Event, frozen=True, kw_only=True, tag="output_audio_buffer.clear"):
    """Meant for WebRTC, where the server holds the playback buffer."""


class ItemCreate(_Event, frozen=True, kw_only=True, tag="conversation.item.create"):
    """Add an item: at the end, after a given item, or first (`root`)."""

    item: dict[str, Any]
    previous_item_id: str | None = None


class ItemDelete(_Event, frozen=True, kw_only=True, tag="conversation.item.delete"):
    """Remove an item from the conversation."""

    item_id: str


class ItemRetrieve(_Event, frozen=True, kw_only=True, tag="conversation.item.retrieve"):
    """Read an item back as the server knows it."""

    item_id: str


class ItemTruncate(_Event, frozen=True, kw_only=True, tag="conversation.item.truncate"):
    """The caller heard only the first `audio_end_ms` of an answer."""

    item_id: str
    content_index: int
    audio_end_ms: int | float


class ResponseCreate(_Event, frozen=True, kw_only=True, tag="response.create"):
    """Answer now."""

    response: dict[str, Any] | None = None


class ResponseCancel(_Event, frozen=True, kw_only=True, tag="response.cancel"):
    """Stop the answer in progress."""

    response_id: str | None = None


ClientEvent = (
    SessionUpdate
    | AudioAppend
    | AudioCommit
    | AudioClear
    | OutputClear
    | ItemCreate
    | ItemDelete
    | ItemRetrieve
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel
)

_TYPES: tuple[type[_Event], ...] = (
    SessionUpdate,
    AudioAppend,
    AudioCommit,
    AudioClear,
    OutputClear,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    ResponseCreate,
    ResponseCancel,
)

SUPPORTED_CLIENT_EVENTS: tuple[str, ...] = tuple(
    str(event.__struct_config__.tag) for event in _TYPES
)
