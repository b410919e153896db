"""Turn-based conversation out of parts: voice activity → transcription → language model → voice.

The language model itself runs in the backend. Everything here is hearing, wording and speaking; nothing
enters the resident context until a turn's transcript does. Parts are shared by all sessions and hold no
state of their own; what belongs to a call is in its `Caller`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.models.base import (
    Heard,
    Message,
    ModelSpec,
    Segment,
    SessionSetup,
    TickOutput,
    Utterance,
)
from engine.models.caller import Caller
from engine.models.chat import ChatFormat
from engine.models.tools import Tool, ToolChoice
from engine.speech.end_of_turn import (
    completeness,
    final_fade,
    is_backchannel,
    silence_ms,
)
from engine.speech.ports import (
    Samples,
    ScoringTranscriber,
    Transcriber,
    Transcript,
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


class Cascade:
    """Implements `InteractionModel`."""

    def __init__(
        self, spec: ModelSpec, parts: CascadeParts, sampling: Sampling | None = None
    ) -> None:
        assert spec.output_rate == parts.voice.rate, (spec.output_rate, parts.voice.rate)
        self.spec = spec
        self._parts = parts
        self._sampling = sampling or Sampling()

    # -- hearing ---------------------------------------------------------------

    def open(self, setup: SessionSetup) -> Caller:
        fresh = np.zeros(self._parts.vad.state_size, np.float32)
        return Caller(setup, fresh, self._parts.chat.detokenizer())

    def configure(self, state: Caller, setup: SessionSetup) -> None:
        state.configure(setup)

    def hear(self, batch: Sequence[tuple[Caller, bytes]]) -> list[Heard]:
        """Consume caller audio of any length per session; voice activity runs across all of them at once."""
        callers = [caller for caller, _ in batch]
        frames = [caller.frames(pcm) for caller, pcm in batch]
        detecting = [i for i, caller in enumerate(callers) if caller.detects and len(frames[i])]
        spoken = self._probabilities(
            [callers[i] for i in detecting], [frames[i] for i in detecting]
        )
        found: list[Sequence[float]] = [()] * len(batch)
        for index, probabilities in zip(detecting, spoken, strict=True):
            found[index] = probabilities
        heard = []
        for caller, own, probabilities in zip(callers, frames, found, strict=True):
            signals = caller.judge(own, probabilities)
            heard.append(Heard(signals) if signals else _NOTHING)
        return heard

    def _probabilities(self, callers: list[Caller], frames: list[Samples]) -> list[Sequence[float]]:
        """Per caller the speech probability of each of its frames, one model call per frame index.

        Callers are ordered by how many frames they have, so those with a frame at an index are a prefix.
        """
        order = sorted(range(len(callers)), key=lambda i: -len(frames[i]))
        found: list[list[float]] = [[] for _ in callers]
        if not order:
            return list(found)
        states = np.stack([callers[i].vad_state for i in order])
        active = len(order)
        for index in range(len(frames[order[0]])):
            while len(frames[order[active - 1]]) <= index:
                active -= 1
            stacked = np.stack([frames[i][index] for i in order[:active]])
            spoken, states[:active] = self._parts.vad.probabilities(stacked, states[:active])
            for i, probability in zip(order, spoken.tolist(), strict=False):
                found[i].append(probability)
        for i, state in zip(order, states, strict=True):
            callers[i].vad_state = state
        return list(found)

    # -- turns -----------------------------------------------------------------

    def utterance(self, state: Caller, *, cut: bool) -> Utterance | None:
        """The oldest turn that was not cut yet; turns that ended are kept until they are.

        Audio that `hear` is still working on is not part of it. Where there is no turn, cutting gives
        the audio still kept (a manual commit beside turn detection), and looking gives None.
        """
        return state.cut() if cut else state.current()

    def clear(self, state: Caller) -> None:
        state.clear()

    def transcribe(self, utterance: Utterance) -> str:
        return self._parts.transcriber.transcribe(np.frombuffer(utterance.pcm, np.float32))

    def scored(self, utterance: Utterance) -> Transcript:
        transcriber = self._parts.transcriber
        if isinstance(transcriber, ScoringTranscriber):
            return transcriber.scored(np.frombuffer(utterance.pcm, np.float32))
        return Transcript(self.transcribe(utterance))

    def weigh(self, state: Caller, utterance: Utterance, words: str) -> None:
        eagerness = state.setup.turn_detection.eagerness
        if eagerness is None or (is_backchannel(words) and state.dismiss(utterance.voiced_ms)):
            return
        fade = final_fade(np.frombuffer(utterance.pcm, np.float32))
        needed_ms = silence_ms(completeness(words, fade), eagerness)
        state.settle(utterance.voiced_ms, needed_ms)

    # -- answering -------------------------------------------------------------

    def prompt(
        self, state: Caller, instructions: str, messages: Sequence[Message]
    ) -> list[Segment]:
        chat = self._parts.chat
        turns = [
            Segment(chat.message(m, self._sampled(state, m)), "message", m.item_id)
            for m in messages
        ]
        return [Segment(chat.header(instructions), "header"), *turns, Segment(chat.cue, "cue")]

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
