"""A session's settings: what is in force, and how a session.update changes them — wholly or not at all."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from protocol.audio_format import PCM_RATE, AudioFormat
from protocol.errors import ProtocolError, invalid_value
from protocol.session_patch import (
    AudioPatch,
    FormatPatch,
    FunctionChoice,
    InputPatch,
    MaxOutputTokens,
    Modality,
    OutputPatch,
    Prompt,
    Retention,
    SessionPatch,
    Tool,
    Tracing,
    TranscriptionPatch,
    TurnDetectionPatch,
    VoiceId,
)
from protocol.validation import checked

SessionType = Literal["realtime", "transcription"]


class TurnDetection(msgspec.Struct, frozen=True, kw_only=True):
    """When a turn begins and ends, and what the server does then."""

    type: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    idle_timeout_ms: int | None = None
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True


class Transcription(msgspec.Struct, frozen=True, kw_only=True):
    """The client wants to read what the caller said. Exactly the keys the echo may have: pipecat dies of any other."""

    model: str
    language: str | None = None
    prompt: str | None = None


class SessionDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a deployment gives every session to begin with, and its bounds."""

    instructions: str = ""
    voice: str = "alloy"  # also stands in for voices the deployment does not have
    voices: tuple[str, ...] = ("alloy",)
    turn_detection: TurnDetection | None = TurnDetection()  # None: push to talk
    transcription_model: str = "default"  # named in the echo when the client names none
    type: SessionType = "realtime"
    decides_turns: bool = False  # a frame-locked model: it alone opens and interrupts its answers
    max_audio_bytes: int = 3_000_000  # of audio kept per call for clients that read items back
    keeps_caller: bool = True  # False: nobody tells turns, so the caller's audio is never an item's
    sees_images: bool = False  # the model takes images in user items
    max_items: int = 2000  # conversation items remembered; the oldest go first
    max_out_of_band: int = 8  # answers beside the conversation at a time
    max_deferred: int = 128  # items waiting for the answer in progress


class SessionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in force."""

    type: SessionType
    instructions: str
    voice: str
    turn_detection: TurnDetection | None
    modality: Modality = "audio"
    tools: tuple[Tool, ...] = ()
    tool_choice: str | FunctionChoice = "auto"
    parallel_tool_calls: bool = (
        True  # in force, but not echoed: the recorded sessions have no such key
    )
    max_output_tokens: MaxOutputTokens = "inf"
    tracing: str | Tracing | None = None
    truncation: str | Retention = "auto"
    prompt: Prompt | None = None
    include: list[str] | None = None
    input_format: AudioFormat = AudioFormat.PCM
    output_format: AudioFormat = AudioFormat.PCM
    transcription: Transcription | None = None
    noise_reduction: Literal["near_field", "far_field"] | None = None
    speed: float = 1.0


# Settings taken over as they come, and what null makes of them.
_PLAIN: dict[str, Any] = {
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "max_output_tokens": "inf",
    "tracing": None,
    "truncation": "auto",
    "prompt": None,
    "include": None,
}

_Changes = dict[str, Any] | ProtocolError


def initial(defaults: SessionDefaults) -> SessionConfig:
    """The settings of a session nobody has updated yet."""
    return SessionConfig(
        type=defaults.type,
        instructions=defaults.instructions,
        voice=defaults.voice,
        turn_detection=defaults.turn_detection,
    )


def merged(
    config: SessionConfig, raw: dict[str, Any], defaults: SessionDefaults, *, voice_locked: bool
) -> SessionConfig | ProtocolError:
    """`config` with a session.update's `session` merged in: absent keeps, null clears."""
    patch = checked(raw, SessionPatch, "session")
    if isinstance(patch, ProtocolError):
        return patch
    changes = _plain_changes(patch, defaults)
    audio = patch.audio or AudioPatch()
    for part in (
        _input_changes(config, audio.input or InputPatch(), defaults),
        _output_changes(config, audio.output or OutputPatch(), defaults, voice_locked),
    ):
        if isinstance(part, ProtocolError):
            return part
        changes |= part
    return msgspec.structs.replace(config, **changes)


def known_voice(voice: str | VoiceId | None, defaults: SessionDefaults) -> str:
    """The voice asked for, or the default one: clients hard-code voices that only OpenAI has."""
    name = voice.id if isinstance(voice, VoiceId) else voice
    return name if name is not None and name in defaults.voices else defaults.voice


