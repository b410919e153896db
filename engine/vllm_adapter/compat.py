"""The private parts of vLLM 0.32: here, in compat_kv.py and compat_worker.py. The rest of the adapter names none.

vLLM has no public interface for what a beat-keeping server needs: stepping the core synchronously in this process,
reading the block pool, and editing a resident request between two steps. Each private name is listed with its reason:

    EngineCore, Executor.get_class     the synchronous core; public front ends run it in another process or loop
    EngineCoreRequest(resumable=True)  an append to a request whose KV stays resident
    structured_output_manager.tokenizer
                                       whether calls can be held to a schema; set only where there is one
    request.structured_output_request, request.status
                                       the grammar of a resident request's next append
    encoder_cache_manager.request_cached_ids, request.mm_features, request.status
                                       features of audio that was heard, to let go of them
    model_executor.driver_worker, model_runner
                                       the model itself, and the random streams of its requests
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.vllm_adapter.compat_kv import ResidentKv
from engine.vllm_adapter.environment import (
    EngineUnavailable,
    check_model,
    check_runner,
    check_version,
)
from engine.vllm_adapter.llvmlite_handle import hide_dunder_names
from engine.vllm_adapter.mrope import sequential_positions
from engine.vllm_adapter.multimodal import (
    FeatureTranslator,
    bypass_processors,
    do_without_torchvision,
    encoder_of,
    engine_arguments,
)
from engine.vllm_adapter.settings import VllmSettings


@dataclass(frozen=True, slots=True)
class Output:
    """What one step gave one request."""

    request_id: str
    token_ids: list[int]
    finished: bool  # its chunk is complete
    failed: bool  # vLLM gave the request up


class VllmCore(ResidentKv):
    """An EngineCore on the thread that made it; nothing runs unless `step` is called."""

    def __init__(self, settings: VllmSettings) -> None:
        check_version()
        check_model(settings)
        self._core = _build(settings)
        super().__init__(self._core)
        check_runner(self._runner)
        config = self._core.vllm_config
        self.max_model_len: int = config.model_config.max_model_len
        self.max_requests: int = config.scheduler_config.max_num_seqs
        self.vocab_size: int = config.model_config.get_vocab_size()
        encoder = encoder_of(config.model_config.architectures)
        # None: a text model
        self.features = FeatureTranslator(encoder, settings.images) if encoder else None
        if self.features is not None:
            sequential_positions(self.model)
            from engine.vllm_adapter.short_audio import encode_short  # imports torch

            encode_short(self.model)

    # -- requests --------------------------------------------------------------------------------

    def append(
        self,
        request_id: str,
        token_ids: Sequence[int],
        params: Any,
        features: list[Any] | None,
        *,
        same_grammar: bool = False,
    ) -> None:
        """Open the request, or append to it if it waits. vLLM drops the last sampled token: feed it again.

        `features` are vLLM's `MultiModalFeatureSpec`s, with offsets within `token_ids`. `same_grammar`: what is decoded
        goes on under the grammar of the append before, whatever `params` say; else under that of `params`, or none.
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
        prepared, wave = self._core.preprocess_add_request(request)
        resident = self._scheduler.requests.get(request_id)
        self._core.add_request(prepared, wave)
        if resident is not None and not same_grammar:
            _hold(resident, prepared.structured_output_request)

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
                out.finish_reason in (FinishReason.ABORT, FinishReason.ERROR),
            )
            for batch in outputs.values()
            for out in batch.outputs
        ]
        if self.features is not None:
            for result in results:
                if result.finished:
                    self._prune(result.request_id)
            results += self._lost_audio()
        return results

    def _lost_audio(self) -> list[Output]:
        """Requests that vLLM preempted: it would compute them again, but what was heard is not kept."""
        from vllm.v1.request import RequestStatus

        return [
            Output(request_id, [], True, True)
            for request_id, request in self._scheduler.requests.items()
            if request.status == RequestStatus.PREEMPTED
        ]

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

    # -- workers ---------------------------------------------------------------------------------

    def on_workers(self, method: str, *arguments: Any) -> list[Any]:
        """What this method of `KeyMover` returns on each worker: one per GPU under tensor parallelism."""
        answers: list[Any] = self._core.model_executor.collective_rpc(method, args=arguments)
        return answers

    @property
    def model(self) -> Any:
        """The loaded model, a torch module."""
        return self._runner.get_model()

    @property
    def _runner(self) -> Any:
        return self._core.model_executor.driver_worker.worker.model_runner


def _hold(resident: Any, grammar: Any) -> None:
    """Let a resident request that was just appended to decode under this grammar, or under none.

    vLLM takes over an append's tokens and sampling parameters, but not its grammar (vllm/v1/core/sched/scheduler.py,
    _update_request_as_session, 0.32.0).
    """
    from vllm.v1.request import RequestStatus

    resident.structured_output_request = grammar
    if grammar is not None:  # scheduled once it is compiled, as a new request would be
        resident.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR


# Of a GPU, enough to pass vLLM's check at the start that so much of it is free.
_HARDLY_ANY = 0.01


def _share_of_the_card(settings: VllmSettings) -> float:
    """What vLLM may take of the device's memory.

    With a pool of a given size the share decides nothing, and yet a GPU worker refuses to start unless it is free
    (vllm/v1/worker/utils.py, request_memory, 0.32.0; the CPU worker does not ask): on a card that shows a desktop, or
    beside another engine, a small pool would be refused for nothing.
    """
    return settings.gpu_memory_utilization if settings.kv_cache_gib == 0 else _HARDLY_ANY


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
        gpu_memory_utilization=_share_of_the_card(settings),
        enforce_eager=settings.enforce_eager,
        enable_prefix_caching=settings.prefix_caching,
        **settings.file_formats,
        trust_remote_code=settings.trust_remote_code,
        hf_overrides=settings.config_overrides,
        # Tokens in, tokens out; but grammars are compiled for a tokenizer's vocabulary.
        skip_tokenizer_init=not settings.has_tokenizer,
        structured_outputs_config={"backend": "guidance", "disable_any_whitespace": True},
        generation_config="vllm",  # sampling is always given
        disable_log_stats=True,
        use_tqdm_on_load=False,
        async_scheduling=False,
        distributed_executor_backend="uni",
        worker_extension_cls="engine.vllm_adapter.key_mover.KeyMover",
        logits_processors=[TokenRulesProcessor],
        **engine_arguments(settings.images),
    )
    bypass_processors()
    hide_dunder_names()
    if settings.is_local:
        do_without_torchvision(Path(settings.model))
    try:
        config = arguments.create_engine_config()
        encoder = encoder_of(config.model_config.architectures)
        if encoder is not None:
            # Placeholders have equal ids whatever was said: blocks of audio must not be found by their tokens.
            config.cache_config.enable_prefix_caching = False
        own_tables = encoder is not None and encoder.keeps_kv
        if not (config.model_config.is_hybrid or own_tables):
            # Layers with a sliding window among full ones: one block table for all, so that all can be cut alike. A
            # bounded session holds no more by that; state-space models cannot do without their own tables.
            config.scheduler_config.disable_hybrid_kv_cache_manager = True
        return EngineCore(config, Executor.get_class(config), log_stats=False)
    except (VLLMError, ValueError, OSError, RuntimeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # pydantic counts its errors in the first line and says what is wrong in the second.
        reason = next(
            (line for line in lines if "validation error" not in line), type(error).__name__
        )
        raise EngineUnavailable(f"vLLM cannot load {settings.model!r}: {reason}") from error
