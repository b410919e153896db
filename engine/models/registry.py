"""Builds the model that a deployment names. The only place that knows every part by its id."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from engine.bystander import Bystander
from engine.models import minicpmo, voxtral
from engine.models.audio_chat import AudioChatMl
from engine.models.audio_turns import NoTranscriber, hearing_model
from engine.models.base import InteractionModel, ModelSpec
from engine.models.cascade import Cascade, CascadeParts
from engine.models.chat import ChatFormat
from engine.models.chatml import PLAIN_PERSONA, SMOLLM2_PERSONA, ChatMl
from engine.models.families import family_of, read_config, unsupported, windows_of
from engine.models.hub import fetch_text_files, is_hub_id
from engine.models.moshi import (
    MoshiModel,
    MoshiPrompts,
    MoshiVoice,
    read_encoder,
    read_spelling,
    tiny_encoder,
    tiny_spelling,
)
from engine.models.moshi_names import TINY_RANDOM_ID, moshi_location
from engine.models.sim import SimChat, SimDuplex, SimDuplexSettings
from engine.models.tekken import Tekken
from engine.models.turn_hearing import TurnHearing
from engine.models.voxtral import KvSpace
from engine.moshi_adapter.checkpoint import Checkpoint
from engine.moshi_adapter.voices import voice_files
from engine.speech.hibari import HibariVoice
from engine.speech.moonshine import MoonshineTranscriber
from engine.speech.ports import Transcriber, Voice, VoiceActivity
from engine.speech.silero import SileroVad
from engine.speech.sim import DurationTranscriber, EnergyVad, ToneVoice
from engine.weights.paths import EmbeddedFiles, embedded_dir
from engine.work import Sampling

EMBEDDED_LLM = "embedded:smollm2-135m"
EMBEDDED_VAD = "embedded:silero-vad"
EMBEDDED_STT = "embedded:moonshine-tiny-en"
EMBEDDED_TTS = "embedded:hibari"
NONE = "none"  # as `stt`, and beside a frame-locked model as `vad`: nobody

_CALLER_RATE = 24_000  # Hz, unless a session says otherwise
_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model, and from which parts. Every part is an id, a folder, or (the LLM) a hub id."""

    id: str = "embedded"  # "embedded", "sim", "sim-duplex"; anything else is the LLM of a cascade
    llm: str = EMBEDDED_LLM
    vad: str = EMBEDDED_VAD
    stt: str = EMBEDDED_STT
    tts: str = EMBEDDED_TTS
    public_id: str = ""  # the name that clients see; empty: `id`
    tick_ms: int = 160
    decode_per_tick: int = 4
    kv_space: KvSpace = field(default_factory=KvSpace)  # that a transcriber's context may fill
    image_tokens: int = 0  # of an image, at most, for models that see; 0: none is taken
    # sim-duplex only. Its `llm` is simulated, or a real engine computes for it what its tokens cost.
    prefill_per_tick: int = 2
    moshi: MoshiVoice = field(default_factory=MoshiVoice)  # Moshi only
    moshi_prompted: bool = False  # its calls begin with a role and a voice
    moshi_voices: str = ""  # folder of its voices; empty: it has its own
    embedded: Path | None = None  # folder of the embedded weights; None: the user's cache


def build_model(settings: ModelSettings) -> InteractionModel:
    """The model that `settings` name, its parts loaded.

    Raises:
        ValueError: an id is unknown, or a folder is not what it should be.
        SpeechUnavailable: a package or a file that a speech part needs is missing.
    """
    if settings.id == "sim-duplex":
        return SimDuplex(
            SimDuplexSettings(
                id=settings.public_id or settings.id,
                tick_ms=settings.tick_ms,
                prefill_per_tick=settings.prefill_per_tick,
                decode_per_tick=settings.decode_per_tick,
            )
        )
    moshi = moshi_location(settings.id)
    if moshi is not None:
        return _moshi(settings, moshi)
    if settings.id == "sim":
        parts = CascadeParts(EnergyVad(), DurationTranscriber(), SimChat(), ToneVoice())
        return Cascade(_spec(settings, parts, "simulated"), parts)
    hearing = _hearing(settings)
    if hearing is not None:
        return hearing
    demo = _llm_id(settings) == EMBEDDED_LLM
    parts = CascadeParts(
        vad=_vad(settings), transcriber=_stt(settings), chat=_chat(settings), voice=_tts(settings)
    )
    # The small model was measured under greedy decoding; larger ones are tuned for a little chance.
    sampling = Sampling() if demo else Sampling(temperature=0.7, top_p=0.9)
    return Cascade(_spec(settings, parts, "demo" if demo else ""), parts, sampling)


