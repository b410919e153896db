"""One answer, from response.created to response.done.

    OPEN ──write──▶ WRITING ──write──▶ WRITING
      │                │
      └─────end────────┴────end────▶ ENDED

`write` begins the output item it belongs to, where there is none; in ENDED it is ignored, because an engine may still
be speaking a moment after a cancel. `end` always closes whatever is open, response.done last.
"""

from enum import Enum, auto
from typing import Any, Literal

import msgspec

from protocol.conversation import Conversation
from protocol.ids import IdFactory
from protocol.items import ItemStatus
from protocol.outputs import CallOutput, MessageOutput, Stage
from protocol.response_options import ResponseOptions
from protocol.server_events import ServerEvents

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
    ) -> None:
        self.id = ids.new("resp")
        self.options = options
        self._conversation = conversation
        self._events = events
        self._ids = ids
        self._state = State.OPEN
        self._stage = Stage(self.id, options, conversation, events)
        self._outputs: list[MessageOutput | CallOutput] = []
        # Those of them that are not finished:
        self._message: MessageOutput | None = None
        self._calls: dict[int, CallOutput] = {}  # by the engine's index
        events.response_created(self._view("in_progress", None, None))

    @property
    def has_spoken(self) -> bool:
        """Whether the caller has been sent any of its audio."""
        return self.options.modality == "audio" and self.audio_ms > 0

    @property
    def is_written(self) -> bool:
        """Whether it has begun to come and has not ended."""
        return self._state is State.WRITING

    @property
    def audio_ms(self) -> int:
        """How long it has spoken."""
        return sum(item.audio_ms for item in self._outputs if isinstance(item, MessageOutput))

    def write_text(self, text: str) -> None:
        """More of the answer's words; in audio mode they come just ahead of their audio."""
        if text and self._write():
            self._writable().write_text(text)

    def write_audio(self, pcm: bytes) -> None:
        """More of the answer's voice: pcm16 at the rate of the answer's format."""
        if pcm and self.options.modality == "audio" and self._write():
            self._writable().write_audio(pcm)

    def write_call(self, index: int, name: str, arguments: str, *, done: bool) -> None:
        """More of the JSON arguments of the `index`-th function it calls, or with `done` the last of them."""
        if not self._write():
            return
        call = self._calls.get(index)
        if call is None:
            self._finish_message("completed")
            call = CallOutput(self._stage, self._fresh_id(), self._ids.new("call"), name)
            self._calls[index] = call
            self._outputs.append(call)
        if arguments:
            call.write(arguments)
        if done:
            del self._calls[index]
            call.finish("completed")

    def end(self, ending: Ending, usage: ResponseUsage | None) -> None:
        """Close everything that is open and say how it ended."""
        self._state = TRANSITIONS[self._state, Step.END]
        self._finish_message(ending.item_status)
        for call in self._calls.values():
            call.finish("incomplete")
        self._events.response_done(
            self._view(ending.status, ending.details(), None if usage is None else usage.wire())
        )
        for output in self._outputs:
            if isinstance(output, MessageOutput):
                output.settle(was_cut_off=ending.status == "cancelled")

    def _write(self) -> bool:
        """Go on writing; False once the answer has ended."""
        state = TRANSITIONS.get((self._state, Step.WRITE))
        if state is not None:
            self._state = state
        return state is not None

    def _writable(self) -> MessageOutput:
        """The message, begun if there is none yet."""
        if self._message is None:
            self._message = MessageOutput(self._stage, self._fresh_id())
            self._outputs.append(self._message)
        return self._message

    def _finish_message(self, status: ItemStatus) -> None:
        if self._message is not None:
            self._message.finish(status)
            self._message = None

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
            "output": [output.item for output in self._outputs],
            "conversation_id": None if options.out_of_band else self._conversation.id,
            "output_modalities": [options.modality],
            "max_output_tokens": options.max_output_tokens,
            "audio": {"output": {"format": options.format.wire, "voice": options.voice}},
            "usage": usage,
            "metadata": options.metadata,
        }
