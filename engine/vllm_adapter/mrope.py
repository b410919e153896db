"""Positions of Qwen-Omni's three-axis rotary embedding in sessions of audio and text.

vLLM computes them anew at every append by walking all audio the session ever heard: 16 ms per tick at the start of a
call, 110 ms after 1,000 ticks. But without images all three axes count tokens, one after the other: the walk always
ends in 0, 1, 2 … on each axis (tests/models_vllm compares). So that is what the model is told, in constant time, and
features of audio need not be kept for it. It also makes the axes equal, which is what lets keys be moved like those of
a plain rotary embedding.
"""

from types import MethodType
from typing import Any

_METHOD = "get_mrope_input_positions"


def audio_positions(model: Any) -> None:
    """Override the model's positions where it has three axes; images must be switched off."""
    if not hasattr(model, _METHOD):
        return
    setattr(model, _METHOD, MethodType(_count, model))


def _count(model: Any, input_tokens: list[int], features: list[Any]) -> tuple[Any, int]:
    """int64[3, n], and the offset of tokens to come."""
    import torch

    assert all(feature.modality == "audio" for feature in features), "images need real positions"
    return torch.arange(len(input_tokens)).expand(3, -1), 0
