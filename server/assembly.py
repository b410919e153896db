"""Turns a configuration into the parts it names: model, executor, engine, session defaults.

Heavy packages (torch, vLLM, onnxruntime) are first imported in here, when `build_engine` is called, so that the thread
settings of the environment can be fixed before.
"""

import logging
from dataclasses import replace

from engine.clock import Clock
from engine.engine import Engine
from engine.executor import Executor, SimExecutor, ThreadExecutor
from engine.kv_policy import KvPolicy
from engine.models.base import InteractionModel, ModelSpec
from engine.models.moshi import MoshiVoice
from engine.models.moshi_names import moshi_location
from engine.models.registry import (
    NONE,
    ModelSettings,
    build_bystander,
    build_model,
    is_mistral,
    llm_location,
)
from engine.models.voxtral import KvSpace
from engine.moshi_adapter.settings import MoshiSettings
from engine.observer import Observer
from engine.settings import EngineSettings
from engine.sim_backend import SimBackend, SimCost
from engine.vllm_adapter.settings import VllmSettings
from engine.weights.paths import embedded_dir
from engine.weights.store import verify_embedded
from engine.work import KvSnapshot
from protocol.session_config import SessionDefaults, TurnDetection
from server.config import Config, ConfigError, Problem, environment

_log = logging.getLogger(__name__)

# Of vLLM: contexts that are ending while new ones begin.
_REQUESTS_PER_SESSION = 2


def build_engine(config: Config, clock: Clock, observer: Observer) -> tuple[Engine, Executor]:
    """The engine and its model, loaded but for the backend, which `Engine.start` builds on its own thread.

    And its executor, for whoever must measure the backend between `Engine.start` and `Engine.run`.

    Raises:
        WeightsError: embedded weights are missing or corrupt.
        SpeechUnavailable: a package or file that a speech part needs is missing.
        ConfigError: an id is unknown, a folder is not a model, or a value does not go with vLLM.
    """
    settings = model_settings(config)
    if _needs_embedded(config):
        assert settings.embedded is not None
        verify_embedded(settings.embedded)
    try:
        model = build_model(settings)
        _check_voice(config, model.spec)
        beside = replace(settings, stt=NONE) if model.spec.transcribes else settings
        bystander = build_bystander(beside) if model.spec.decides_turns else None
        executor = _executor(config, settings, clock)
    except ValueError as error:
        raise ConfigError(Problem("model", str(error))) from None
    bounds, policy = _engine_settings(config), _kv_policy(config)
    engine = Engine(model, executor, clock, observer, bounds, policy, bystander=bystander)
    return engine, executor


def _check_voice(config: Config, spec: ModelSpec) -> None:
    if spec.voices and config.model.voice not in spec.voices:
        known = ", ".join(spec.voices)
        raise ConfigError(Problem("model.voice", f"must be one of {known}"))


def turn_budget_s(config: Config, spec: ModelSpec) -> float:
    """What a warm-up must keep to: a tick, or the time from a decided turn to its first output."""
    return spec.tick_ms / 1000 if spec.decides_turns else _engine_settings(config).first_output_s


def _engine_settings(config: Config) -> EngineSettings:
    engine = config.engine
    return EngineSettings(
        inbox_s=engine.inbox_s,
        skip_late_ticks=engine.skip_late_ticks,
        lead_s=engine.lead_s,
        pool_threads=engine.pool_threads,
        max_response_tokens=engine.max_response_tokens,
        out_of_band=engine.out_of_band,
    )


def _kv_policy(config: Config) -> KvPolicy:
    kv = config.engine.kv
    return KvPolicy(kv.policy, kv.window_tokens, kv.slack_tokens, kv.header_tokens)


def model_settings(config: Config) -> ModelSettings:
    """The model part of the configuration, as the engine's registry reads it."""
    model = config.model
    return ModelSettings(
        id=model.id,
        llm=model.llm,
        vad=model.vad_id,
        stt=model.stt_id,
        tts=model.tts,
        public_id=model.public_name,
        tick_ms=model.tick_ms,
        decode_per_tick=model.decode_per_tick,
        prefill_per_tick=model.prefill_per_tick,
        image_tokens=model.image_tokens,
        kv_space=KvSpace(config.engine.vllm.max_model_len, config.engine.vllm.block_size),
        embedded=embedded_dir(environment().cache_dir),
        moshi_prompted=config.engine.moshi.prompted,
        moshi_voices=config.engine.moshi.voices or "",
        moshi=MoshiVoice(config.engine.moshi.silence_dbfs, config.engine.moshi.close_after_ms),
    )


def session_defaults(config: Config, spec: ModelSpec) -> SessionDefaults:
    """What every session starts with."""
    turn = config.turn_detection
    detection = TurnDetection(
        threshold=turn.threshold,
        prefix_padding_ms=turn.prefix_padding_ms,
        silence_duration_ms=turn.silence_duration_ms,
        idle_timeout_ms=turn.idle_timeout_ms,
    )
    return SessionDefaults(
        instructions=config.model.instructions,
        voice=config.model.voice,
        voices=spec.voices or (config.model.voice,),
        turn_detection=detection if turn.enabled else None,
        transcription_model=config.model.stt_id,
        decides_turns=spec.decides_turns,
        sees_images=spec.prefill_per_image > 0,
        max_audio_bytes=config.server.history_audio_bytes,
        keeps_caller=not spec.decides_turns or _has_bystander(config),
    )


