"""Block tables and token lists of resident requests, edited in place: the private names of vLLM 0.32's KV cache.

    scheduler.requests                 token list and computed length of a resident request
    kv_cache_manager.coordinator, .block_pool, req_to_blocks, num_cached_block
                                       block tables and the prefix cache's book-keeping, edited by `rewind`, `splice`
    request._all_token_ids, _output_token_ids, prompt_token_ids, block_hashes
                                       the token lists that must stay in step with the block table

Editing is safe only while a request waits for its next chunk (WAITING_FOR_STREAMING_REQ): the worker is then sent the
whole token list and block table again, as for a new request (vllm/v1/worker/gpu_model_runner.py,
_update_streaming_request, 0.32.0).
"""

from typing import Any

_NEVER_CACHED = (
    1 << 62
)  # as num_cached_block: "all blocks are in the prefix cache", so none is ever added


class ResidentKv:
    """What requests hold in the block pool of one engine core."""

    def __init__(self, core: Any) -> None:
        """`core`: a vLLM EngineCore."""
        self._scheduler = core.scheduler
        self._pool = self._scheduler.kv_cache_manager.block_pool
        self._managers = self._scheduler.kv_cache_manager.coordinator.single_type_managers
        # Request id -> its first token whose KV is not what a fresh prefill would give.
        self._shifted: dict[str, int] = {}
        self.block_size: int = core.vllm_config.cache_config.block_size
        # Block 0 is vLLM's null block and is never handed out.
        self.total_blocks: int = self._pool.num_gpu_blocks - 1
        self.plain_attention: bool = self._all_full_attention()  # every layer keeps every token

    @property
    def free_blocks(self) -> int:
        return int(self._pool.get_num_free_blocks())

    @property
    def tables(self) -> int:
        """Block tables of each request: one for all layers that keep the same tokens."""
        return len(self._managers)

    def resident(self, request_id: str) -> int:
        """Tokens of the request that have KV. One less than its context while it waits: the last sampled has none."""
        return int(self._scheduler.requests[request_id].num_computed_tokens)

    def tokens(self, request_id: str, start: int, stop: int) -> list[int]:
        """The request's tokens [start, stop), appended and sampled."""
        return list(self._scheduler.requests[request_id]._all_token_ids[start:stop])

    def blocks(self, request_id: str, start: int, stop: int) -> list[list[int]]:
        """Per block table, the ids of the blocks of the tokens [start, stop), whole blocks."""
        whole = slice(start // self.block_size, stop // self.block_size)
        return [
            [block.block_id for block in manager.req_to_blocks[request_id][whole]]
            for manager in self._managers
        ]

    def rewind(self, request_id: str, length: int) -> int:
        """Cut a waiting request's KV to at most `length` tokens; the length it now has.

            [0, kept)  resident · [kept, length)  for the caller to feed again · [length, end)  forgotten

        A block that others may read (shared, or findable by its hash) must not be written again: it is given back
        whole and its part before `length` computed anew. 0 means nothing could be kept: start a new request.
        """
        request = self._scheduler.requests[request_id]
        if length >= request.num_computed_tokens:
            return int(request.num_computed_tokens)
        if not self.plain_attention:  # blocks before the window may be gone already
            return 0
        tables = [manager.req_to_blocks[request_id] for manager in self._managers]
        whole, part = divmod(length, self.block_size)
        if part and not all(self._pool.is_block_writable(table[whole]) for table in tables):
            length, part = length - part, 0
        for table in tables:
            first = whole + (part > 0)
            self._pool.free_blocks(reversed(table[first:]))
            del table[first:]
        self._renumber(request, request._all_token_ids[:length], length)
        if (
            self._shifted.get(request_id, length) >= length
        ):  # all that is left is as a prefill makes it
            self._shifted.pop(request_id, None)
            self._mark_cached(request_id, whole)
        return length

    def splice(self, request_id: str, start: int, stop: int) -> list[list[tuple[int, int]]] | None:
        """Forget the whole blocks [start, stop) (tokens) of a waiting request and close the gap.

        Per block table, the (source, destination) ids of the blocks behind the gap: the caller must move their keys
        `stop - start` positions back before the next step. Source and destination are the same block unless others
        read it too; then it is copied. None, and nothing changed, if there is no room for the copies.
        """
        request = self._scheduler.requests[request_id]
        first, last = start // self.block_size, stop // self.block_size
        tables = [manager.req_to_blocks[request_id] for manager in self._managers]
        shared = sum(block.ref_cnt > 1 for table in tables for block in table[last:])
        freed = sum(block.ref_cnt == 1 for table in tables for block in table[first:last])
        if shared > self.free_blocks + freed:
            return None
        for table in tables:
            self._pool.free_blocks(reversed(table[first:last]))
            del table[first:last]
        moves = [self._make_private(table, first) for table in tables]
        tokens = request._all_token_ids
        self._renumber(
            request, tokens[:start] + tokens[stop:], request.num_computed_tokens - (stop - start)
        )
        # Behind the gap the KV still carries what it attended to before: no other session may ever find it by hash.
        self._shifted[request_id] = min(start, self._shifted.get(request_id, start))
        for manager in self._managers:
            manager.num_cached_block[request_id] = _NEVER_CACHED
        return moves

    def forget_cached(self, request_id: str) -> None:
        """Let no other request find this one's blocks by what they hold."""
        for manager in self._managers:
            blocks = manager.req_to_blocks[request_id]
            self._pool.evict_blocks({block.block_id for block in blocks})

    def take_block(self) -> int:
        """A block of the pool for scratch use; hand it to `give_block`."""
        return int(self._pool.get_new_blocks(1)[0].block_id)

    def give_block(self, block_id: int) -> None:
        self._pool.free_blocks([self._pool.blocks[block_id]])

    def _all_full_attention(self) -> bool:
        from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

        return all(
            type(manager) is FullAttentionManager and manager.block_size == self.block_size
            for manager in self._managers
        )

    def _make_private(self, table: list[Any], first: int) -> list[tuple[int, int]]:
        """Let the request own the blocks of `table` from `first` on alone, findable by no hash."""
        moves = []
        for index in range(first, len(table)):
            source = target = table[index]
            if source.ref_cnt > 1:
                target = table[index] = self._pool.get_new_blocks(1)[0]
                self._pool.free_blocks([source])
            else:
                self._pool.evict_blocks({source.block_id})
            moves.append((source.block_id, target.block_id))
        return moves

    def _renumber(self, request: Any, tokens: list[int], computed: int) -> None:
        """Make the waiting request be `tokens`, the first `computed` of which have KV."""
        request._all_token_ids[:] = tokens  # in place: vLLM keeps read-only views of these lists
        request.prompt_token_ids[:] = tokens[:computed]
        request._output_token_ids[:] = tokens[computed:]
        request.num_prompt_tokens = computed
        request.num_computed_tokens = computed
        request.block_hashes.clear()
        request.update_block_hashes()

    def _mark_cached(self, request_id: str, blocks: int) -> None:
        """At most this many of the request's blocks are in the prefix cache."""
        for manager in self._managers:
            manager.num_cached_block[request_id] = min(
                blocks, manager.num_cached_block.get(request_id, 0)
            )