def chosen_format(
    current: AudioFormat, patch: FormatPatch | None, param: str
) -> AudioFormat | ProtocolError:
    """The audio format asked for; the API has one pcm rate and writes no rate for the others."""
    if patch is None:
        return AudioFormat.PCM
    chosen = AudioFormat(patch.type) if patch.type else current
    if chosen is AudioFormat.PCM and patch.rate not in (UNSET, None, PCM_RATE):
        return invalid_value(
            f"Invalid value: {patch.rate}. The rate of audio/pcm is {PCM_RATE}.", f"{param}.rate"
        )
    return chosen


def _plain_changes(patch: SessionPatch, defaults: SessionDefaults) -> dict[str, Any]:
    changes: dict[str, Any] = {"type": patch.type}
    for name, cleared in _PLAIN.items():
        value = getattr(patch, name)
        if value is not UNSET:
            changes[name] = cleared if value is None else value
    if patch.instructions is not UNSET:
        changes["instructions"] = patch.instructions or defaults.instructions
    if patch.output_modalities is not UNSET:
        changes["modality"] = patch.output_modalities[0] if patch.output_modalities else "audio"
    if patch.tools is not UNSET:
        changes["tools"] = tuple(patch.tools or ())
    return changes


def _input_changes(config: SessionConfig, patch: InputPatch, defaults: SessionDefaults) -> _Changes:
    changes: dict[str, Any] = {}
    if patch.format is not UNSET:
        chosen = chosen_format(config.input_format, patch.format, "session.audio.input.format")
        if isinstance(chosen, ProtocolError):
            return chosen
        changes["input_format"] = chosen
    if patch.transcription is not UNSET:
        changes["transcription"] = _transcription(
            config.transcription, patch.transcription, defaults
        )
    if patch.noise_reduction is not UNSET:
        wanted = patch.noise_reduction
        kept = config.noise_reduction or "near_field"
        changes["noise_reduction"] = None if wanted is None else wanted.type or kept
    if patch.turn_detection is not UNSET:
        changes["turn_detection"] = _turn_detection(
            config.turn_detection, patch.turn_detection, defaults
        )
    return changes


def _output_changes(
    config: SessionConfig, patch: OutputPatch, defaults: SessionDefaults, voice_locked: bool
) -> _Changes:
    changes: dict[str, Any] = {}
    if patch.format is not UNSET:
        chosen = chosen_format(config.output_format, patch.format, "session.audio.output.format")
        if isinstance(chosen, ProtocolError):
            return chosen
        changes["output_format"] = chosen
    if patch.speed is not UNSET:
        changes["speed"] = 1.0 if patch.speed is None else patch.speed
    if patch.voice is not UNSET and not (patch.voice is None and voice_locked):
        changes["voice"] = known_voice(patch.voice, defaults)
        if voice_locked and changes["voice"] != config.voice:
            return ProtocolError(
                "cannot_update_voice",
                "The voice cannot change once the assistant has been heard.",
                "session.audio.output.voice",
            )
    return changes


def _transcription(
    current: Transcription | None, patch: TranscriptionPatch | None, defaults: SessionDefaults
) -> Transcription | None:
    if patch is None:
        return None
    base = current or Transcription(model=defaults.transcription_model)
    return Transcription(
        model=_kept(base.model, patch.model, defaults.transcription_model),
        language=_kept(base.language, patch.language, None),
        prompt=_kept(base.prompt, patch.prompt, None),
    )


def _turn_detection(
    current: TurnDetection | None, patch: TurnDetectionPatch | None, defaults: SessionDefaults
) -> TurnDetection | None:
    """A partial patch adjusts what is in force and never switches it off; another type starts from its defaults."""
    if patch is None:
        return None
    fresh = defaults.turn_detection or TurnDetection()
    base = current or fresh
    if patch.type is not UNSET and patch.type != base.type:
        base = msgspec.structs.replace(fresh, type=patch.type)
    changes = {
        name: _kept(getattr(base, name), getattr(patch, name), getattr(fresh, name))
        for name in TurnDetectionPatch.__struct_fields__
        if name != "type"
    }
    return msgspec.structs.replace(base, **changes)


def _kept(current: Any, value: Any | UnsetType, cleared: Any) -> Any:
    if value is UNSET:
        return current
    return cleared if value is None else value