def build_bystander(settings: ModelSettings) -> Bystander | None:
    """What tells clients of their caller beside a frame-locked model; None with neither `vad` nor `stt`.

    Raises:
        ValueError, SpeechUnavailable: as `build_model`.
    """
    detects, transcribes = settings.vad != NONE, settings.stt != NONE
    if not detects and not transcribes:
        return None
    vad = _vad(settings) if detects else EnergyVad()  # which is then never asked
    return Bystander(TurnHearing(vad, _stt(settings)), detects, transcribes)


def _moshi(settings: ModelSettings, location: str) -> MoshiModel:
    name, prompts = settings.public_id or settings.id, None
    voices = tuple(voice_files(settings.moshi_voices))
    if settings.id == TINY_RANDOM_ID:
        if settings.moshi_prompted:
            prompts = MoshiPrompts(tiny_encoder, voices)
        quality = "random weights, for tests"
        return MoshiModel(name, tiny_spelling(), settings.moshi, prompts=prompts, quality=quality)
    tokenizer = Checkpoint(location).file("tokenizer")
    if settings.moshi_prompted:
        prompts = MoshiPrompts(read_encoder(tokenizer), voices)
    return MoshiModel(name, read_spelling(tokenizer), settings.moshi, prompts=prompts)


def _hearing(settings: ModelSettings) -> InteractionModel | None:
    """The model, if it hears for itself; None for text models.

    Raises:
        ValueError: it hears, but in a way that nothing here can feed.
    """
    if _llm_id(settings) in (EMBEDDED_LLM, "sim"):
        return None
    folder = _text_folder(settings)
    config = read_config(folder)
    if reason := unsupported(config, _llm_id(settings)):
        raise ValueError(reason)
    family = family_of(config)
    if family is None:
        return None
    if family.architecture == voxtral.ARCHITECTURE:
        return _voxtral(settings, folder)
    if family.architecture == minicpmo.ARCHITECTURE:
        if settings.tick_ms != minicpmo.TICK_MS:
            raise ValueError(f"{family.name} hears whole seconds: tick_ms must be 1000")
        units = minicpmo.UnitTokens(folder)
        audio = minicpmo.audio_format(config, units.control)
        images = minicpmo.image_format(config, units.control) if settings.image_tokens else None
        name = settings.public_id or settings.id
        return minicpmo.MiniCpmO(name, units, audio, _tts(settings), images)
    chat = AudioChatMl(folder)
    parts = CascadeParts(_vad(settings), _stt(settings), chat, _tts(settings))
    spec = replace(_spec(settings, parts, ""), hears_audio=True)
    return hearing_model(family, config, spec, parts, chat, settings.image_tokens)


def _voxtral(settings: ModelSettings, folder: Path) -> voxtral.VoxtralRealtime:
    if settings.tick_ms != voxtral.TICK_MS:
        raise ValueError("Voxtral realtime hears 80 ms at a time: tick_ms must be 80")
    name = settings.public_id or settings.id
    return voxtral.VoxtralRealtime(name, Tekken(folder), windows_of(folder), settings.kv_space)


def is_mistral(settings: ModelSettings) -> bool:
    """The engine must load the language model in Mistral's own format.

    Raises:
        ValueError: as `llm_location`, or its files cannot be read.
    """
    if llm_location(settings) is None or _llm_id(settings) == EMBEDDED_LLM:
        return False
    family = family_of(read_config(_text_folder(settings)))
    return family is not None and family.architecture == voxtral.ARCHITECTURE


