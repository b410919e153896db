"""One answer, from response.created to response.done.

    OPEN ──write──▶ WRITING ──write──▶ WRITING
      │                │
      └─────end────────┴────end────▶ ENDED

`write` in OPEN adds the output item; in ENDED it is ignored, because an engine may still be speaking a moment after a
cancel. `end` always closes whatever is open, in the order the real service does (recorded in mid-2026): audio done
before transcript done, conversation.item.done before response.output_item.done, response.done last.
"""

from enum import Enum, auto
from typing import Any, Literal

import msgspec

from protocol.alignment import SpokenText
from protocol.codec import MAX_DELTA_BYTES
from protocol.conversation import Conversation
from protocol.ids import IdFactory
from protocol.items import Entry, Item, ItemStatus, Part
from protocol.response_options import ResponseOptions
from protocol.server_events import Address, PartWire, ServerEvents

# Audio tokens as OpenAI bills them: one per 100 ms heard, one per 50 ms spoken.
_MS_PER_INPUT_TOKEN = 100
_MS_PER_OUTPUT_TOKEN = 50


class State(Enum):
    """How far an answer has come."""

    OPEN = auto()
    WRITING = auto()
    ENDED = auto()


class Step(Enum):
    """What may happen to it."""

    WRITE = auto()
    END = auto()


TRANSITIONS: dict[tuple[State, Step], State] = {
    (State.OPEN, Step.WRITE): State.WRITING,
    (State.WRITING, Step.WRITE): State.WRITING,
    (State.OPEN, Step.END): State.ENDED,
    (State.WRITING, Step.END): State.ENDED,
}


