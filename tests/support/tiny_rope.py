"""One-layer models on disk, one for every way of turning keys that vLLM knows. No hub, no tokenizer; random weights.

Weights are spread four times as wide as usual, so that attention is sharp and a key at a wrong place shows. Nothing
else is scaled: logits have a standard deviation near 1.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support.tiny_llama import VOCAB

SPREAD = 4
POSITIONS = 4096

Rope = Mapping[str, Any]


def _shape(**more: Any) -> dict[str, Any]:
    return {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB,
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": False,
    } | more


def _rope(kind: str = "default", **more: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10_000.0} | more


def _llama(rope: Rope, **more: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**_shape(head_dim=32, rope_parameters=dict(rope), **more))
    return LlamaForCausalLM(config)


def _stablelm(rope: Rope) -> Any:
    from transformers import StableLmConfig, StableLmForCausalLM

    return StableLmForCausalLM(StableLmConfig(**_shape(rope_parameters=dict(rope))))


def _cohere(rope: Rope) -> Any:
    from transformers import CohereConfig, CohereForCausalLM

    config = _shape(rope_parameters=dict(rope), tie_word_embeddings=True, logit_scale=1.0)
    return CohereForCausalLM(CohereConfig(**config))


def _glm4(rope: Rope) -> Any:
    from transformers import Glm4Config, Glm4ForCausalLM

    config = _shape(head_dim=32, rope_parameters=dict(rope), pad_token_id=0)
    return Glm4ForCausalLM(Glm4Config(**config))


def _qwen_omni(rope: Rope) -> Any:
    from transformers import (
        Qwen2_5OmniThinkerConfig,
        Qwen2_5OmniThinkerForConditionalGeneration,
    )

    audio = {"num_mel_bins": 32, "encoder_layers": 1, "encoder_attention_heads": 2}
    audio |= {"encoder_ffn_dim": 128, "d_model": 64, "output_dim": 128, "n_window": 100}
    vision = {"depth": 1, "hidden_size": 64, "num_heads": 2, "out_hidden_size": 128}
    config = Qwen2_5OmniThinkerConfig(
        text_config=_shape(rope_parameters=dict(rope)),
        audio_config=audio,
        vision_config=vision,
    )
    return Qwen2_5OmniThinkerForConditionalGeneration(config)


_SCALED = {"factor": 4.0, "original_max_position_embeddings": 128}

# By what turns: pairs half the rotary dimension apart ("neox") or side by side ("gptj"), all of a head or a part of
# it, at frequencies that a scheme for longer contexts scales, along one axis or three.
ROPES: Mapping[str, tuple[Callable[[Rope], Any], Rope]] = {
    "neox": (_llama, _rope()),
    "neox partial": (_stablelm, _rope(partial_rotary_factor=0.25)),
    "gptj": (_cohere, _rope()),
    "gptj partial": (_glm4, _rope(partial_rotary_factor=0.5)),
    "linear": (_llama, _rope("linear", factor=4.0)),
    "dynamic": (_llama, _rope("dynamic", factor=4.0)),
    "llama3": (_llama, _rope("llama3", low_freq_factor=1.0, high_freq_factor=4.0, **_SCALED)),
    "yarn": (_llama, _rope("yarn", **_SCALED)),
    "mrope": (_qwen_omni, _rope(mrope_section=[4, 6, 6])),
}


def write_tiny_rope(kind: str, folder: Path) -> Path:
    """Write the model of this kind of rope into `folder`."""
    import torch

    torch.manual_seed(1)
    build, rope = ROPES[kind]
    model = _spread(build(rope))
    if kind == "mrope":
        _save_thinker(model, folder)
    else:
        model.save_pretrained(folder)
    return folder


def write_tiny_gemma(folder: Path, attends: int) -> Path:
    """Two layers, one with a window of 64 tokens and one without, each with a rotary embedding of its own.

    Only layer `attends` hears other tokens, so that the keys of both depend on their token and position alone.
    """
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(1)
    kinds = ["sliding_attention", "full_attention"]
    config = _shape(num_hidden_layers=2, layer_types=kinds) | {"head_dim": 32}
    build: Any = Gemma3ForCausalLM
    model = _spread(build(Gemma3TextConfig(**config, sliding_window=64, query_pre_attn_scalar=32)))
    with torch.no_grad():
        model.model.layers[1 - attends].self_attn.o_proj.weight.zero_()
    model.save_pretrained(folder)
    return folder


def write_tiny_cohere2(folder: Path) -> Path:
    """A layer with full attention, where this architecture does not turn keys although it could."""
    import torch
    from transformers import Cohere2Config, Cohere2ForCausalLM

    torch.manual_seed(1)
    build: Any = Cohere2ForCausalLM
    config = _shape(layer_types=["full_attention"], tie_word_embeddings=True)
    _spread(build(Cohere2Config(**config))).save_pretrained(folder)
    return folder


def _spread(model: Any) -> Any:
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(SPREAD)
    return model


def _save_thinker(model: Any, folder: Path) -> None:
    """As the part of a Qwen-Omni checkpoint that vLLM loads."""
    from safetensors.torch import save_file

    config = {
        "architectures": ["Qwen2_5OmniForConditionalGeneration"],
        "model_type": "qwen2_5_omni",
        "thinker_config": model.config.to_dict(),
        "enable_audio_output": False,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    weights = {f"thinker.{name}": tensor for name, tensor in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
