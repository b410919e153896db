"""Conversation items: their shape on the wire, and a client's item made into ours.

Fields that do not apply are UNSET and so absent from the JSON: a null where a client's schema says "optional" makes
some clients drop the whole event. The exception is `transcript`, which `input_audio` must carry even when it is null.
"""

from typing import Any, Literal, NamedTuple, cast

import msgspec
from msgspec import UNSET, UnsetType

from protocol.alignment import SpokenText
from protocol.audio_format import AudioFormat
from protocol.errors import ProtocolError, invalid_value, missing
from protocol.kept_audio import Clip
from protocol.pictures import MAX_IMAGES, image_in
from protocol.validation import checked

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Role = Literal["system", "user", "assistant"]
Detail = Literal["auto", "low", "high"]


class Part(msgspec.Struct, kw_only=True):
    """One piece of a message's content."""

    type: Literal["input_text", "input_audio", "input_image", "output_text", "output_audio"]
    text: str | UnsetType = UNSET
    transcript: str | UnsetType | None = UNSET
    audio: str | UnsetType = UNSET  # base64; only where an item is read back
    # Of an image. Its `image_url` is never told: some clients refuse frames over 1 MiB.
    detail: Detail | UnsetType = UNSET


class Item(msgspec.Struct, kw_only=True):
    """An item as every event shows it. Mutable: status, content and arguments grow while it is written."""

    id: str
    type: Literal["message", "function_call", "function_call_output"]
    status: ItemStatus | UnsetType = UNSET
    role: Role | UnsetType = UNSET
    content: list[Part] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    output: str | UnsetType = UNSET


class Entry:
    """An item's place in the conversation and what the server knows beyond the wire."""

    __slots__ = ("awaits_transcript", "clip", "following", "item", "preceding", "shows", "spoken")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.preceding: Entry | None = None  # None: the first item
        self.following: Entry | None = None  # None: the last item
        self.awaits_transcript = False  # caller audio whose words are still to come
        self.shows = False  # there are images in it
        self.spoken: SpokenText | None = None  # set for answers given as audio
        self.clip: Clip | None = None  # its audio, as far as that is kept

    def remember_heard(self) -> None:
        """Make the transcript what the caller heard of a spoken answer."""
        if self.spoken is not None:
            self.item.content = [Part(type="output_audio", transcript=self.spoken.heard())]

    def with_audio(self, audio_format: AudioFormat) -> Item:
        """The item and its audio, where that is all there and in this format."""
        audio = None
        if self.clip is not None and self.clip.format is audio_format:
            audio = self.clip.base64()
        if audio is None or not self.item.content:
            return self.item
        part = msgspec.structs.replace(self.item.content[0], audio=audio)
        return msgspec.structs.replace(self.item, content=[part])


def user_audio(item_id: str, transcript: str | None = None) -> Item:
    """A user item made of committed caller audio, its words not known yet unless given."""
    part = Part(type="input_audio", transcript=transcript)
    return Item(id=item_id, type="message", status="completed", role="user", content=[part])


def system_note(item_id: str, text: str) -> Item:
    """A system item the server adds itself."""
    part = Part(type="input_text", text=text)
    return Item(id=item_id, type="message", status="completed", role="system", content=[part])


class _ClientPart(msgspec.Struct):
    type: str
    text: str | None = None
    transcript: str | None = None
    image_url: str | None = None
    detail: Detail | None = None


class _ClientMessage(msgspec.Struct, tag_field="type", tag="message"):
    role: Literal["system", "developer", "user", "assistant"]
    content: list[_ClientPart]
    id: str | None = None


class _ClientCall(msgspec.Struct, tag_field="type", tag="function_call"):
    name: str
    arguments: str
    call_id: str | None = None
    id: str | None = None


class _ClientCallOutput(msgspec.Struct, tag_field="type", tag="function_call_output"):
    call_id: str
    output: str
    id: str | None = None


_ClientItem = _ClientMessage | _ClientCall | _ClientCallOutput


class NewItem(NamedTuple):
    """A client's item, and what it shows: words and image files in order; empty if it has no image."""

    item: Item
    shown: tuple[str | bytes, ...] = ()


def parsed(
    raw: dict[str, Any], prefix: str, new_id: str, new_call_id: str
) -> NewItem | ProtocolError:
    """The item in a client's event at `prefix`; `new_id` and `new_call_id` serve where the client gave none."""
    shaped = checked(raw, cast("type[_ClientItem]", _ClientItem), prefix)
    if isinstance(shaped, ProtocolError):
        return shaped
    item_id = shaped.id or new_id
    if isinstance(shaped, _ClientMessage):
        return _message(shaped, item_id, f"{prefix}.content")
    if isinstance(shaped, _ClientCall):
        call = Item(
            id=item_id,
            type="function_call",
            status="completed",
            name=shaped.name,
            call_id=shaped.call_id or new_call_id,
            arguments=shaped.arguments,
        )
        return NewItem(call)
    return NewItem(
        Item(id=item_id, type="function_call_output", call_id=shaped.call_id, output=shaped.output)
    )


def _message(message: _ClientMessage, item_id: str, prefix: str) -> NewItem | ProtocolError:
    role: Role = "system" if message.role == "developer" else message.role
    content: list[Part] = []
    shown: list[str | bytes] = []
    images = sum(part.type == "input_image" for part in message.content)
    if images > MAX_IMAGES:
        return invalid_value(f"An item may have {MAX_IMAGES} images, not {images}.", prefix)
    for index, part in enumerate(message.content):
        where = f"{prefix}[{index}]"
        seen: str | bytes
        if part.type == "input_image" and role == "user":
            ours, seen = _image(part, where)
        else:
            ours = _part(part, role, where)
            seen = "" if isinstance(ours, ProtocolError) else ours.text or ours.transcript or ""
        if isinstance(ours, ProtocolError):
            return ours
        content.append(ours)
        shown.append(seen)
    item = Item(id=item_id, type="message", status="completed", role=role, content=content)
    return NewItem(item, tuple(s for s in shown if s) if images else ())


def _image(part: _ClientPart, prefix: str) -> tuple[Part | ProtocolError, bytes]:
    """The part as events show it, and the image file."""
    if part.image_url is None:
        return missing(f"{prefix}.image_url"), b""
    data = image_in(part.image_url, f"{prefix}.image_url")
    if isinstance(data, ProtocolError):
        return data, b""
    return Part(type="input_image", detail=part.detail or UNSET), data


def _part(part: _ClientPart, role: Role, prefix: str) -> Part | ProtocolError:
    """One content part under the name its role gives it: pipecat sends assistant history as `input_text`."""
    if part.type in ("input_text", "output_text", "text"):
        if part.text is None:
            return missing(f"{prefix}.text")
        return Part(type="output_text" if role == "assistant" else "input_text", text=part.text)
    if part.type in ("input_audio", "output_audio", "audio") and role != "system":
        # Without its words an audio part would be a turn the model cannot know of; say so instead.
        if part.transcript is None:
            return invalid_value(
                "Audio in an item is accepted with its transcript only; "
                "send audio through input_audio_buffer.append.",
                f"{prefix}.transcript",
            )
        return Part(
            type="output_audio" if role == "assistant" else "input_audio",
            transcript=part.transcript,
        )
    return invalid_value(
        f"Invalid value: '{part.type[:100]}' is not supported in a {role} message.",
        f"{prefix}.type",
    )


def text_of(item: Item) -> str:
    """What a message says, all its parts together."""
    said = (part.text or part.transcript or "" for part in item.content or ())
    return " ".join(words for words in said if words)
