"""The contract of an interaction model: what a tick appends, what it decodes, how voice comes out.

Neutral types only: no vLLM, no torch, no event names. Where each method runs is part of the contract, because a slow
method in the wrong place stalls every call:

    loop    the event loop; microseconds
    pool    a thread of the CPU pool; milliseconds; must not share mutable state between sessions
    engine  the one engine thread; nothing here runs there
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from engine.kv_policy import KvPolicy
from engine.models.spec import Cost as Cost
from engine.models.spec import ModelSpec as ModelSpec
from engine.models.tools import CallMark, Then, Tool, ToolChoice
from engine.speech.denoise import NoiseKind
from engine.speech.ports import Transcript
from engine.work import Feature, Sampling

Eagerness = Literal["low", "medium", "high", "auto"]


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """When speech counts as begun and as ended. None of it applies where `enabled` is False (push to talk)."""

    enabled: bool = True
    threshold: float = 0.5  # speech probability, 0–1
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    idle_timeout_ms: int | None = None
    # The words decide how long the silence must be, instead of `silence_duration_ms`; None: they do not.
    eagerness: Eagerness | None = None


@dataclass(frozen=True, slots=True)
class SessionSetup:
    """The session's settings that a model looks at."""

    instructions: str = ""
    turn_detection: TurnDetection = field(default_factory=TurnDetection)
    input_rate: int = 24_000
    language: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    voice: str = ""
    policy: KvPolicy | None = None  # None: the deployment's
    noise_reduction: NoiseKind | None = None  # before voice activity and transcription
    scores_words: bool = False  # the client wants to know how sure the transcriber is of each token


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The caller began to speak, `at_ms` into all audio ever pushed (prefix padding included)."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class SpeechPaused:
    """Silence long enough to start transcribing on speculation, too short to end the turn."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """The turn is over; speech ended `at_ms` into all audio ever pushed."""

    at_ms: int
    decided_ms: int = 0  # where it was decided: `at_ms` and the silence after it


@dataclass(frozen=True, slots=True)
class IdleTimeout:
    """Nobody has spoken for `idle_timeout_ms` since the last response ended."""

    start_ms: int
    at_ms: int


Signal = SpeechStarted | SpeechPaused | SpeechStopped | IdleTimeout


class AudioChunk(msgspec.Struct, frozen=True, gc=False):
    """One tick of audio as tokens that enter the context, and how many tokens to decode after them."""

    token_ids: tuple[int, ...]
    decode: int
    pcm: bytes = b""  # for backends that take the sound itself, at the model's own rate
    features: tuple[Feature, ...] = ()  # what stands behind the placeholders among token_ids
    # Frame-locked models only:
    header: int = 0  # so many tokens at the start are the call's header, which no window drops
    stop_token_ids: tuple[int, ...] = ()
    sampling: Sampling = Sampling()
    replaces: int | None = 0  # so many tokens at the context's end; None: all, it starts over


class Heard(msgspec.Struct, frozen=True, gc=False):
    """What one tick of audio led to."""

    signals: tuple[Signal, ...] = ()
    chunk: AudioChunk | None = (
        None  # frame-locked models: every tick; hearing ones: when enough was said
    )


@dataclass(frozen=True, slots=True)
class Utterance:
    """Caller audio cut out for transcription."""

    pcm: bytes  # float32 mono, little endian, at the transcriber's rate
    start_ms: int
    stop_ms: int
    voiced_ms: (
        int  # how much of it the detector called speech; grows when speech resumes after a pause
    )

    @property
    def duration_s(self) -> float:
        return (self.stop_ms - self.start_ms) / 1000


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of the conversation as the model must see it."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    item_id: str = ""
    call: bool = False  # of the assistant's: a function call, as JSON text, and no words


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens that a window may only drop whole: the header, one message, or the cue to speak."""

    token_ids: tuple[int, ...]
    kind: Literal["header", "message", "cue"]
    item_id: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a turn-based model is to go on from."""

    instructions: str
    messages: Sequence[Message]
    tools: Sequence[Tool] = ()  # that it is told of
    callable_tools: Sequence[Tool] = ()  # of those, what a call may be of; none: all
    then: Then = "answer"


class TickOutput(msgspec.Struct, frozen=True, gc=False):
    """What a chunk of tokens means."""

    text: str = ""
    pcm: bytes = b""  # frame-locked models: the output frame; empty when silent
    speaking: bool = True  # frame-locked models: False while listening
    turn_over: bool = False  # models that write: nothing of this turn follows


class InteractionModel(Protocol):
    """One model family. `state` is whatever `open` returned; the engine never looks inside."""

    spec: ModelSpec

    def open(self, setup: SessionSetup) -> Any:
        """A new session's state. [loop]"""
        ...

    def configure(self, state: Any, setup: SessionSetup) -> None:
        """The session's settings changed. [loop, never while `hear` runs for this session]"""
        ...

    def hear(self, batch: Sequence[tuple[Any, bytes]]) -> list[Heard]:
        """Consume one tick of pcm16 per session, all sessions in one call. [pool]"""
        ...

    def utterance(self, state: Any, *, cut: bool) -> Utterance | None:
        """The audio of the current turn; `cut` ends the turn and clears the buffer. None if there is none. [loop]"""
        ...

    def clear(self, state: Any) -> None:
        """Forget buffered caller audio and any speech under way. [loop]"""
        ...

    def transcribe(self, utterance: Utterance) -> str:
        """What was said; empty if nothing intelligible was. [pool]"""
        ...

    def weigh(self, state: Any, utterance: Utterance, words: str) -> None:
        """The turn so far, transcribed in a pause: judge how much more silence ends it. [pool]

        Asked only where the session's turn detection has an eagerness.
        """
        ...

    def prompt(
        self, state: Any, instructions: str, messages: Sequence[Message]
    ) -> Sequence[Segment]:
        """The whole context for an answer: header, then messages, then the cue to speak. [pool]"""
        ...

    def decode(self, state: Any, token_ids: Sequence[int], pcm: bytes = b"") -> TickOutput:
        """What these tokens mean, incrementally; `pcm` is what the backend sounded with them. [loop]"""
        ...

    def remember(self, state: Any, text: str, token_ids: Sequence[int]) -> None:
        """An answer ended: `prompt` spells an assistant message of this text with these sampled tokens. [loop]

        By text, because the engine never learns the item's id. As far as the message agrees (it may have been
        truncated), `prompt` uses these tokens: tokenising again may give others, and then the resident context could
        not be kept. Bounded by the model.
        """
        ...

    def calls(
        self, messages: Sequence[Message], tools: Sequence[Tool], choice: ToolChoice
    ) -> Sequence[str]:
        """The JSON schema of each function call that this answer must be; none: it answers in words. [loop]"""
        ...

    def begin(self, state: Any) -> None:
        """A new response starts: reset incremental decoding, stop waiting for the caller. [loop]"""
        ...

    def ended(self, state: Any, playback_ms: int) -> None:
        """The response is over and will have been heard in `playback_ms`: idle time counts from there. [loop]"""
        ...

    def speak(self, text: str, voice: str, speed: float) -> bytes:
        """pcm16 at `spec.output_rate` for one clause, silence trimmed. [pool]"""
        ...

    def sampling(self) -> Sampling:
        """How answers are drawn."""
        ...


