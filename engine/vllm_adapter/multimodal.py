"""Audio and images in an append, in vLLM's terms, without any Hugging Face processor.

A processor tokenises, pads audio to 30 s and hashes: 14 to 29 ms per chunk on the tick path. Here the model adapter has
made the features already, and what is left is to wrap arrays in the fields that vLLM's model code declares. The engine
core needs a processor once more, to size its encoder cache; it is given one that knows just the sizes. (Which also
avoids a trap: with images switched off, vLLM's MiniCPM-o counts no modality at all, sizes the cache 0 and refuses all
audio.)
"""

import importlib
import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine.work import Feature

FieldConfig = Callable[[Mapping[str, Any]], Mapping[str, Any]]

MAX_IMAGE_TOKENS = 1280  # of one image; the encoder's memory is sized for it

_ids = itertools.count()  # makes encoder cache keys unique


@dataclass(frozen=True, slots=True)
class Encoder:
    """What vLLM must know of one architecture's features."""

    module: str  # under vllm.model_executor.models
    fields: str  # function there, or method: tensors by name -> how each is batched
    max_audio: int  # tokens of the longest item
    max_image: int = 0  # tokens of the largest image; 0: it sees none
    keeps_kv: bool = False  # in the paged cache, behind a window of its own: in a table of its own
    merge_size: int | None = None  # argument of `fields`, where it is a factory

    def max_tokens(self, images: bool) -> dict[str, int]:
        """Tokens of the longest item of each modality that is on."""
        seen = {"image": self.max_image} if images and self.max_image else {}
        return {"audio": self.max_audio} | seen

    def field_config(self) -> FieldConfig:
        """How tensors are batched across sessions."""
        module = _models(self.module)
        owner, _, method = self.fields.rpartition(".")
        if owner:  # of a processor that is never made: the method does not look at it
            unbound = getattr(getattr(module, owner), method)
            return partial(_of_method, unbound)
        found: Any = getattr(module, self.fields)
        config: FieldConfig = found if self.merge_size is None else found(self.merge_size)
        return config


