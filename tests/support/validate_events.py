"""Checks a server event against the `openai` package's own types and the stricter habits of other clients."""

import functools
import json
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args

from openai.types.realtime import RealtimeServerEvent
from pydantic import Field, TypeAdapter

MAX_FRAME_BYTES = 1 << 20  # pipecat's WebSocket client refuses more

# The keys under which the real service sends null (recorded traffic). Elsewhere a null makes a Zod schema's
# `.optional()` fail and the client drop the event.
NULLABLE = {
    "conversation_id",
    "event_id",
    "idle_timeout_ms",
    "include",
    "language",
    "metadata",
    "noise_reduction",
    "param",
    "previous_item_id",
    "prompt",
    "status_details",
    "tracing",
    "transcript",
    "transcription",
    "turn_detection",
    "usage",
}
NOT_IN_GA = {"conversation.created", "conversation.item.created"}


@functools.cache
def _adapter() -> TypeAdapter[Any]:
    members = get_args(get_args(RealtimeServerEvent)[0])
    return TypeAdapter(Annotated[Union[members], Field(discriminator="type")])  # noqa: UP007


def validated(text: str) -> dict[str, Any]:
    """The event in `text`.

    Raises:
        pydantic.ValidationError: the `openai` package does not know this event.
        AssertionError: a rule that some other client enforces is broken.
    """
    assert len(text.encode()) < MAX_FRAME_BYTES
    _adapter().validate_json(text)
    event: dict[str, Any] = json.loads(text)
    assert event["type"] not in NOT_IN_GA
    assert event["event_id"]
    unexpected = set(_null_keys(event)) - NULLABLE
    assert not unexpected, f"null in {unexpected}: {text[:300]}"
    _CHECKS.get(event["type"], lambda _: None)(event)
    return event


def _null_keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, child in value.items():
            if child is None:
                yield key
            yield from _null_keys(child)
    elif isinstance(value, list):
        for child in value:
            yield from _null_keys(child)


def _check_session(event: dict[str, Any]) -> None:
    session = event["session"]
    assert session["type"] in ("realtime", "transcription")
    heard = session["audio"]["input"]
    assert set(heard) == {"format", "transcription", "noise_reduction", "turn_detection"}
    assert heard["transcription"] is None or set(heard["transcription"]) == {
        "model",
        "language",
        "prompt",
    }
    if session["type"] == "transcription":
        return
    spoken = session["audio"]["output"]
    assert set(spoken) == {"format", "voice", "speed"}
    assert isinstance(spoken["voice"], str)
    for audio_format in (heard["format"], spoken["format"]):
        assert audio_format in (
            {"type": "audio/pcm", "rate": 24000},
            {"type": "audio/pcmu"},
            {"type": "audio/pcma"},
        )


def _check_response(event: dict[str, Any]) -> None:
    response = event["response"]
    details = response["status_details"]
    assert details is None or isinstance(details, dict)
    if response["usage"] is not None:
        assert all(isinstance(response["usage"][key], int) for key in _TOKEN_KEYS)
    for item in response["output"]:
        _check_item({"item": item})


def _check_item(event: dict[str, Any]) -> None:
    for part in event["item"].get("content", ()):
        # @openai/agents-realtime does not know `input_image` in events, although it sends it, and passes them over.
        assert part["type"] in (
            *("input_text", "input_audio", "input_image"),
            *("output_text", "output_audio"),
        )
        assert part["type"] != "input_audio" or "transcript" in part


def _check_part(event: dict[str, Any]) -> None:
    assert event["part"]["type"] in ("audio", "text")


_TOKEN_KEYS = ("total_tokens", "input_tokens", "output_tokens")
_CHECKS = {
    "session.created": _check_session,
    "session.updated": _check_session,
    "response.created": _check_response,
    "response.done": _check_response,
    "conversation.item.added": _check_item,
    "conversation.item.done": _check_item,
    "conversation.item.retrieved": _check_item,
    "response.output_item.added": _check_item,
    "response.output_item.done": _check_item,
    "response.content_part.added": _check_part,
    "response.content_part.done": _check_part,
}
