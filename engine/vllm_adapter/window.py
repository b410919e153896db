"""The anchored window: forget the middle of a resident session, exactly.

    before   [ sink ][ dropped ............ ][ window ]      positions 0 .. n
    after    [ sink ][ window ]                              positions 0 .. n - delta

Whole blocks leave the block table, the window's keys are turned back by `delta` positions, and the request is
renumbered. From then on the session *is* the shorter sequence: stock scheduler, stock kernels, bounded positions,
bounded KV, no re-prefill. Values do not depend on position and stay as they are. (A window's keys of layers above the
first still carry what they attended to before the drop; that is the point of a window over a re-prefill.)

Keys move in one gather, one rotation and one scatter per layer for all sessions of a step.
"""

import logging
from dataclasses import dataclass
from typing import Any

import torch

from engine.vllm_adapter.compat import Layer, VllmCore
from engine.vllm_adapter.key_layout import LayoutUnknown, probe_layout
from engine.vllm_adapter.rope import NotRotary, Rotation

logger = logging.getLogger(__name__)

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


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
class _ShiftedLayer:
    """What it takes to move one layer's keys."""

    layer: Layer
    rotation: Rotation
    first: (
        torch.Tensor
    )  # int64, positions in a flattened block of each pair's first element, by (token, head, pair)
    second: torch.Tensor


class KeyShift:
    """Moves resident keys along the sequence, in every layer."""

    def __init__(self, core: VllmCore) -> None:
        """Find the layouts and check them on a scratch block.

        Raises:
            CannotShift: a layer's keys cannot be moved.
        """
        if not core.plain_attention:
            raise CannotShift("not every layer is plain full attention")
        layers = core.layers()
        if not layers:
            raise CannotShift("the model has no attention layers")
        if core.max_model_len < 2 * core.block_size:
            raise CannotShift("a context holds no two blocks")
        self._block_size = core.block_size
        scratch = core.take_block()
        try:
            self._layers = _survey(core, layers, scratch)
            self._check(scratch)
        finally:
            core.give_block(scratch)

    @classmethod
    def create(cls, core: VllmCore) -> "KeyShift | None":
        """None, and the reason in the log, if this model's keys cannot be moved."""
        try:
            return cls(core)
        except (CannotShift, LayoutUnknown, NotRotary) as reason:
            logger.warning("no exact drops here, long sessions are re-prefilled: %s", reason)
            return None

    @torch.inference_mode()
    def apply(self, moves: list[Move]) -> None:
        """Move the keys. All sources are read before any destination is written, layer by layer."""
        # Layers with the same block table and rotation share a plan.
        plans: dict[tuple[int, int], _Plan] = {}
        for shifted in self._layers:
            key = shifted.layer.group, id(shifted.rotation)
            if key not in plans:
                plans[key] = _plan(moves, shifted.layer.group, shifted.rotation, self._block_size)
            if len(plans[key].source):
                _shift(shifted, plans[key])

    def _check(self, scratch: int) -> None:
        """Move a block's keys back and forth; nothing else may change, and they must return to where they were.

        Raises:
            CannotShift: they do not.
        """
        block = self._block_size
        there = Move([[(scratch, scratch)]] * len(self._layers), start=0, delta=block)
        back = Move(there.tables, start=block, delta=-block)
        for shifted in self._layers:
            cache = shifted.layer.kv_cache
            saved = cache[scratch].clone()
            cache[scratch] = torch.linspace(-1, 1, saved.numel()).view(saved.shape).to(cache)
            seen = [cache[scratch].flatten().to(torch.float32, copy=True)]
            for move in (there, back):
                _shift(shifted, _plan([move], 0, shifted.rotation, block))
                seen.append(cache[scratch].flatten().to(torch.float32, copy=True))
            cache[scratch] = saved
            before, moved, after = seen
            other = torch.ones_like(before, dtype=torch.bool)
            other[shifted.first] = other[shifted.second] = False
            stays = torch.equal(before[other], moved[other]) and not torch.equal(before, moved)
            if not (stays and torch.allclose(before, after, atol=2e-2)):
                raise CannotShift(f"{shifted.layer.name} does not survive a shift there and back")


def _survey(core: VllmCore, layers: list[Layer], scratch: int) -> list[_ShiftedLayer]:
    """Layout and rotation of every layer; equal layers share them.

    Raises:
        CannotShift, LayoutUnknown, NotRotary: with the reason.
    """
    layouts: dict[Any, torch.Tensor] = {}
    rotations: dict[int, Rotation] = {}
    found = []
    for layer in layers:
        cache, module = layer.kv_cache, layer.module
        if not isinstance(cache, torch.Tensor) or cache.dtype not in _FLOATS:
            raise CannotShift(f"{layer.name} keeps its keys quantised")
        if cache.shape[0] != core.total_blocks + 1:
            raise CannotShift(f"{layer.name} does not address its memory by whole blocks")
        if layer.rope is None:
            raise CannotShift(f"{layer.name} has no rotary embedding")
        if not hasattr(module.impl, "do_kv_cache_update"):
            raise CannotShift(f"{layer.name} writes its cache inside its kernel")
        key = (
            type(module.impl),
            cache.shape,
            cache.stride(),
            module.num_kv_heads,
            module.head_size,
        )
        if key not in layouts:
            layouts[key] = probe_layout(module, cache, scratch, core.block_size)
        if id(layer.rope) not in rotations:
            rotations[id(layer.rope)] = Rotation(layer.rope, core.max_model_len)
        layout, rotation = layouts[key], rotations[id(layer.rope)]
        first = layout[..., rotation.first].reshape(-1)
        second = layout[..., rotation.second].reshape(-1)
        found.append(_ShiftedLayer(layer, rotation, first, second))
    return found


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to copy where, for layers with one block table and one rotation."""

    source: torch.Tensor  # int64, (blocks,)
    target: torch.Tensor
    factors: tuple[torch.Tensor, torch.Tensor]  # float32, (blocks, tokens, 1, pairs)


def _plan(moves: list[Move], group: int, rotation: Rotation, block_size: int) -> _Plan:
    rows = [
        (source, target, move.start + index * block_size, move.delta)
        for move in moves
        for index, (source, target) in enumerate(move.tables[group])
    ]
    source, target, start, delta = torch.tensor(rows, dtype=torch.int64).view(-1, 4).unbind(1)
    after = start[:, None] + torch.arange(block_size)
    real, imaginary = rotation.between(after + delta[:, None], after)
    return _Plan(source, target, (real.unsqueeze(2), imaginary.unsqueeze(2)))


def _shift(shifted: _ShiftedLayer, plan: _Plan) -> None:
    """Copy blocks with their keys turned."""
    cache = shifted.layer.kv_cache
    count, tokens, _, pairs = plan.factors[0].shape
    raw = cache[plan.source.to(cache.device)].reshape(count, -1)
    first = raw[:, shifted.first].float().view(count, tokens, -1, pairs)
    second = raw[:, shifted.second].float().view(count, tokens, -1, pairs)
    first, second = shifted.rotation.turn(first, second, plan.factors)
    raw[:, shifted.first] = first.reshape(count, -1).to(raw.dtype)
    raw[:, shifted.second] = second.reshape(count, -1).to(raw.dtype)
    cache[plan.target.to(cache.device)] = raw.view(count, *cache.shape[1:])