def _has_bystander(config: Config) -> bool:
    """True if somebody listens beside a frame-locked model."""
    return {config.model.vad, config.model.stt} != {NONE}


def places(config: Config, model: InteractionModel, kv: KvSnapshot) -> int:
    """How many sessions may be in: the configured number, or fewer if the pool cannot hold them at their plateau.

    Raises:
        ConfigError: the pool cannot hold even one.
    """
    wanted, policy = config.engine.max_sessions, _kv_policy(config)
    reserved, own = config.engine.kv.header_tokens, model.spec.header_tokens
    if own > reserved:
        _log.warning(
            "the model's own header has %d tokens and engine.kv.header_tokens reserves %d: every session takes the "
            "rest from its window",
            own,
            reserved,
        )
    if model.spec.blocks_per_session:
        return min(wanted, kv.total_blocks // model.spec.blocks_per_session)
    if not policy.bounded:
        _log.warning("KV policy %s has no plateau: a long call can fill the pool", policy.name)
        return wanted
    plateau = plateau_blocks(config, model, kv)
    fitting = session_blocks(config, model, kv) // plateau
    if fitting < 1:
        beside = config.engine.out_of_band
        problem = (
            f"one session needs {plateau} KV blocks, as does each of {beside} answers beside a conversation "
            f"(engine.out_of_band), and the pool has {kv.total_blocks}: lower either, or give the pool more memory "
            "(engine.vllm.kv_cache_gib)"
        )
        raise ConfigError(Problem("engine.kv.window_tokens", problem))
    if fitting < wanted:
        _log.warning("the KV pool holds %d sessions; engine.max_sessions asks %d", fitting, wanted)
    return min(wanted, fitting)


def session_blocks(config: Config, model: InteractionModel, kv: KvSnapshot) -> int:
    """KV blocks for conversations: the pool less what answers outside them may take, all calls together."""
    if model.spec.decides_turns:  # gives none
        return kv.total_blocks
    return max(0, kv.total_blocks - config.engine.out_of_band * plateau_blocks(config, model, kv))


def plateau_blocks(config: Config, model: InteractionModel, kv: KvSnapshot) -> int:
    """KV blocks that one session holds at most; 0 if it has no plateau."""
    policy = _kv_policy(config)
    if model.spec.blocks_per_session:
        return model.spec.blocks_per_session
    if not policy.bounded:
        return 0
    tick = model.spec.cost(images=1)
    return policy.plateau_blocks(config.engine.kv.header_tokens, tick.tokens, kv.block_size)


def settled_tokens(config: Config, model: InteractionModel, plateau: int, block_size: int) -> int:
    """Tokens that a session with a plateau of so many blocks holds in the mean, once it is there."""
    policy, most = _kv_policy(config), plateau * block_size
    if model.spec.blocks_per_session or not policy.bounded:
        return most
    return min(most, policy.settled_tokens(config.engine.kv.header_tokens))


def _needs_embedded(config: Config) -> bool:
    model = config.model
    if model.family not in ("cascade", "moshi"):
        return False
    # hibari-tts brings its own weights in its package.
    parts = (model.llm_id, model.vad_id, model.stt_id)
    return any(part.startswith("embedded:") for part in parts)


def _executor(config: Config, settings: ModelSettings, clock: Clock) -> Executor:
    moshi = moshi_location(config.model.id)
    if moshi is not None:
        from engine.moshi_adapter.backend import MoshiBackend

        moshi_settings = _moshi_settings(config, moshi)
        return ThreadExecutor(lambda: MoshiBackend(moshi_settings))
    location = llm_location(settings)
    if location is None:
        sim = config.engine.sim
        cost = SimCost(sim.fixed_s, sim.session_s, sim.token_s, sim.resident_s)
        backend = SimBackend(
            cost,
            block_size=sim.block_size,
            total_blocks=sim.total_blocks,
            max_context=sim.max_context,
        )
        return SimExecutor(backend, clock)
    from engine.vllm_adapter.backend import VllmBackend

    vllm_settings = _vllm_settings(config, location)
    return ThreadExecutor(lambda: VllmBackend(vllm_settings))


def _moshi_settings(config: Config, location: str) -> MoshiSettings:
    moshi = config.engine.moshi
    return MoshiSettings(
        location,
        slots=config.engine.max_sessions,
        device=moshi.device,
        dtype=moshi.dtype,
        context_frames=moshi.context_frames,
        temperature=moshi.temperature,
        text_temperature=moshi.text_temperature,
        prompted=moshi.prompted,
        voices=moshi.voices or "",
        prompt_frames=moshi.prompt_frames,
    )


def _vllm_settings(config: Config, location: str) -> VllmSettings:
    vllm, kv = config.engine.vllm, config.engine.kv
    return VllmSettings(
        model=location,
        dtype=vllm.dtype,
        block_size=vllm.block_size,
        max_model_len=vllm.max_model_len,
        max_num_seqs=_REQUESTS_PER_SESSION * config.engine.max_sessions + config.engine.out_of_band,
        max_num_batched_tokens=vllm.max_num_batched_tokens,
        kv_cache_gib=vllm.kv_cache_gib or 0.0,
        gpu_memory_utilization=vllm.gpu_memory_utilization or 0.9,
        enforce_eager=vllm.enforce_eager,
        load_format=vllm.load_format,
        trust_remote_code=vllm.trust_remote_code,
        images=config.model.image_tokens > 0,  # only where the model sees
        mistral=is_mistral(model_settings(config)),
        sliding_window=kv.window_tokens if kv.policy == "sliding" else None,
    )
