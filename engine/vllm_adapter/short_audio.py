"""Qwen2-Audio's encoder on what was said, not on 30 s.

Its code in transformers refuses features of any other length than 3,000 frames, and masks the padding out of attention
afterwards: a chunk of 1 s costs as much as one of 30 s. The same layers run here on the frames there are. What comes
out is the same (tests/models_vllm compares): masked keys have no weight, and the convolutions look two frames past the
end, which the features bring along.
"""

from types import MethodType
from typing import Any

import torch
from torch.nn import functional

ARCHITECTURE = "Qwen2AudioForConditionalGeneration"


def encode_short(model: Any) -> None:
    """Override how a Qwen2-Audio model encodes audio; other models are left alone."""
    if type(model).__name__ == ARCHITECTURE:
        model.embed_multimodal = MethodType(_embed, model)


def _embed(model: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """One tensor of embeddings per item, from `input_features` and `feature_attention_mask` of any lengths."""
    tower = model.audio_tower
    items, masks = list(kwargs["input_features"]), list(kwargs["feature_attention_mask"])
    frames = torch.stack([mask.sum() for mask in masks])
    pooled, tokens = tower._get_feat_extract_output_lengths(frames)
    longest = max(item.shape[-1] for item in items)
    batch = torch.stack([functional.pad(item, (0, longest - item.shape[-1])) for item in items])
    hidden = _convolved(tower, batch)
    hidden = _attended(tower, hidden, pooled)
    hidden = tower.avg_pooler(hidden.permute(0, 2, 1)).permute(0, 2, 1)
    embeddings = model.multi_modal_projector(tower.layer_norm(hidden))
    return tuple(own[:count] for own, count in zip(embeddings, tokens.tolist(), strict=True))


def _convolved(tower: Any, batch: torch.Tensor) -> torch.Tensor:
    """Frames halved, positions added: float[items, positions, width]."""
    weight = tower.conv1.weight
    hidden = functional.gelu(tower.conv1(batch.to(weight.device, weight.dtype)))
    hidden = functional.gelu(tower.conv2(hidden)).permute(0, 2, 1)
    positions: torch.Tensor = tower.embed_positions.weight[: hidden.shape[1]]
    return hidden + positions


def _attended(tower: Any, hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Through the layers; positions from an item's length on are seen by none."""
    places = torch.arange(hidden.shape[1], device=hidden.device)
    beyond = places[None] >= lengths.to(hidden.device)[:, None]
    mask = torch.zeros(beyond.shape, dtype=hidden.dtype, device=hidden.device)
    mask = mask.masked_fill(beyond, float("-inf"))[:, None, None, :]
    mask = mask.expand(-1, 1, hidden.shape[1], -1)
    for layer in tower.layers:
        out = layer(hidden, mask)
        hidden = out[0] if isinstance(out, tuple) else out
    return hidden
