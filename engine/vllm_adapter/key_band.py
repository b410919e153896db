"""Turning the keys of many blocks and layers at once, where they lie.

A band is a set of layers with one layout, one rotation and one block table. vLLM keeps layers in one allocation,
equally far apart, so a band is a single strided view of memory: (layers, blocks, digits of token, head and pair).
Turning one block of every layer costs a handful of torch calls, whose temporaries stay in the processor's cache.
"""

import math
from collections.abc import Iterator, Sequence

import torch

from engine.vllm_adapter.key_layout import find_strides
from engine.vllm_adapter.rope import Factors, turn

# Axes of an index of keys by pair: int64 (tokens, heads, 2, pairs).
_TOKEN, _HEAD, _HALF, _PAIR = range(4)

# Pairs turned at once on an accelerator, where launches are dear: bounds the temporaries to 0.5 GiB.
_PIECE = 1 << 25

_Where = slice | torch.Tensor  # blocks: neighbours in memory, or any


class KeyBand:
    """Keys of equal layers."""

    def __init__(
        self, caches: Sequence[torch.Tensor], index: torch.Tensor, at_once: bool | None = None
    ) -> None:
        """`caches` are the layers' memory, blocks first, equally far apart in one allocation.

        `index`: int64 (tokens, heads, 2, pairs), positions in a flattened block. `at_once`: gather many blocks and turn
        them together, which suits accelerators (the default there), or turn one after the other in place, which suits
        a CPU's cache.
        """
        self._caches = list(caches)
        self._at_once = caches[0].device.type != "cpu" if at_once is None else at_once
        self._index = index
        self._views: tuple[torch.Tensor, torch.Tensor] | None = None  # None: no strides
        cache = self._caches[0]
        positions = _positions(cache)[index]
        digits = find_strides(positions)
        if digits is None:
            return
        apart = self._caches[-1].storage_offset() - cache.storage_offset()
        view = cache.as_strided(
            (len(self._caches), cache.shape[0], *(digit.size for digit in digits)),
            (
                apart // max(1, len(self._caches) - 1),
                cache.stride(0),
                *(digit.stride for digit in digits),
            ),
            cache.storage_offset() + int(positions.flatten()[0]),
        )
        half = 2 + [digit.axis for digit in digits].index(_HALF)
        self._views = view.select(half, 0), view.select(half, 1)
        self._digits = [digit for digit in digits if digit.axis != _HALF]

    @property
    def is_strided(self) -> bool:
        """False if keys follow no strides: they are gathered one by one, layer by layer."""
        return self._views is not None

    def turn(self, blocks: Sequence[int], factors: Factors) -> None:
        """Turn the keys of these blocks, in every layer. No block may be named twice.

        `factors`: real and imaginary part, float32 (blocks, tokens, pairs).
        """
        if self._views is None:
            self._turn_gathered(blocks, factors)
            return
        first, second = self._views
        cos, sin = (self._arranged(factor) for factor in factors)
        for where, rows in self._pieces(blocks):
            a, b = first[:, where], second[:, where]
            turned = turn(a.float(), b.float(), (cos[rows], sin[rows]))
            if isinstance(where, slice):
                a.copy_(turned[0])
                b.copy_(turned[1])
            else:
                first[:, where], second[:, where] = (part.to(first.dtype) for part in turned)

    def _arranged(self, factor: torch.Tensor) -> torch.Tensor:
        """(blocks, tokens, pairs) in the order of the view, to broadcast over heads."""
        step = {_TOKEN: factor.shape[2], _PAIR: 1, _HEAD: 0}
        sizes = [1 if digit.axis == _HEAD else digit.size for digit in self._digits]
        strides = [digit.weight * step[digit.axis] for digit in self._digits]
        factor = factor.contiguous()
        return factor.as_strided((len(factor), *sizes), (factor.stride(0), *strides)).contiguous()

    def _pieces(self, blocks: Sequence[int]) -> Iterator[tuple[_Where, slice]]:
        """What to turn at once: (blocks, their rows among the factors)."""
        if not self._at_once:
            for row, block in enumerate(blocks):
                yield slice(block, block + 1), slice(row, row + 1)
            return
        pairs_of_a_block = math.prod(self._index.shape) // 2 * len(self._caches)
        many = max(1, _PIECE // pairs_of_a_block)
        ids = torch.tensor(blocks, device=self._index.device)
        for row in range(0, len(blocks), many):
            yield ids[row : row + many], slice(row, row + many)

    def _turn_gathered(self, blocks: Sequence[int], factors: Factors) -> None:
        ids = torch.tensor(blocks, device=self._index.device)
        cos, sin = (factor.unsqueeze(2) for factor in factors)
        for cache in self._caches:
            raw = cache[ids].reshape(len(ids), -1)
            for_pairs = raw[:, self._index].float()  # (blocks, tokens, heads, 2, pairs)
            turned = turn(for_pairs.select(3, 0), for_pairs.select(3, 1), (cos, sin))
            raw[:, self._index] = torch.stack(turned, 3).to(raw.dtype)
            cache[ids] = raw.view(len(ids), *cache.shape[1:])


def equally_spaced(caches: Sequence[torch.Tensor]) -> list[list[int]]:
    """Split layers, given by their memory, into runs that one strided view each can reach: indices into `caches`."""
    order = sorted(range(len(caches)), key=lambda i: caches[i].data_ptr())
    runs: list[list[int]] = []
    for number in order:
        if runs and _continues([caches[i] for i in runs[-1]], caches[number]):
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def _continues(run: Sequence[torch.Tensor], cache: torch.Tensor) -> bool:
    if run[-1].untyped_storage().data_ptr() != cache.untyped_storage().data_ptr():
        return False
    return len(run) == 1 or (
        cache.storage_offset() - run[-1].storage_offset()
        == run[-1].storage_offset() - run[-2].storage_offset()
    )


def _positions(cache: torch.Tensor) -> torch.Tensor:
    """Where the elements of a flattened block lie from its start on, elements: int64."""
    total = torch.zeros((), dtype=torch.int64, device=cache.device)
    for size, stride in zip(cache.shape[1:], cache.stride()[1:], strict=True):
        total = total.unsqueeze(-1) + torch.arange(size, device=cache.device) * stride
    return total.flatten()
