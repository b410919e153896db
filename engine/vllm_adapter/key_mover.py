"""What one worker of the engine does for a drop: it moves the keys in its own part of the KV memory.

vLLM makes `KeyMover` a base of its worker class (`worker_extension_cls`), and its methods are called on every worker by
`collective_rpc`: on the one in this process, or under tensor parallelism on one per GPU, each with its own heads.

    copy    blocks that other sessions read too are copied first, whole
    turn    then keys are turned where they lie, all layers of a band at once (key_band.py)
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.vllm_adapter.compat_worker import Layer, attention_layers
from engine.vllm_adapter.key_band import KeyBand, equally_spaced
from engine.vllm_adapter.key_layout import LayoutUnknown, probe_layout
from engine.vllm_adapter.rope import Factors, NotRotary, Rotation

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# When a key is moved to where the same token's key lies already, each dimension of each head may be off by this share
# of itself (the layers below round differently at each position) …
_OFF = 0.1
# … and this share of the dimensions by more.
_TOO_FAR = 0.05


class CannotShift(ValueError):
    """Keys of this model cannot be moved; the message says why."""


@dataclass(frozen=True, slots=True)
class Move:
    """The blocks behind one drop: where they are, where they go, and how far their keys move."""

    tables: list[
        list[tuple[int, int]]
    ]  # per block table: (source, destination) ids, in order of position
    start: int  # position of the first key after the move
    delta: int  # positions moved back


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Blocks to try a move on, per block table. One token over and over: its keys differ by their positions alone."""

    first: list[int]  # keys at positions 0 … block size - 1
    second: list[int]  # those after them
    scratch: list[int]  # blocks of nobody


class KeyMover:
    """Base that vLLM's worker class is given; the worker is `self`."""

    def metronome_prepare_keys(self, rehearsal: Rehearsal) -> str | None:
        """Find the keys and rehearse a move; why they cannot be moved, None if they can."""
        try:
            self._metronome_keys = Keys(self, rehearsal.scratch)
            self._metronome_keys.prove(rehearsal)
        except (CannotShift, LayoutUnknown, NotRotary) as reason:
            return str(reason)
        return None

    def metronome_move_keys(self, moves: list[Move]) -> None:
        """Move keys; all sources are read before any destination is written."""
        self._metronome_keys.move(moves)


@dataclass(frozen=True, slots=True)
class _Found:
    """One layer's keys."""

    layer: Layer
    rotation: Rotation
    index: torch.Tensor  # int64 (tokens, heads, 2, pairs): positions in a flattened block


@dataclass(frozen=True, slots=True)
class _Group:
    """Layers that move together."""

    table: int  # index of their block table
    rotation: Rotation
    band: KeyBand


class Keys:
    """The keys that one worker holds."""

    def __init__(self, worker: Any, scratch: Sequence[int]) -> None:
        """Find where keys lie and how they are turned. `scratch`: a block of nobody, per block table.

        Raises:
            CannotShift, LayoutUnknown, NotRotary: with the reason.
        """
        self._block_size: int = worker.vllm_config.cache_config.block_size
        self._found = _survey(worker, scratch, self._block_size)
        alike: dict[tuple[int, int, int], list[_Found]] = defaultdict(list)
        for found in self._found:
            alike[found.layer.group, id(found.rotation), id(found.index)].append(found)
        self._groups = [
            _Group(table, members[0].rotation, KeyBand([caches[i] for i in run], members[0].index))
            for (table, _, _), members in alike.items()
            for caches in [[found.layer.kv_cache for found in members]]
            for run in equally_spaced(caches)
        ]

    @torch.inference_mode()
    def move(self, moves: Sequence[Move]) -> None:
        """Move keys, and copy the blocks that get another place whole."""
        for found in self._found:
            _copy(found.layer, moves)
        plans: dict[tuple[int, int], tuple[list[int], Factors]] = {}
        for group in self._groups:
            key = group.table, id(group.rotation)
            if key not in plans:
                plans[key] = _plan(moves, group.table, group.rotation, self._block_size)
            blocks, factors = plans[key]
            if blocks:
                group.band.turn(blocks, factors)

    def prove(self, rehearsal: Rehearsal) -> None:
        """Move a block of keys to where the same token's keys lie already, and back.

        This meets everything that a move takes for granted: layout, rotation, table, and that the model does turn the
        keys of each layer (some have a rotary embedding in every layer and pass over it in some).

        Raises:
            CannotShift: a layer's keys do not arrive.
        """
        size = self._block_size
        there = [[pair] for pair in zip(rehearsal.second, rehearsal.scratch, strict=True)]
        back = [[(block, block)] for block in rehearsal.scratch]
        for move, goal in (
            (Move(there, start=0, delta=size), rehearsal.first),
            (Move(back, start=size, delta=-size), rehearsal.second),
        ):
            self.move([move])
            for found in self._found:
                table = found.layer.group
                _require_equal(found, rehearsal.scratch[table], goal[table])
        for found in self._found:
            _require_untouched(
                found,
                rehearsal.scratch[found.layer.group],
                rehearsal.second[found.layer.group],
            )