class ResponseUsage(msgspec.Struct, frozen=True):
    """What an answer took: tokens of text context and text output, and the audio heard and spoken."""

    input_tokens: int = 0
    cached_tokens: int = 0  # of input_tokens: already resident
    output_tokens: int = 0
    input_audio_ms: int = 0
    output_audio_ms: int = 0

    def wire(self) -> dict[str, Any]:
        """The `usage` of response.done."""
        heard = -(-self.input_audio_ms // _MS_PER_INPUT_TOKEN)
        spoken = -(-self.output_audio_ms // _MS_PER_OUTPUT_TOKEN)
        input_tokens, output_tokens = self.input_tokens + heard, self.output_tokens + spoken
        return {
            "total_tokens": input_tokens + output_tokens,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "input_token_details": {
                "text_tokens": self.input_tokens,
                "audio_tokens": heard,
                "image_tokens": 0,
                "cached_tokens": self.cached_tokens,
                "cached_tokens_details": {
                    "text_tokens": self.cached_tokens,
                    "audio_tokens": 0,
                    "image_tokens": 0,
                },
            },
            "output_token_details": {"text_tokens": self.output_tokens, "audio_tokens": spoken},
        }


class Ending(msgspec.Struct, frozen=True):
    """How an answer ended."""

    status: Literal["completed", "cancelled", "incomplete", "failed"]
    reason: Literal["turn_detected", "client_cancelled", "max_output_tokens"] | None = None
    error: str | None = None

    @property
    def item_status(self) -> ItemStatus:
        """The status of the item that was being written."""
        return "completed" if self.status == "completed" else "incomplete"

    def details(self) -> dict[str, Any] | None:
        """The `status_details`: never a string, on which two clients wait forever."""
        if self.status == "completed":
            return None
        if self.status == "failed":
            message = self.error or "The model failed to answer."
            error = {"type": "server_error", "code": "model_error", "message": message}
            return {"type": "failed", "error": error}
        return {"type": self.status, "reason": self.reason}


COMPLETED = Ending("completed")


class Response:
    """An answer being given."""

    def __init__(
        self,
        options: ResponseOptions,
        conversation: Conversation,
        events: ServerEvents,
        ids: IdFactory,
        *,
        spontaneous: bool = False,
    ) -> None:
        self.id = ids.new("resp")
        self.options = options
        self.spontaneous = spontaneous  # begun by a frame-locked model, not asked for
        self._conversation = conversation
        self._events = events
        self._ids = ids
        self._state = State.OPEN
        # The answer follows what it answers, whatever is added meanwhile. None: it comes first.
        self._after = conversation.last_id
        self._speaks = options.modality == "audio"
        self._encode = options.format.from_pcm
        # Set once writing begins:
        self._entry: Entry | None = None
        self._address: Address | None = None
        self._spoken = SpokenText(options.format.rate)
        events.response_created(self._view("in_progress", None, None))

    @property
    def has_spoken(self) -> bool:
        """Whether the caller has been sent any of its audio."""
        return self._speaks and self._spoken.audio_ms > 0

    @property
    def is_written(self) -> bool:
        """Whether it has begun to come and has not ended."""
        return self._state is State.WRITING

    @property
    def audio_ms(self) -> int:
        """How long it has spoken."""
        return self._spoken.audio_ms

    def write_text(self, text: str) -> None:
        """More of the answer's words; in audio mode they come just ahead of their audio."""
        address = self._writable()
        if address is None or not text:
            return
        self._spoken.write(text)
        self._events.text_delta(address, text)

    def write_audio(self, pcm: bytes) -> None:
        """More of the answer's voice: pcm16 at the rate of the answer's format."""
        address = self._writable()
        if address is None or not self._speaks or not pcm:
            return
        self._spoken.speak(len(pcm))
        if len(pcm) <= MAX_DELTA_BYTES:
            self._events.audio_delta(address, self._encode(pcm))
            return
        for start in range(0, len(pcm), MAX_DELTA_BYTES):
            self._events.audio_delta(address, self._encode(pcm[start : start + MAX_DELTA_BYTES]))

    def end(self, ending: Ending, usage: ResponseUsage | None) -> None:
        """Close everything that is open and say how it ended."""
        was, self._state = self._state, TRANSITIONS[self._state, Step.END]
        if was is State.WRITING:
            self._finish_item(ending)
        self._events.response_done(
            self._view(ending.status, ending.details(), None if usage is None else usage.wire())
        )
        if self._entry is not None and self._speaks:
            # The events above repeat what was streamed; what is remembered is what can have been heard.
            if ending.status == "cancelled":
                self._spoken.drop_unspoken()
            self._entry.remember_heard()

    def _writable(self) -> Address | None:
        """Where output goes now; None once the answer has ended."""
        if self._state is State.WRITING:
            return self._address
        state = TRANSITIONS.get((self._state, Step.WRITE))
        if state is None:
            return None
        self._state = state
        return self._begin_item()

    def _begin_item(self) -> Address:
        item = Item(
            id=self._fresh_id(), type="message", status="in_progress", role="assistant", content=[]
        )
        self._events.output_item_added(self.id, 0, item)
        if self.options.out_of_band:
            self._entry = Entry(item)
        else:
            self._entry = self._conversation.place(item, self._after)
            self._events.item_added(item, self._conversation.previous_id(self._entry))
        if self._speaks:
            self._entry.spoken = self._spoken
            item.content = [Part(type="output_audio", transcript="")]
        else:
            item.content = [Part(type="output_text", text="")]
        fields = {
            "response_id": self.id,
            "item_id": item.id,
            "output_index": 0,
            "content_index": 0,
        }
        text_event = "output_audio_transcript" if self._speaks else "output_text"
        self._address = Address(fields, text_event)
        self._events.part_added(self._address, self._part_wire(""))
        return self._address

    def _finish_item(self, ending: Ending) -> None:
        assert self._entry is not None, self.id
        assert self._address is not None, self.id
        item, text = self._entry.item, self._spoken.text
        item.status = ending.item_status
        if self._speaks:
            self._events.audio_done(self._address)
            self._events.text_done(self._address, "transcript", text)
            item.content = [Part(type="output_audio", transcript=text)]
        else:
            self._events.text_done(self._address, "text", text)
            item.content = [Part(type="output_text", text=text)]
        self._events.part_done(self._address, self._part_wire(text))
        if item.id in self._conversation:
            self._events.item_done(item, self._conversation.previous_id(self._entry))
        self._events.output_item_done(self.id, 0, item)

    def _part_wire(self, text: str) -> PartWire:
        """A content part as content_part events show it: named unlike the item's content, and no nulls."""
        if self._speaks:
            return {"type": "audio", "transcript": text}
        return {"type": "text", "text": text}

    def _fresh_id(self) -> str:
        """An item id of ours that no client has taken by guessing."""
        while (item_id := self._ids.new("item")) in self._conversation:
            pass
        return item_id

    def _view(
        self, status: str, details: dict[str, Any] | None, usage: dict[str, Any] | None
    ) -> dict[str, Any]:
        options = self.options
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": details,
            "output": [] if self._entry is None else [self._entry.item],
            "conversation_id": None if options.out_of_band else self._conversation.id,
            "output_modalities": [options.modality],
            "max_output_tokens": options.max_output_tokens,
            "audio": {"output": {"format": options.format.wire, "voice": options.voice}},
            "usage": usage,
            "metadata": options.metadata,
        }