def llm_location(settings: ModelSettings) -> str | None:
    """What the engine must load the language model from: a folder or a hub id; None if it is simulated.

    Raises:
        ValueError: the id is neither known, nor a folder, nor the form of a hub id.
    """
    simulated = settings.id == "sim-duplex" and settings.llm in ("sim", EMBEDDED_LLM)
    if settings.id == "sim" or simulated:
        return None
    name = _llm_id(settings)
    if name == EMBEDDED_LLM:
        return str(_files(settings).llm)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(folder)
    if is_hub_id(name):
        return name
    raise ValueError(
        _unknown("model", name, ["embedded", "sim", "sim-duplex", EMBEDDED_LLM], "hub id")
    )


def _llm_id(settings: ModelSettings) -> str:
    return settings.llm if settings.id in ("embedded", "sim-duplex") else settings.id


def _files(settings: ModelSettings) -> EmbeddedFiles:
    return EmbeddedFiles(settings.embedded or embedded_dir())


def _spec(settings: ModelSettings, parts: CascadeParts, quality: str) -> ModelSpec:
    return ModelSpec(
        id=settings.public_id or settings.id,
        tick_ms=settings.tick_ms,
        input_rate=_CALLER_RATE,
        output_rate=parts.voice.rate,
        decode_per_tick=settings.decode_per_tick,
        decides_turns=False,
        stop_token_ids=parts.chat.stop_token_ids,
        quality=quality,
        header_tokens=len(parts.chat.header("")),
    )


def _chat(settings: ModelSettings) -> ChatFormat:
    name = _llm_id(settings)
    if name == "sim":
        return SimChat()
    if name == EMBEDDED_LLM:
        return ChatMl(_files(settings).llm, SMOLLM2_PERSONA)
    return ChatMl(_text_folder(settings), PLAIN_PERSONA)


def _text_folder(settings: ModelSettings) -> Path:
    """Where the language model's tokenizer and configuration are."""
    location = llm_location(settings)
    assert location is not None, settings.id
    folder = Path(location)
    return folder if folder.is_dir() else fetch_text_files(location)


def _vad(settings: ModelSettings) -> VoiceActivity:
    known: dict[str, Callable[[], VoiceActivity]] = {
        EMBEDDED_VAD: lambda: SileroVad(_files(settings).vad),
        "sim": EnergyVad,
    }
    return _choose("vad", settings.vad, known, lambda path: SileroVad(_silero_file(path)))


def _stt(settings: ModelSettings) -> Transcriber:
    known: dict[str, Callable[[], Transcriber]] = {
        EMBEDDED_STT: lambda: MoonshineTranscriber(_files(settings).transcriber),
        "sim": DurationTranscriber,
        NONE: NoTranscriber,
    }
    return _choose("stt", settings.stt, known, MoonshineTranscriber)


def _tts(settings: ModelSettings) -> Voice:
    known: dict[str, Callable[[], Voice]] = {EMBEDDED_TTS: HibariVoice, "sim": ToneVoice}
    return _choose("tts", settings.tts, known, None)


def _choose(
    stage: str,
    name: str,
    known: Mapping[str, Callable[[], _Part]],
    from_folder: Callable[[Path], _Part] | None,
) -> _Part:
    """The part called `name`, or the one in the folder `name`."""
    if name in known:
        return known[name]()
    folder = Path(name).expanduser()
    if from_folder is not None and folder.exists():
        return from_folder(folder)
    raise ValueError(_unknown(stage, name, list(known), "folder" if from_folder else ""))


def _unknown(stage: str, name: str, known: list[str], other: str) -> str:
    """One line that says what would have been right."""
    places = {"": "", "folder": " or a folder", "hub id": ", a model folder or a hub id"}[other]
    return f"unknown {stage} {name!r}: expected {', '.join(known)}{places}"


def _silero_file(path: Path) -> Path:
    """The ONNX file itself, or the one in a folder of embedded weights."""
    return EmbeddedFiles(path).vad if path.is_dir() else path
