"""Where a key lies in raw block memory, found by writing known values rather than by knowing each layout.

Attention backends store keys differently: transposed, packed in pairs for matrix units, in planes of their own. All
we need is the position of element (token, head, dim) of one block, and the backend's own cache-update op tells: write
digits of the indices through it into a scratch block, and read the raw memory back.

Every layout met so far is regular: the position is a sum of strides times digits of the indices. `find_strides` finds
them, so that keys can be turned where they lie instead of being gathered one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_BASE = 128  # digits below 256 are exact in every cache type with 8 bits of significand (bfloat16)


class LayoutUnknown(ValueError):
    """Keys are not stored as a permutation of their elements."""


def probe_layout(
    module: Any, kv_cache: torch.Tensor, scratch_block: int, block_size: int
) -> torch.Tensor:
    """Positions of keys in a flattened block: int64 of shape (block_size, num_kv_heads, head_size).

    `module` is a vLLM attention layer and `kv_cache` its memory, blocks first. The scratch block's content is restored.

    Raises:
        LayoutUnknown: the elements read back are not those written.
    """
    shape = (block_size, module.num_kv_heads, module.head_size)
    token = torch.arange(shape[0]).view(-1, 1, 1).expand(shape)
    head = torch.arange(shape[1]).view(1, -1, 1).expand(shape)
    dim = torch.arange(shape[2]).view(1, 1, -1).expand(shape)
    slots = torch.arange(shape[0], device=kv_cache.device) + scratch_block * block_size
    saved = kv_cache[scratch_block].clone()

    def read_back(code: torch.Tensor) -> torch.Tensor:
        keys = (code + 1).to(kv_cache.device, kv_cache.dtype)
        kv_cache[scratch_block] = 0
        module.impl.do_kv_cache_update(module, keys, torch.full_like(keys, -1.0), kv_cache, slots)
        return kv_cache[scratch_block].float().round().long().reshape(-1).cpu() - 1

    try:
        digits = (
            token % _BASE,
            token // _BASE,
            head % _BASE,
            head // _BASE,
            dim % _BASE,
            dim // _BASE,
        )
        found = [read_back(code) for code in digits]
    finally:
        kv_cache[scratch_block] = saved
    where = torch.nonzero(found[0] >= 0).view(
        -1
    )  # values were written as -1, untouched memory is 0
    tokens, heads, dims = ((found[low] + _BASE * found[low + 1])[where] for low in (0, 2, 4))
    flat = (tokens * shape[1] + heads) * shape[2] + dims
    if not torch.equal(flat.sort().values, torch.arange(token.numel())):
        raise LayoutUnknown("keys are not stored element by element")
    index = torch.empty(token.numel(), dtype=torch.int64)
    index[flat] = where
    return index.view(shape).to(kv_cache.device)


@dataclass(frozen=True, slots=True)
class Digit:
    """One digit of one index in a mixed-radix numeral; the position in memory is a sum of digits times strides."""

    axis: int  # which index it belongs to
    size: int  # it runs from 0 to size - 1
    weight: int  # what a step of it adds to the index
    stride: int  # what a step of it adds to the position, elements


def find_strides(index: torch.Tensor) -> tuple[Digit, ...] | None:
    """The digits whose strides, added to the position of the first element, give `index`; largest stride first.

    None if there are none: the positions follow no such rule. Axes of one element have no digit.
    """
    start = index.flatten()[0]
    rule: list[Digit] = []
    total = torch.full_like(index, int(start))
    for axis, size in enumerate(index.shape):
        line = index.movedim(axis, -1).reshape(-1, size)[0] - start
        steps = torch.arange(size, device=index.device)
        along = [-1 if a == axis else 1 for a in range(index.dim())]
        for digit in _digits(axis, 1, line.tolist()):
            total += (steps // digit.weight % digit.size * digit.stride).view(along)
            rule.append(digit)
    if not torch.equal(total, index):
        return None
    return tuple(sorted(rule, key=lambda digit: -digit.stride))


def _digits(axis: int, weight: int, places: Sequence[int]) -> list[Digit]:
    """Digits that may give these positions of an axis' elements 0, 1, 2 …, if any do."""
    if len(places) == 1:
        return []
    run = 1
    while run < len(places) and places[run] == run * places[1]:
        run += 1
    while len(places) % run:
        run -= 1
    if run == 1:
        return []
    rest = _digits(axis, weight * run, places[::run])
    return [Digit(axis, run, weight, places[1]), *rest]
