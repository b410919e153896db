"""What a client may say about a session or a response: every key optional, null meaning "back to the default".

Types and ranges are declared here and checked by msgspec; keys not named here are ignored, because clients send those
of older and newer API versions.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

Milliseconds = Annotated[int, Meta(ge=0, le=3_600_000)]
MaxOutputTokens = Annotated[int, Meta(ge=1, le=4096)] | Literal["inf"]
Modality = Literal["audio", "text"]
Include = Literal["item.input_audio_transcription.logprobs"]
LOGPROBS: Include = "item.input_audio_transcription.logprobs"
OneModality = Annotated[list[Modality], Meta(min_length=1, max_length=1)]


class _Echoed(msgspec.Struct):
    """Null is as good as absent, and is not echoed: clients' schemas say "optional" where they mean "no null"."""

    def __post_init__(self) -> None:
        for name, default in zip(
            reversed(self.__struct_fields__), reversed(self.__struct_defaults__), strict=False
        ):
            if getattr(self, name) is None:
                setattr(self, name, default)


class FormatPatch(msgspec.Struct):
    """`{"type": "audio/pcm", "rate": 24000}` and its G.711 siblings."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] | UnsetType | None = UNSET
    rate: int | UnsetType | None = UNSET


class VoiceId(msgspec.Struct):
    """The object form of a voice."""

    id: str


class TranscriptionPatch(msgspec.Struct):
    """Which words events the client wants, and hints for the transcriber."""

    model: str | UnsetType | None = UNSET
    language: str | UnsetType | None = UNSET
    prompt: str | UnsetType | None = UNSET


class TurnDetectionPatch(msgspec.Struct):
    """Both kinds of turn detection in one: what does not belong to the kind in force is ignored."""

    type: Literal["server_vad", "semantic_vad"] | UnsetType = UNSET
    threshold: Annotated[float, Meta(ge=0, le=1)] | UnsetType | None = UNSET
    prefix_padding_ms: Milliseconds | UnsetType | None = UNSET
    silence_duration_ms: Milliseconds | UnsetType | None = UNSET
    idle_timeout_ms: Milliseconds | UnsetType | None = UNSET
    eagerness: Literal["low", "medium", "high", "auto"] | UnsetType | None = UNSET
    create_response: bool | UnsetType | None = UNSET
    interrupt_response: bool | UnsetType | None = UNSET


class NoiseReduction(msgspec.Struct):
    """What kind of microphone the caller has; a kind is taken to be meant where only a strength is given."""

    type: Literal["near_field", "far_field"] | UnsetType | None = UNSET


class InputPatch(msgspec.Struct):
    """`session.audio.input`."""

    format: FormatPatch | UnsetType | None = UNSET
    transcription: TranscriptionPatch | UnsetType | None = UNSET
    noise_reduction: NoiseReduction | UnsetType | None = UNSET
    turn_detection: TurnDetectionPatch | UnsetType | None = UNSET


class OutputPatch(msgspec.Struct):
    """`session.audio.output` and `response.audio.output`."""

    format: FormatPatch | UnsetType | None = UNSET
    voice: str | VoiceId | UnsetType | None = UNSET
    speed: Annotated[float, Meta(ge=0.25, le=1.5)] | UnsetType | None = UNSET


class AudioPatch(msgspec.Struct):
    """`session.audio` and `response.audio`."""

    input: InputPatch | UnsetType | None = UNSET
    output: OutputPatch | UnsetType | None = UNSET


class Tool(_Echoed, kw_only=True):
    """A function the model may call."""

    type: Literal["function"] | None = "function"
    name: Annotated[str, Meta(min_length=1)]
    description: str | UnsetType | None = UNSET
    parameters: dict[str, Any] | UnsetType | None = UNSET


class FunctionChoice(msgspec.Struct, kw_only=True):
    """This function must be called."""

    type: Literal["function"] = "function"
    name: str


ToolChoice = Literal["auto", "none", "required"] | FunctionChoice


class TokenLimits(_Echoed):
    """Of the conversation."""

    post_instructions: Annotated[int, Meta(ge=1)] | UnsetType | None = UNSET


class Retention(_Echoed):
    """How much of the conversation survives when the context is full."""

    type: Literal["retention_ratio"]
    retention_ratio: Annotated[float, Meta(ge=0, le=1)]
    token_limits: TokenLimits | UnsetType | None = UNSET


class Tracing(_Echoed):
    """Accepted and echoed; nothing is traced."""

    workflow_name: str | UnsetType | None = UNSET
    group_id: str | UnsetType | None = UNSET
    metadata: dict[str, Any] | UnsetType | None = UNSET


class Prompt(_Echoed):
    """A stored prompt; accepted and echoed, since this server stores none."""

    id: str
    version: str | UnsetType | None = UNSET
    variables: dict[str, Any] | UnsetType | None = UNSET


class SessionPatch(msgspec.Struct):
    """The `session` of a session.update."""

    type: Literal["realtime", "transcription"]
    output_modalities: OneModality | UnsetType | None = UNSET
    instructions: str | UnsetType | None = UNSET
    tools: list[Tool] | UnsetType | None = UNSET
    tool_choice: ToolChoice | UnsetType | None = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    max_output_tokens: MaxOutputTokens | UnsetType | None = UNSET
    tracing: Literal["auto"] | Tracing | UnsetType | None = UNSET
    truncation: Literal["auto", "disabled"] | Retention | UnsetType | None = UNSET
    prompt: Prompt | UnsetType | None = UNSET
    include: list[Include] | UnsetType | None = UNSET
    audio: AudioPatch | UnsetType | None = UNSET


class ResponsePatch(msgspec.Struct):
    """The `response` of a response.create: what this one answer does differently from the session."""

    output_modalities: OneModality | UnsetType | None = UNSET
    instructions: str | UnsetType | None = UNSET
    tools: list[Tool] | UnsetType | None = UNSET
    tool_choice: ToolChoice | UnsetType | None = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    max_output_tokens: MaxOutputTokens | UnsetType | None = UNSET
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | UnsetType | None = UNSET
    conversation: str | UnsetType | None = UNSET
    input: list[dict[str, Any]] | UnsetType | None = UNSET
    audio: AudioPatch | UnsetType | None = UNSET