def _of_method(method: Callable[..., Any], tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    config: Mapping[str, Any] = method(None, tensors, {})
    return config


_OMNI_FIELDS = "create_qwen2_5_omni_thinker_field_factory"
_QWEN2_5_OMNI = Encoder("qwen2_5_omni_thinker", _OMNI_FIELDS, 750, MAX_IMAGE_TOKENS, merge_size=2)
_QWEN3_OMNI = Encoder("qwen2_5_omni_thinker", _OMNI_FIELDS, 390, MAX_IMAGE_TOKENS, merge_size=2)
# Models whose code in transformers imports torchvision, just to scale images: module and class in vLLM.
_IMPORT_TORCHVISION: Mapping[str, tuple[str, str]] = {
    "Qwen2_5OmniModel": ("qwen2_5_omni_thinker", "Qwen2_5OmniThinkerForConditionalGeneration"),
    "Qwen2_5OmniForConditionalGeneration": (
        "qwen2_5_omni_thinker",
        "Qwen2_5OmniThinkerForConditionalGeneration",
    ),
    "Qwen3OmniMoeForConditionalGeneration": (
        "qwen3_omni_moe_thinker",
        "Qwen3OmniMoeThinkerForConditionalGeneration",
    ),
}

# Architectures by the name in config.json. 30 s is the longest item of each.
ENCODERS: Mapping[str, Encoder] = {
    "Qwen2AudioForConditionalGeneration": Encoder("qwen2_audio", "_qwen2audio_field_config", 750),
    "Qwen2_5OmniModel": _QWEN2_5_OMNI,
    "Qwen2_5OmniForConditionalGeneration": _QWEN2_5_OMNI,
    "Qwen3OmniMoeForConditionalGeneration": _QWEN3_OMNI,
    "MiniCPMO": Encoder("minicpmo", "_minicpmo_field_config", 300, 64),
    # The preamble of a context, and 80 ms at a time from then on.
    "VoxtralRealtimeGeneration": Encoder(
        "voxtral", "VoxtralMultiModalProcessor._get_mm_fields_config", 128, keeps_kv=True
    ),
    "UltravoxModel": Encoder("ultravox", "UltravoxMultiModalProcessor._get_mm_fields_config", 188),
}


def engine_arguments(images: bool) -> dict[str, Any]:
    """What vLLM's engine must be told for models in `ENCODERS`; text models ignore it."""
    return {
        # Per append, and only checked by processors; but encoders of what is 0 are not even loaded.
        "limit_mm_per_prompt": {"audio": 1, "image": int(images), "video": 0},
        "skip_mm_profiling": True,  # would ask the processor for its longest item
        "mm_processor_cache_gb": 0,
    }


def bypass_processors() -> None:
    """Let vLLM make no processor for architectures in `ENCODERS`. Process-wide, idempotent."""
    from vllm.multimodal import MULTIMODAL_REGISTRY as registry

    if isinstance(registry.create_processor, partial):
        return
    registry.create_processor = partial(_processor, registry.create_processor)
    registry.get_processing_info = partial(_info, registry.get_processing_info)


def do_without_torchvision(folder: Path) -> None:
    """Let vLLM load a Qwen-Omni model from `folder` where torchvision is missing.

    (PyPI's build of it breaks beside a CPU torch.) vLLM inspects the class of an architecture in another process unless
    it has been registered, and there the stand-in of `_models` is not known. Does nothing for other models.
    """
    if find_spec("torchvision") is not None:
        return
    config = folder / "config.json"
    named = json.loads(config.read_text("utf-8")).get("architectures") if config.is_file() else []
    for architecture in set(named or ()) & set(_IMPORT_TORCHVISION):
        from vllm import ModelRegistry

        module, name = _IMPORT_TORCHVISION[architecture]
        ModelRegistry.register_model(architecture, getattr(_models(module), name))


def _models(module: str) -> Any:
    """A module of vLLM's models.

    Qwen-Omni's import one function from where torchvision is needed, which transformers has a second time, for Pillow.
    It serves their processors, which are never made.
    """
    if "omni" in module and find_spec("torchvision") is None:
        pillow = importlib.import_module(f"{_QWEN_IMAGES}.image_processing_pil_qwen2_vl")
        sys.modules.setdefault(f"{_QWEN_IMAGES}.image_processing_qwen2_vl", pillow)
    return importlib.import_module(f"vllm.model_executor.models.{module}")


_QWEN_IMAGES = "transformers.models.qwen2_vl"


def encoder_of(architectures: Sequence[str]) -> Encoder | None:
    """The entry of a model; None for text models and those only vLLM's own processors can feed."""
    return next((ENCODERS[name] for name in architectures if name in ENCODERS), None)


class _Info:
    """The part of a processing info that the engine core reads."""

    def __init__(self, encoder: Encoder, model_config: Any) -> None:
        self._max_tokens = encoder.max_tokens(_takes_images(model_config))
        self.supported_mm_limits: dict[str, int | None] = dict.fromkeys(self._max_tokens)
        self.allowed_mm_limits = dict.fromkeys(self._max_tokens, 1)
        self.skip_prompt_length_check = False
        self.ctx = _Context(model_config)

    def get_mm_max_tokens_per_item(
        self, seq_len: int, mm_counts: Mapping[str, int]
    ) -> dict[str, int]:
        """Tokens of the longest item of each modality."""
        return dict(self._max_tokens)


def _takes_images(model_config: Any) -> bool:
    limits = model_config.multimodal_config
    return limits is not None and limits.get_limit_per_prompt("image") > 0


@dataclass(frozen=True, slots=True)
class _Context:
    model_config: Any


@dataclass(frozen=True, slots=True)
class _Processor:
    info: _Info


def _info(stock: Callable[..., Any], model_config: Any) -> Any:
    encoder = encoder_of(model_config.architectures)
    return stock(model_config) if encoder is None else _Info(encoder, model_config)


def _processor(stock: Callable[..., Any], model_config: Any, **more: Any) -> Any:
    encoder = encoder_of(model_config.architectures)
    if encoder is None:
        return stock(model_config, **more)
    return _Processor(_Info(encoder, model_config))


class FeatureTranslator:
    """Turns neutral features into vLLM's."""

    def __init__(self, encoder: Encoder, images: bool) -> None:
        self._fields = encoder.field_config()
        self._max_tokens = encoder.max_tokens(images)

    def refusal(self, features: Sequence[Feature], tokens: int) -> str | None:
        """Why these features cannot go with an append of so many tokens; None if they can."""
        end = 0
        for feature in features:
            if feature.modality not in self._max_tokens:
                return f"this model takes no {feature.modality}"
            if not 0 < feature.length <= self._max_tokens[feature.modality]:
                return f"an item of {feature.length} {feature.modality} tokens"
            if feature.offset < end or feature.offset + feature.length > tokens:
                return "features overlap, or reach beyond the append"
            end = feature.offset + feature.length
        return None

    def specs(self, features: Sequence[Feature], shift: int) -> list[Any]:
        """One `MultiModalFeatureSpec` per feature, `shift` tokens further on."""
        from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

        return [
            MultiModalFeatureSpec(
                data=self._item(feature),
                modality=feature.modality,
                identifier=feature.key or f"once-{next(_ids)}",
                mm_position=PlaceholderRange(feature.offset + shift, feature.length),
            )
            for feature in features
        ]

    def _item(self, feature: Feature) -> Any:
        import torch
        from vllm.multimodal.inputs import MultiModalKwargsItems

        def wrapped(array: Any) -> Any:  # no copy
            nested = isinstance(array, list)  # items of several pieces
            return [wrapped(a) for a in array] if nested else torch.from_numpy(array)

        tensors: Any = {name: wrapped(array) for name, array in feature.tensors.items()}
        items: Any = MultiModalKwargsItems.from_hf_inputs(tensors, self._fields(tensors))
        return items[feature.modality][0]
