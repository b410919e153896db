"""The one file that names private parts of vLLM 0.32; the rest of the adapter sees only what is defined here.

vLLM has no public interface for what a beat-keeping server needs: stepping the core synchronously in this process,
reading the block pool, and editing a resident request between two steps. Each private name is listed with its reason:

    EngineCore, Executor.get_class     the synchronous core; public front ends run it in another process or loop
    EngineCoreRequest(resumable=True)  an append to a request whose KV stays resident
    scheduler.requests                 token list and computed length of a resident request
    kv_cache_manager.coordinator, .block_pool, req_to_blocks, num_cached_block
                                       block tables and the prefix cache's book-keeping, edited by `rewind`, `splice`
    structured_output_manager.tokenizer
                                       whether calls can be held to a schema; set only where there is one
    request._all_token_ids, _output_token_ids, prompt_token_ids, block_hashes
                                       the token lists that must stay in step with the block table
    encoder_cache_manager.request_cached_ids, request.mm_features, num_preemptions
                                       features of audio that was heard, to let go of them
    static_forward_context, driver_worker, model_runner, do_kv_cache_update
                                       attention modules and their raw KV memory, for the key shift

Editing is safe only while a request waits for its next chunk (WAITING_FOR_STREAMING_REQ): the worker is then sent the
whole token list and block table again, as for a new request (vllm/v1/worker/gpu_model_runner.py,
_update_streaming_request, 0.32.0).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.vllm_adapter.environment import EngineUnavailable, check_model, check_version
from engine.vllm_adapter.mrope import audio_positions
from engine.vllm_adapter.multimodal import (
    FeatureTranslator,
    bypass_processors,
    do_without_torchvision,
    encoder_of,
    engine_arguments,
)
from engine.vllm_adapter.settings import VllmSettings

_NEVER_CACHED = (
    1 << 62
)  # as num_cached_block: "all blocks are in the prefix cache", so none is ever added


@dataclass(frozen=True, slots=True)
class Output:
    """What one step gave one request."""

    request_id: str
    token_ids: list[int]
    finished: bool  # its chunk is complete
    failed: bool  # vLLM gave the request up


@dataclass(frozen=True, slots=True)
class Layer:
    """One attention layer that owns KV memory."""

    name: str
    group: int  # index of the block table it is addressed by
    module: Any  # vllm Attention: num_kv_heads, head_size, impl
    kv_cache: Any  # torch tensor, blocks first
    rope: Any | None  # the rotary embedding beside it, None if there is none


class VllmCore:
    """An EngineCore on the thread that made it; nothing runs unless `step` is called."""

    def __init__(self, settings: VllmSettings) -> None:
        check_version()
        check_model(settings)
        self._core = _build(settings)
        self._scheduler = self._core.scheduler
        self._pool = self._scheduler.kv_cache_manager.block_pool
        self._managers = self._scheduler.kv_cache_manager.coordinator.single_type_managers
        # Request id -> its first token whose KV is not what a fresh prefill would give.
        self._shifted: dict[str, int] = {}
        config = self._core.vllm_config
        self.block_size: int = config.cache_config.block_size
        self.max_model_len: int = config.model_config.max_model_len
        self.max_requests: int = config.scheduler_config.max_num_seqs
        self.vocab_size: int = config.model_config.get_vocab_size()
        # Block 0 is vLLM's null block and is never handed out.
        self.total_blocks: int = self._pool.num_gpu_blocks - 1
        self.plain_attention: bool = self._all_full_attention()  # every layer keeps every token
        encoder = encoder_of(config.model_config.architectures)
        self.features = FeatureTranslator(encoder) if encoder else None  # None: a text model
        if self.features is not None:
            audio_positions(self.model)

    # -- requests --------------------------------------------------------------------------------

    def append(
        self, request_id: str, token_ids: Sequence[int], params: Any, features: list[Any] | None
    ) -> None:
        """Open the request, or append to it if it waits. vLLM drops the last sampled token: feed it again.

        `features` are vLLM's `MultiModalFeatureSpec`s, with offsets within `token_ids`.
        """
        from vllm.v1.engine import EngineCoreRequest

        request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=list(token_ids),
            mm_features=features,
            sampling_params=params,
            pooling_params=None,
            arrival_time=0.0,  # only orders requests under vLLM's priority policy, which is off
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
            resumable=True,
        )
        self._core.add_request(*self._core.preprocess_add_request(request))

    def check_schema(self, params: Any) -> None:
        """See to it that sampling parameters with a schema cannot fail inside the core.

        Raises:
            ValueError: the schema is not one, or asks for what the grammar compiler does not know.
        """
        from vllm.exceptions import VLLMValidationError

        config, manager = self._core.vllm_config, self._core.structured_output_manager
        tokenizer = getattr(manager, "tokenizer", None)  # absent where the model came without one
        try:
            params.verify(config.model_config, None, config.structured_outputs_config, tokenizer)
        except VLLMValidationError as invalid:  # it is no ValueError
            raise ValueError(str(invalid)) from invalid

    def abort(self, request_id: str) -> None:
        """End the request, running or waiting, and free its KV."""
        self._shifted.pop(request_id, None)
        self._core.abort_requests([request_id])

    def step(self) -> list[Output]:
        """One engine iteration."""
        from vllm.v1.engine import FinishReason

        outputs, executed = self._core.step()
        self._core.post_step(executed)
        results = [
            Output(
                out.request_id,
                out.new_token_ids,
                out.finish_reason is not None,
                out.finish_reason in (FinishReason.ABORT, FinishReason.ERROR)
                or self._lost_audio(out.request_id),
            )
            for batch in outputs.values()
            for out in batch.outputs
        ]
        if self.features is not None:
            for result in results:
                if result.finished:
                    self._prune(result.request_id)
        return results

    def _lost_audio(self, request_id: str) -> bool:
        """True if vLLM preempted the request: it would compute it again, but what was heard is not kept."""
        if self.features is None:
            return False
        request = self._scheduler.requests.get(request_id)
        return request is not None and request.num_preemptions > 0

    def _prune(self, request_id: str) -> None:
        """Let go of a finished chunk's features; vLLM would keep and walk them for as long as the call lasts."""
        request = self._scheduler.requests.get(request_id)
        cached = self._scheduler.encoder_cache_manager.request_cached_ids
        if request is not None and request.mm_features and not cached.get(request_id):
            request.mm_features.clear()

    def held_features(self, request_id: str) -> int:
        """Features that vLLM still keeps for a request."""
        return len(self._scheduler.requests[request_id].mm_features)

    def reseed(self, request_id: str, seed: int | None) -> None:
        """Draw a resident request's next tokens from a new stream; vLLM seeds a request at its first chunk only."""
        state = self._runner.requests.get(request_id)
        if state is None:  # not sent to the worker yet: its first chunk carries the seed
            return
        import torch

        generator = None if seed is None else torch.Generator(self._runner.device).manual_seed(seed)
        state.generator = generator

    def shutdown(self) -> None:
        self._core.shutdown()

    # -- the pool and what lies in it ------------------------------------------------------------

    @property
    def free_blocks(self) -> int:
        return int(self._pool.get_num_free_blocks())

    def resident(self, request_id: str) -> int:
        """Tokens of the request that have KV. One less than its context while it waits: the last sampled has none."""
        return int(self._scheduler.requests[request_id].num_computed_tokens)

    def tokens(self, request_id: str, start: int, stop: int) -> list[int]:
        """The request's tokens [start, stop), appended and sampled."""
        return list(self._scheduler.requests[request_id]._all_token_ids[start:stop])

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

    def take_block(self) -> int:
        """A block of the pool for scratch use; hand it to `give_block`."""
        return int(self._pool.get_new_blocks(1)[0].block_id)

    def give_block(self, block_id: int) -> None:
        self._pool.free_blocks([self._pool.blocks[block_id]])

    def layers(self) -> list[Layer]:
        """The attention layers that own KV memory, each once."""
        modules = self._core.vllm_config.compilation_config.static_forward_context
        model = self.model
        found: dict[int, Layer] = {}  # by memory address: layers that share a cache are one
        for group, spec in enumerate(self._scheduler.kv_cache_config.kv_cache_groups):
            for name in spec.layer_names:
                module = modules[name]
                rope = getattr(model.get_submodule(name.rpartition(".")[0]), "rotary_emb", None)
                kv_cache = module.kv_cache
                found.setdefault(kv_cache.data_ptr(), Layer(name, group, module, kv_cache, rope))
        return list(found.values())

    @property
    def model(self) -> Any:
        """The loaded model, a torch module."""
        return self._runner.get_model()

    @property
    def _runner(self) -> Any:
        return self._core.model_executor.driver_worker.worker.model_runner

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


