"""The anchored window: forget the middle of a resident session, exactly.

    before   [ sink ][ dropped ............ ][ window ]      positions 0 .. n
    after    [ sink ][ window ]                              positions 0 .. n - delta

Whole blocks leave the block table, the window's keys are turned back by `delta` positions, and the request is
renumbered. From then on the session *is* the shorter sequence: stock scheduler, stock kernels, bounded positions,
bounded KV, no re-prefill. Values do not depend on position and stay as they are. (A window's keys of layers above the
first still carry what they attended to before the drop; that is the point of a window over a re-prefill.)

This is the engine's side: who moves, and whether anybody can. Each worker moves its own keys (key_mover.py).
"""

import logging
from collections.abc import Sequence

from engine.vllm_adapter.compat import VllmCore
from engine.vllm_adapter.key_mover import CannotShift, Rehearsal
from engine.vllm_adapter.key_mover import Move as Move
from engine.vllm_adapter.sampling import sampling_params
from engine.work import Sampling

logger = logging.getLogger(__name__)

_REHEARSAL = "rehearsal"  # request id; sessions' have a number


class KeyShift:
    """Moves resident keys along the sequence, in every layer, on every worker."""

    def __init__(self, core: VllmCore) -> None:
        """Rehearse a move in every layer of every worker.

        Raises:
            CannotShift: a layer's keys cannot be moved.
        """
        if not core.plain_attention:
            raise CannotShift("not every layer is plain full attention")
        if core.max_model_len <= 2 * core.block_size:
            raise CannotShift("a context holds no two blocks")
        self._core = core
        tables = core.tables
        if core.free_blocks < 4 * tables:
            raise CannotShift("the pool holds no four blocks")
        scratch = [core.take_block() for _ in range(tables)]
        try:
            reasons = self._rehearse(scratch)
        finally:
            for block in scratch:
                core.give_block(block)
        for reason in reasons:
            if reason is not None:
                raise CannotShift(reason)

    @classmethod
    def create(cls, core: VllmCore) -> "KeyShift | None":
        """None, and the reason in the log, if this model's keys cannot be moved."""
        try:
            return cls(core)
        except CannotShift as reason:
            logger.warning("no exact drops here, long sessions are re-prefilled: %s", reason)
            return None

    def apply(self, moves: Sequence[Move]) -> None:
        """Move the keys."""
        self._core.on_workers("metronome_move_keys", list(moves))

    def _rehearse(self, scratch: list[int]) -> list[str | None]:
        """Why each worker cannot move keys, None where it can."""
        core, length = self._core, 2 * self._core.block_size
        token = core.vocab_size // 2
        core.append(_REHEARSAL, [token] * length, sampling_params(Sampling(), 1, ()), None)
        try:
            while not any(output.finished for output in core.step()):
                pass
            first, second = zip(*core.blocks(_REHEARSAL, 0, length), strict=True)
            rehearsal = Rehearsal(list(first), list(second), scratch)
            return core.on_workers("metronome_prepare_keys", rehearsal)
        finally:
            core.forget_cached(_REHEARSAL)
            core.abort(_REHEARSAL)
