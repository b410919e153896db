"""What must hold of the block pool and of every waiting request between two steps."""

from typing import Any

from engine.vllm_adapter.backend import VllmBackend


def check_integrity(backend: VllmBackend) -> None:
    """Assert the conservation laws: each block is free or referenced, tables, tokens and positions agree."""
    core = backend._core
    references: dict[int, int] = {}
    for session in backend._sessions.values():
        request: Any = core._scheduler.requests[session.request_id]
        computed, tokens = request.num_computed_tokens, len(request._all_token_ids)
        assert len(request.prompt_token_ids) == request.num_prompt_tokens
        assert request._all_token_ids == request.prompt_token_ids + request._output_token_ids
        assert len(request.block_hashes) == (
            tokens // core.block_size if request._block_hasher else 0
        )
        if session.append is None:
            assert tokens == session.context == computed + 1
        for manager in core._managers:
            table = manager.req_to_blocks[session.request_id]
            assert len(table) == -(-computed // core.block_size)
            moved_from = core._shifted.get(session.request_id, tokens) // core.block_size
            for block in table[moved_from:]:  # their KV is no prefill's: nobody else may find it
                assert block.ref_cnt == 1
                assert block.block_hash is None
            for block in table:
                references[block.block_id] = references.get(block.block_id, 0) + 1
    blocks = [block for block in core._pool.blocks if not block.is_null]
    assert {b.block_id: b.ref_cnt for b in blocks if b.ref_cnt} == references
    assert core.free_blocks + len(references) == core.total_blocks
    free = {block.block_id for block in core._pool.free_block_queue.get_all_free_blocks()}
    assert free.isdisjoint(references)