def _survey(worker: Any, scratch: Sequence[int], block_size: int) -> list[_Found]:
    """Layout and rotation of every layer; equal layers share them.

    Raises:
        CannotShift, LayoutUnknown, NotRotary: with the reason.
    """
    layers = attention_layers(worker)
    if not layers:
        raise CannotShift("the model has no attention layers")
    layouts: dict[Any, torch.Tensor] = {}
    rotations: dict[int, Rotation] = {}
    indices: dict[Any, torch.Tensor] = {}
    survey = []
    for layer in layers:
        _require_plain(layer, worker.model_runner.kv_cache_config.num_blocks)
        cache, module = layer.kv_cache, layer.module
        heads = module.num_kv_heads, module.head_size
        kind = type(module.impl), cache.dtype, cache.shape, cache.stride(), heads
        if kind not in layouts:
            layouts[kind] = probe_layout(module, cache, scratch[layer.group], block_size)
        if id(layer.rope) not in rotations:
            positions = worker.vllm_config.model_config.max_model_len
            rotations[id(layer.rope)] = Rotation(layer.rope, positions)
        rotation = rotations[id(layer.rope)]
        key = kind, id(rotation)
        if key not in indices:
            indices[key] = layouts[kind][..., torch.stack([rotation.first, rotation.second])]
        survey.append(_Found(layer, rotation, indices[key]))
    return survey


def _require_plain(layer: Layer, blocks: int) -> None:
    """Raises CannotShift if the layer keeps keys in a form that is not read here."""
    cache = layer.kv_cache
    if not isinstance(cache, torch.Tensor) or cache.dtype not in _FLOATS:
        raise CannotShift(f"{layer.name} keeps its keys quantised")
    if cache.shape[0] != blocks:
        raise CannotShift(f"{layer.name} does not address its memory by whole blocks")
    if layer.rope is None:
        raise CannotShift(f"{layer.name} has no rotary embedding")
    if not hasattr(layer.module.impl, "do_kv_cache_update"):
        raise CannotShift(f"{layer.name} writes its cache inside its kernel")


def _copy(layer: Layer, moves: Sequence[Move]) -> None:
    """Copy the blocks that change their place; a destination may be another move's source."""
    pairs = [pair for move in moves for pair in move.tables[layer.group] if pair[0] != pair[1]]
    if pairs:
        cache = layer.kv_cache
        sources, targets = torch.tensor(pairs, device=cache.device).unbind(1)
        cache[targets] = cache[sources]


def _plan(
    moves: Sequence[Move], table: int, rotation: Rotation, block_size: int
) -> tuple[list[int], Factors]:
    """The blocks to turn, in order, and by what: (blocks, tokens, pairs)."""
    rows = sorted(
        (target, move.start + index * block_size, move.delta)
        for move in moves
        for index, (_, target) in enumerate(move.tables[table])
    )
    _, start, delta = torch.tensor(rows, dtype=torch.int64).view(-1, 3).unbind(1)
    after = start[:, None] + torch.arange(block_size)
    factors = rotation.between(after + delta[:, None], after)
    return [target for target, _, _ in rows], factors


def _require_equal(found: _Found, block: int, goal: int) -> None:
    """Raises CannotShift unless two blocks hold the same keys, as far as rounding lets them."""
    cache = found.layer.kv_cache
    is_, should = (cache[number].flatten()[found.index].float() for number in (block, goal))
    close = (is_ - should).norm(dim=0) <= _OFF * should.norm(dim=0)  # NaN is not
    off = 1 - float(close.float().mean())
    if off > _TOO_FAR:
        raise CannotShift(
            f"{off:.0%} of the keys of {found.layer.name} are not where a move put them"
        )


def _require_untouched(found: _Found, block: int, goal: int) -> None:
    """Raises CannotShift unless what is no key is the same in both blocks."""
    cache = found.layer.kv_cache
    is_, should = (cache[number].flatten() for number in (block, goal))
    other = torch.ones(len(is_), dtype=torch.bool, device=is_.device)
    other[found.index.flatten()] = False
    if not torch.equal(is_[other], should[other]):
        raise CannotShift(f"a move changes more than the keys of {found.layer.name}")
