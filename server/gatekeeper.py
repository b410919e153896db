"""The admission controller while the server runs: its clock, its ears and its memory on disk. It is pure itself."""

import hashlib
import logging
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from admission import learned
from admission.controller import Controller
from admission.explain import Bound, binding, bounds, explain
from admission.learned import Learned
from admission.resources import Reading
from engine.clock import Clock
from engine.engine import Engine
from engine.observer import Observer, StepStats, TickStats, TurnStats

_log = logging.getLogger(__name__)

_SAVE_EVERY_S = 60.0


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
        if self._memory is not None and self.controller.tempo.outlook.cost.ready:
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
        outlook = controller.tempo.outlook
        return AdmissionReadings(
            limits={b.name: b.limit for b in found if b.unit == "sessions" and b.limit < inf},
            shares={bound.name: min(bound.share, 1e6) for bound in found},
            binding=binding(found).name,
            projected_load=outlook.load(controller.fleet.demand),
            gain=outlook.cost.regime.gain,
            tail=outlook.tail.known.slowest,
            admitted=controller.decisions["admitted"],
        )


def _cpu_s() -> float:
    """CPU time of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
