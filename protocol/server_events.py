"""Every event the server sends, one method each: the only place that knows their names and fields.

The queue it fills is bounded by its owner, who takes the texts after each call into the connection.
"""

from collections.abc import Sequence
from typing import Any, Literal

from protocol.codec import DeltaTemplate, encode
from protocol.commands import TokenLogprob
from protocol.errors import ProtocolError
from protocol.ids import IdFactory
from protocol.items import Item

PartWire = dict[str, str]


class Address:
    """Which content part of which response an event is about, and the prepared texts of its hot events."""

    __slots__ = ("audio_delta", "fields", "text_delta")

    def __init__(self, fields: dict[str, Any], text_event: str) -> None:
        self.fields = fields
        self.audio_delta = DeltaTemplate("response.output_audio.delta", fields)
        self.text_delta = DeltaTemplate(f"response.{text_event}.delta", fields)


class ServerEvents:
    """Server events queued as JSON texts, in order."""

    def __init__(self, ids: IdFactory) -> None:
        self._ids = ids
        self._texts: list[str] = []

    def take(self) -> list[str]:
        """Everything queued since the last call."""
        texts, self._texts = self._texts, []
        return texts

    def _emit(self, event_type: str, fields: dict[str, Any]) -> None:
        self._texts.append(encode({"type": event_type, "event_id": self._ids.event(), **fields}))

    # -- session -------------------------------------------------------------------------------

    def session_created(self, session: dict[str, Any]) -> None:
        self._emit("session.created", {"session": session})

    def session_updated(self, session: dict[str, Any]) -> None:
        self._emit("session.updated", {"session": session})

    def error(self, error: ProtocolError) -> None:
        self._emit("error", {"error": error})

    # -- caller audio --------------------------------------------------------------------------

    def speech_started(self, audio_ms: int, item_id: str) -> None:
        self._emit(
            "input_audio_buffer.speech_started", {"audio_start_ms": audio_ms, "item_id": item_id}
        )

    def speech_stopped(self, audio_ms: int, item_id: str) -> None:
        self._emit(
            "input_audio_buffer.speech_stopped", {"audio_end_ms": audio_ms, "item_id": item_id}
        )

    def timeout_triggered(self, start_ms: int, end_ms: int, item_id: str) -> None:
        self._emit(
            "input_audio_buffer.timeout_triggered",
            {"audio_start_ms": start_ms, "audio_end_ms": end_ms, "item_id": item_id},
        )

    def committed(self, item_id: str, previous_id: str | None) -> None:
        self._emit(
            "input_audio_buffer.committed", {"previous_item_id": previous_id, "item_id": item_id}
        )

    def cleared(self) -> None:
        self._emit("input_audio_buffer.cleared", {})

    # -- items ---------------------------------------------------------------------------------

    def item_added(self, item: Item, previous_id: str | None) -> None:
        self._emit("conversation.item.added", {"previous_item_id": previous_id, "item": item})

    def item_done(self, item: Item, previous_id: str | None) -> None:
        self._emit("conversation.item.done", {"previous_item_id": previous_id, "item": item})

    def item_deleted(self, item_id: str) -> None:
        self._emit("conversation.item.deleted", {"item_id": item_id})

    def item_retrieved(self, item: Item) -> None:
        self._emit("conversation.item.retrieved", {"item": item})

    def item_truncated(self, item_id: str, content_index: int, audio_end_ms: int) -> None:
        self._emit(
            "conversation.item.truncated",
            {"item_id": item_id, "content_index": content_index, "audio_end_ms": audio_end_ms},
        )

    def transcription_delta(
        self, item_id: str, delta: str, logprobs: Sequence[TokenLogprob]
    ) -> None:
        self._emit(
            "conversation.item.input_audio_transcription.delta",
            {"item_id": item_id, "content_index": 0, "delta": delta, **_scored(logprobs)},
        )

    def transcription_completed(
        self, item_id: str, transcript: str, seconds: float, logprobs: Sequence[TokenLogprob]
    ) -> None:
        """`usage` is required by two clients; the duration form is the one all of them take."""
        self._emit(
            "conversation.item.input_audio_transcription.completed",
            {
                "item_id": item_id,
                "content_index": 0,
                "transcript": transcript,
                "usage": {"type": "duration", "seconds": seconds},
                **_scored(logprobs),
            },
        )

    def transcription_failed(self, item_id: str, message: str) -> None:
        self._emit(
            "conversation.item.input_audio_transcription.failed",
            {
                "item_id": item_id,
                "content_index": 0,
                "error": {
                    "type": "server_error",
                    "code": "transcription_failed",
                    "message": message,
                },
            },
        )

    # -- responses -----------------------------------------------------------------------------

    def response_created(self, response: dict[str, Any]) -> None:
        self._emit("response.created", {"response": response})

    def response_done(self, response: dict[str, Any]) -> None:
        self._emit("response.done", {"response": response})

    def output_item_added(self, response_id: str, output_index: int, item: Item) -> None:
        self._emit(
            "response.output_item.added",
            {"response_id": response_id, "output_index": output_index, "item": item},
        )

    def output_item_done(self, response_id: str, output_index: int, item: Item) -> None:
        self._emit(
            "response.output_item.done",
            {"response_id": response_id, "output_index": output_index, "item": item},
        )

    def part_added(self, address: Address, part: PartWire) -> None:
        self._emit("response.content_part.added", {**address.fields, "part": part})

    def part_done(self, address: Address, part: PartWire) -> None:
        self._emit("response.content_part.done", {**address.fields, "part": part})

    def text_delta(self, address: Address, delta: str) -> None:
        """More transcript or text, whichever the address is for."""
        self._texts.append(address.text_delta.text(self._ids.event(), delta))

    def audio_delta(self, address: Address, audio: bytes) -> None:
        """More audio in the wire's format. The hot one: once per session and tick."""
        self._texts.append(address.audio_delta.audio(self._ids.event(), audio))

    def audio_done(self, address: Address) -> None:
        self._emit("response.output_audio.done", address.fields)

    def text_done(self, address: Address, kind: Literal["text", "transcript"], text: str) -> None:
        name = "output_text" if kind == "text" else "output_audio_transcript"
        self._emit(f"response.{name}.done", {**address.fields, kind: text})

    def arguments_delta(self, fields: dict[str, Any], delta: str) -> None:
        """More of a function call's arguments; a call has no content part, so no content_index."""
        self._emit("response.function_call_arguments.delta", {**fields, "delta": delta})

    def arguments_done(self, fields: dict[str, Any], name: str, arguments: str) -> None:
        self._emit(
            "response.function_call_arguments.done",
            {**fields, "name": name, "arguments": arguments},
        )


def _scored(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {"logprobs": logprobs} if logprobs else {}
