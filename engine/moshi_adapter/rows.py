"""The streaming states of a model for several batch sizes, all in one memory.

A step over b rows costs the reading of b key-value rings, and a CUDA graph is bound to one b and to fixed addresses. So
each batch size has states (and graphs) of its own, but their tensors are views of the largest one's:

    [ row 0 | row 1 | row 2 | row 3 | … | row S−1 ]     the states of batch size S own the memory
    [------- views of batch size 2 -]                   a stream in row 0 goes on, whichever size steps next
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from moshi.modules.streaming import StreamingModule
from torch import Tensor

_States = list[dict[str, Any]]  # per root module, by path


@dataclass(frozen=True, slots=True)
class _Held:
    """A tensor with one entry per row along `dim`, held by a state (or by a ring inside one)."""

    owner: Any
    name: str
    dim: int
    tensor: Tensor


class SharedRows:
    """States of `roots`, whose first member starts and stops all of them."""

    def __init__(self, roots: Sequence[StreamingModule[Any]], batch_sizes: Sequence[int]) -> None:
        """Take the memory: that of the largest size, and for a moment that of the second largest as well."""
        self._roots = roots
        sizes = sorted(batch_sizes, reverse=True)
        self._states = {sizes[0]: self._make(sizes[0])}
        self._held: dict[int, list[_Held]] = {sizes[0]: []}
        for size in sizes[1:]:
            self._states[size] = self._make(size)
            self._overlay(sizes[0], size)
        self._size = 0  # in use; 0: none yet

    def use(self, size: int) -> None:
        """Step `size` rows from now on."""
        if size != self._size:
            for root, states in zip(self._roots, self._states[size], strict=True):
                root.set_streaming_state(states)
            self._size = size

    def settle(self) -> None:
        """After a step: bring what moshi replaced, rather than changed in place, back into the shared memory."""
        for held in self._held[self._size]:
            current = getattr(held.owner, held.name)
            if current is not held.tensor:
                held.tensor.copy_(current)
                setattr(held.owner, held.name, held.tensor)

    def move(self, source: int, target: int) -> None:
        """Copy the stream in row `source` over the one in row `target`."""
        for held in self._held[max(self._held)]:
            row = held.tensor.select(held.dim, source)
            held.tensor.select(held.dim, target).copy_(row)

    def _make(self, size: int) -> _States:
        with self._roots[0].streaming(size):
            return [root.get_streaming_state() for root in self._roots]

    def _overlay(self, largest: int, size: int) -> None:
        """Replace the row tensors of the states for `size` by views."""
        owned: list[_Held] = []
        views: list[_Held] = []
        for large, small in zip(self._states[largest], self._states[size], strict=True):
            for path, state in small.items():
                for whole, part in _pairs(large[path], state):
                    owned.append(whole)
                    view = whole.tensor.narrow(whole.dim, 0, size)
                    setattr(part.owner, part.name, view)
                    views.append(_Held(part.owner, part.name, part.dim, view))
        self._held[largest], self._held[size] = owned, views


def _pairs(large: Any, small: Any) -> list[tuple[_Held, _Held]]:
    """The row tensors of two states of the same module: those whose shapes differ, in one dimension."""
    found = []
    for name, part in vars(small).items():
        whole = getattr(large, name)
        if isinstance(part, Tensor):
            dims = [d for d in range(part.dim()) if part.shape[d] != whole.shape[d]]
            if dims:
                assert len(dims) == 1, (name, part.shape, whole.shape)
                found.append((_Held(large, name, dims[0], whole), _Held(small, name, dims[0], part)))
        elif type(part).__name__ == "RingKVCache":
            found += _pairs(whole, part)
    return found


def row_mask(size: int, rows: Sequence[int], device: torch.device) -> Tensor:
    """bool[size], true in `rows`."""
    mask = torch.zeros(size, dtype=torch.bool)
    mask[list(rows)] = True
    return mask.to(device)
