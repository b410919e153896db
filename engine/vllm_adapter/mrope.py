"""Positions of Qwen-Omni's three-axis rotary embedding in sessions of audio, text and still images.

vLLM computes them anew at every append by walking all audio the session ever heard: 16 ms per tick at the start of a
call, 110 ms after 1,000 ticks. But for audio and text all three axes count tokens, one after the other: the walk ends
in 0, 1, 2 … on each axis (tests/models_vllm compares). So that is what the model is told, in constant time, and
features need not be kept for it.

An image of h x w tokens that begins at token s is given what the walk gives it: time s, height s + row, width
s + column. What follows it goes on at s + h * w, counting tokens, where the walk would go on at s + max(h, w). So

    token    s-1   s           …  s+hw-1          s+hw …
    time     s-1   s  s   s    …  s               s+hw …
    height   s-1   s  s   s+1  …  s+h-1           s+hw …
    width    s-1   s  s+1 s    …  s+w-1           s+hw …

positions within an image and before it are those the model was trained with, and what comes after is as far away as in
a model that counts every token (up to `image_tokens` less max(h, w): 240 for 16 x 16). In return

* a token's position depends on its index and its own image alone, so images that were computed need not be remembered;
* when d tokens are dropped, everything behind them moves by d on every axis, images too, whole or cut. A turn by the
  same angle on each axis is what moving keys is (key_mover.py), and the shorter sequence has exactly the positions that
  it would be given afresh.
"""

from types import MethodType
from typing import Any

_METHOD = "get_mrope_input_positions"


def sequential_positions(model: Any) -> None:
    """Override the model's positions where it has three axes."""
    if not hasattr(model, _METHOD):
        return
    setattr(model, _METHOD, MethodType(_count, model))


def _count(model: Any, input_tokens: list[int], features: list[Any]) -> tuple[Any, int]:
    """int64[3, n], and the offset of tokens to come."""
    import torch

    positions = torch.arange(len(input_tokens)).expand(3, -1)
    for feature in features:
        if feature.modality != "image":
            continue
        if feature.data is None:  # it was computed before: nothing asks for its positions again
            continue
        positions = positions.clone()
        merge = model.config.vision_config.spatial_merge_size
        _, rows, columns = (int(n) for n in feature.data["image_grid_thw"].data.flatten())
        rows, columns = rows // merge, columns // merge
        start = feature.mm_position.offset
        run = slice(start, start + rows * columns)
        positions[0, run] = start
        positions[1, run] = start + torch.arange(rows).repeat_interleave(columns)
        positions[2, run] = start + torch.arange(columns).repeat(rows)
    return positions, 0
