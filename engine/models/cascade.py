"""Turn-based conversation out of parts: voice activity → transcription → language model → voice.

The language model itself runs in the backend. Everything here is hearing, wording and speaking; nothing
enters the resident context until a turn's transcript does. Parts are shared by all sessions and hold no
state of their own; what belongs to a call is in its `Caller`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from engine.models.base import (
    Heard,
    Message,
    ModelSpec,
    Prompt,
    Segment,
    SessionSetup,
    TickOutput,
)
from engine.models.caller import Caller
from engine.models.chat import ChatFormat
from engine.models.tools import CallMark, Tool, ToolChoice
from engine.models.turn_hearing import TurnHearing
from engine.speech.ports import (
    Transcriber,
    Voice,
    VoiceActivity,
)
from engine.work import Sampling

_NOTHING = Heard()


@dataclass(frozen=True, slots=True)
class CascadeParts:
    """The stages of a cascade."""

    vad: VoiceActivity
    transcriber: Transcriber
    chat: ChatFormat
    voice: Voice


class Cascade(TurnHearing):
    """Implements `TurnModel`."""

    def __init__(
        self, spec: ModelSpec, parts: CascadeParts, sampling: Sampling | None = None
    ) -> None:
        assert spec.output_rate == parts.voice.rate, (spec.output_rate, parts.voice.rate)
        super().__init__(parts.vad, parts.transcriber)
        self.spec = spec
        self._parts = parts
        self._sampling = sampling or Sampling()

    def open(self, setup: SessionSetup) -> Caller:
        return Caller(setup, self.fresh(), self._parts.chat.detokenizer())

    # -- answering -------------------------------------------------------------

    def prompt(
        self, state: Caller, instructions: str, messages: Sequence[Message]
    ) -> list[Segment]:
        return self.turn_prompt(state, Prompt(instructions, messages))

    def turn_prompt(self, state: Caller, asked: Prompt) -> list[Segment]:
        chat, messages = self._parts.chat, asked.messages
        turns = chat.turns(messages, partial(self._sampled, state), asked.then)
        lead = chat.lead(messages, asked.callable_tools or asked.tools, asked.then)
        return [
            Segment(chat.header(asked.instructions, asked.tools), "header"),
            *(
                Segment(tokens, "message", message.item_id)
                for message, tokens in zip(messages, turns, strict=True)
            ),
            Segment(lead, "cue"),
        ]

    @property
    def call_mark(self) -> CallMark | None:
        return self._parts.chat.call_mark

    def calls(
        self, messages: Sequence[Message], tools: Sequence[Tool], choice: ToolChoice
    ) -> Sequence[str]:
        return self._parts.chat.calls(messages, tools, choice)

    def begin(self, state: Caller) -> None:
        state.detokenizer = self._parts.chat.detokenizer()
        state.stop_waiting()

    def decode(self, state: Caller, token_ids: Sequence[int], pcm: bytes = b"") -> TickOutput:
        return TickOutput(state.detokenizer.feed(token_ids))

    @staticmethod
    def _sampled(state: Caller, message: Message) -> tuple[int, ...]:
        return state.remembered(message.text) if message.role == "assistant" else ()

    def remember(self, state: Caller, text: str, token_ids: Sequence[int]) -> None:
        state.remember(text, token_ids)

    def ended(self, state: Caller, playback_ms: int) -> None:
        state.await_speech(playback_ms)

    def speak(self, text: str, voice: str, speed: float) -> bytes:
        return self._parts.voice.speak(text, voice, speed)

    def sampling(self) -> Sampling:
        return self._sampling