class TurnModel(InteractionModel, Protocol):
    """A model that listens, then answers, in words or with calls of functions."""

    @property
    def call_mark(self) -> CallMark | None:
        """How the model itself opens a call in the middle of its words; None: it does not."""
        ...

    def turn_prompt(self, state: Any, asked: Prompt) -> Sequence[Segment]:
        """The whole context for an answer, or for a part of one. [pool]"""
        ...


@runtime_checkable
class ScoringModel(Protocol):
    """A model that can say how sure it is of what it understood."""

    def scored(self, utterance: Utterance) -> Transcript:
        """As `transcribe`; with its tokens, where the transcriber knows their probabilities. [pool]"""
        ...


class PromptedModel(InteractionModel, Protocol):
    """A frame-locked model whose calls begin with a prompt."""

    def opening(self, state: Any) -> AudioChunk | None:
        """What enters the context before the first frame, as the session's settings are now; None: nothing. [loop]"""
        ...


class HearingModel(TurnModel, Protocol):
    """A turn-based model that hears for itself: `hear` gives chunks of the caller's turn as it is spoken.

    The first chunk of a turn opens it (role and all), and `finish` gives what closes it; together they are the turn's
    whole message. Every chunk is fed before the signals that come with it are acted on.
    """

    def finish(self, state: Any) -> AudioChunk:
        """The turn is over: audio of it that no chunk had, and its end. Comes before `utterance(cut=True)`. [loop]"""
        ...

    # What opens and closes a turn of the caller's, around what it says or shows.
    turn_around: tuple[tuple[int, ...], tuple[int, ...]]

    def bridge(self, tail: Sequence[int]) -> tuple[int, ...]:
        """What must come between a context that ends with `tail` and the caller's next turn. [loop]"""
        ...