def _build(settings: VllmSettings) -> Any:
    """A synchronous EngineCore.

    Raises:
        EngineUnavailable: vLLM does not accept the model or the settings.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.exceptions import VLLMError
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.abstract import Executor

    from engine.vllm_adapter.logits import TokenRulesProcessor  # imports vLLM

    arguments = EngineArgs(
        model=settings.model,
        dtype=settings.dtype,
        seed=settings.seed,
        block_size=settings.block_size,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=max(settings.max_num_batched_tokens, settings.max_num_seqs),
        kv_cache_memory_bytes=int(settings.kv_cache_gib * 2**30) or None,
        num_gpu_blocks_override=None
        if settings.total_blocks is None
        else settings.total_blocks + 1,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        enforce_eager=settings.enforce_eager,
        enable_prefix_caching=settings.prefix_caching,
        load_format=settings.load_format,
        trust_remote_code=settings.trust_remote_code,
        hf_overrides=settings.config_overrides,
        # Tokens in, tokens out; but grammars are compiled for a tokenizer's vocabulary.
        skip_tokenizer_init=not settings.has_tokenizer,
        structured_outputs_config={"backend": "guidance", "disable_any_whitespace": True},
        generation_config="vllm",  # sampling is always given
        disable_log_stats=True,
        async_scheduling=False,
        distributed_executor_backend="uni",
        logits_processors=[TokenRulesProcessor],
        **engine_arguments(),
    )
    bypass_processors()
    if settings.is_local:
        do_without_torchvision(Path(settings.model))
    try:
        config = arguments.create_engine_config()
        if encoder_of(config.model_config.architectures) is not None:
            # Placeholders have equal ids whatever was said: blocks of audio must not be found by their tokens.
            config.cache_config.enable_prefix_caching = False
        return EngineCore(config, Executor.get_class(config), log_stats=False)
    except (VLLMError, ValueError, OSError, RuntimeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # pydantic counts its errors in the first line and says what is wrong in the second.
        reason = next(
            (line for line in lines if "validation error" not in line), type(error).__name__
        )
        raise EngineUnavailable(f"vLLM cannot load {settings.model!r}: {reason}") from error
