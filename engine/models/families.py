"""The interaction models that are supported, by the architecture name in their config.json, and how far each was tried.

`metronome models list` prints this table, and `docs/models.md` is written from it. Nothing here was run with real
weights: no checkpoint was within reach. "random weights" means the real engine, the real layout, meaningless answers.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.models.audio_format import AudioFormat
from engine.models.image_format import ImageFormat
from engine.models.qwen2_audio import audio_format as qwen2_audio_format
from engine.models.qwen_omni import (
    audio_format_2_5,
    audio_format_3,
    image_format_2_5,
    image_format_3,
)
from engine.models.ultravox import audio_format as ultravox_format

BuildFormat = Callable[[Mapping[str, Any], Callable[[str], int]], AudioFormat]
BuildImages = Callable[[Mapping[str, Any], Path, Callable[[str], int], int], ImageFormat]
Kind = Literal["hears", "duplex", "transcribes"]
_KINDS = {"hears": "takes turns", "duplex": "full duplex", "transcribes": "transcribes"}
Trust = Literal["random weights", "real weights"]


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture."""

    architecture: str
    name: str
    hub_id: str
    kind: Kind  # hears turn by turn; or every tick by itself, to answer or to write it down
    tick_ms: int
    verified: Trust
    note: str = ""
    format: BuildFormat | None = None  # of the turn-based ones that hear
    images: BuildImages | None = None  # of those that see


_OMNI_NOTE = "thinker only: text out, spoken by the configured voice; sees images"

FAMILIES: tuple[Family, ...] = (
    Family(
        "Qwen2AudioForConditionalGeneration",
        "Qwen2-Audio",
        "Qwen/Qwen2-Audio-7B-Instruct",
        "hears",
        160,
        "random weights",
        "encoded without the 30 s of padding",
        qwen2_audio_format,
    ),
    Family(
        "Qwen2_5OmniModel",
        "Qwen2.5-Omni",
        "Qwen/Qwen2.5-Omni-7B",
        "hears",
        160,
        "random weights",
        _OMNI_NOTE,
        audio_format_2_5,
        image_format_2_5,
    ),
    Family(
        "Qwen2_5OmniForConditionalGeneration",
        "Qwen2.5-Omni",
        "Qwen/Qwen2.5-Omni-3B",
        "hears",
        160,
        "random weights",
        _OMNI_NOTE,
        audio_format_2_5,
        image_format_2_5,
    ),
    Family(
        "Qwen3OmniMoeForConditionalGeneration",
        "Qwen3-Omni",
        "Qwen/Qwen3-Omni-30B-A3B-Instruct",
        "hears",
        160,
        "random weights",
        _OMNI_NOTE,
        audio_format_3,
        image_format_3,
    ),
    Family(
        "MiniCPMO",
        "MiniCPM-o 4.5",
        "openbmb/MiniCPM-o-4_5",
        "duplex",
        1000,
        "random weights",
        "text out, spoken by the configured voice; needs trust_remote_code; sees images",
    ),
    Family(
        "VoxtralRealtimeGeneration",
        "Voxtral realtime",
        "mistralai/Voxtral-Mini-4B-Realtime-2602",
        "transcribes",
        80,
        "random weights",
        "no answers: the words of transcription sessions, 480 ms behind the sound",
    ),
    Family(
        "UltravoxModel",
        "Ultravox",
        "fixie-ai/ultravox-v0_6-qwen-3-32b",
        "hears",
        160,
        "random weights",
        "around a ChatML language model (Qwen3); those around Llama 3 are refused",
        ultravox_format,
    ),
)


def supported() -> list[str]:
    """One line per family, aligned, for a terminal."""
    rows = [
        (
            f.name,
            _KINDS[f.kind],
            f.verified,
            f.hub_id,
            f.note,
        )
        for f in FAMILIES
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[4]])
        for row in rows
    ]


def family_of(config: Mapping[str, Any]) -> Family | None:
    """The entry of a model's config.json; None if its architecture is not in the table."""
    named = config.get("architectures") or []
    return next((f for f in FAMILIES if f.architecture in named), None)


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model folder, or what matters of Mistral's params.json; empty if there is neither.

    Raises:
        ValueError: it is not JSON.
    """
    if (folder / "tekken.json").is_file():
        encoder = _mistral_encoder(_json(folder / "params.json"))
        if encoder:
            causal = bool(encoder.get("causal"))
            return {
                "architectures": [
                    "VoxtralRealtimeGeneration" if causal else "VoxtralForConditionalGeneration"
                ],
                "audio_config": encoder,
            }
    return _json(folder / "config.json")


def _mistral_encoder(params: Mapping[str, Any]) -> dict[str, Any]:
    """The audio encoder in a params.json, as vLLM reads it (transformers_utils/configs/mistral.py); empty: none."""
    whisper = (params.get("multimodal") or {}).get("whisper_model_args") or {}
    return dict(whisper.get("encoder_args") or {})


def windows_of(folder: Path) -> tuple[int, ...]:
    """Tokens that the layers of a model in Mistral's format look back: decoder's, encoder's; 0: all.

    An encoder that runs at several times the decoder's rate keeps that many positions per token, and one token more
    (vllm/model_executor/models/whisper_causal.py, get_kv_cache_spec, 0.32.0).
    """
    params = _json(folder / "params.json")
    pool = params["multimodal"]["whisper_model_args"]["downsample_args"]["downsample_factor"]
    encoder = _mistral_encoder(params).get("sliding_window") or 0
    decoder = params.get("sliding_window") or 0
    return int(decoder), -(-int(encoder) // pool) + 1 if encoder else 0


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    return content if isinstance(content, dict) else {}


def unsupported(config: Mapping[str, Any], location: str) -> str | None:
    """One line on why a multimodal model cannot be served; None for text models and supported ones."""
    named = config.get("architectures") or []
    if family_of(config) is not None or not (
        {"audio_config", "thinker_config", "audio_processor_config"} & set(config)
    ):
        return None
    known = ", ".join(sorted({f.name for f in FAMILIES}))
    return f"{location}: {', '.join(named) or 'an unnamed architecture'} is not supported; models that hear: {known}"
