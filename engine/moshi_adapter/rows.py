"""The streaming states of a model for several batch sizes, all in one memory.

A step over b rows costs the reading of b key-value rings, and a CUDA graph is bound to one b and to fixed addresses. So
each batch size has states (and graphs) of its own, but their tensors are views of the largest one's:

    [ row 0 | row 1 | row 2 | row 3 | … | row S−1 ]     the states of batch size S own the memory
    [------- views of batch size 2 -]                   a stream in row 0 goes on, whichever size steps next
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from moshi.modules.streaming import State, StreamingModule
from moshi.modules.transformer import RingKVCache
from moshi.utils.compile import CUDAGraphed
from torch import Tensor

_States = list[dict[str, State]]  # per root module, by the path of the module that holds it


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
        """Take the memory of the largest size, and for a moment that of one row more."""
        self._roots = roots
        largest = max(batch_sizes)
        whole = self._make(largest)
        single = self._make(1) if largest > 1 else whole
        pairs = [
            (state, ones[path])
            for states, ones in zip(whole, single, strict=True)
            for path, state in states.items()
        ]
        self._owned = [held for state, one in pairs for held in _rows_of(state, one)]
        self._whole, self._single = whole, single
        # Views by (first row, rows).
        self._states = {(0, largest): whole}
        self._held = {(0, largest): self._owned}
        for size in set(batch_sizes) - {largest}:
            self._view(0, size)
        self._used = (0, 0)  # none yet

    def _view(self, first: int, size: int) -> None:
        held_views: list[_Held] = []
        self._states[first, size] = [
            {
                path: _narrow(state, ones[path], slice(first, first + size), held_views)
                for path, state in states.items()
            }
            for states, ones in zip(self._whole, self._single, strict=True)
        ]
        self._held[first, size] = held_views

    def use(self, size: int, first: int = 0) -> None:
        """Step the `size` rows from `first` on, from now on. Only rows from 0 on have graphs that were captured."""
        used = first, size
        if used == self._used:
            return
        if used not in self._states:
            self._view(first, size)
        for root, states in zip(self._roots, self._states[used], strict=True):
            root.set_streaming_state(states)
        self._used = used

    def settle(self) -> None:
        """After a step: bring what moshi replaced, rather than changed in place, back into the shared memory."""
        for held in self._held[self._used]:
            current = getattr(held.owner, held.name)
            if current is not held.tensor:
                held.tensor.copy_(current)
                setattr(held.owner, held.name, held.tensor)

    def move(self, source: int, target: int) -> None:
        """Copy the stream in row `source` over the one in row `target`."""
        for held in self._owned:
            row = held.tensor.select(held.dim, source)
            held.tensor.select(held.dim, target).copy_(row)

    def _make(self, size: int) -> _States:
        with self._roots[0].streaming(size):
            return [root.get_streaming_state() for root in self._roots]


def _rows_of(owner: Any, single: Any) -> Iterator[_Held]:
    """The row tensors of a state: those that differ in shape from the same of a state for a single row."""
    for name, value in vars(owner).items():
        one = getattr(single, name)
        if isinstance(value, Tensor):
            dims = [dim for dim in range(value.dim()) if value.shape[dim] != one.shape[dim]]
            assert len(dims) <= 1, (name, value.shape, one.shape)
            if dims:
                yield _Held(owner, name, dims[0], value)
        elif isinstance(value, RingKVCache):
            yield from _rows_of(value, one)


def _narrow(whole: Any, single: Any, rows: slice, held_views: list[_Held]) -> Any:
    """A copy of a state for some of its rows, in the same memory and with graphs of its own."""
    part, size = copy.copy(whole), rows.stop - rows.start
    if isinstance(part, State):
        part.batch_size = size
    for held in _rows_of(whole, single):
        if held.owner is whole:
            view = held.tensor.narrow(held.dim, rows.start, size)
            setattr(part, held.name, view)
            held_views.append(_Held(part, held.name, held.dim, view))
    for name, value in vars(whole).items():
        if isinstance(value, RingKVCache):
            setattr(part, name, _narrow(value, getattr(single, name), rows, held_views))
        elif isinstance(value, CUDAGraphed):
            setattr(part, name, CUDAGraphed(value.func, disable=value.disable))
    return part


def row_mask(size: int, rows: Sequence[int], device: torch.device) -> Tensor:
    """bool[size], true in `rows`."""
    mask = torch.zeros(size, dtype=torch.bool)
    mask[list(rows)] = True
    return mask.to(device)
