"""Calibration of the controller on a simulated machine: the production procedure, with the plant for an engine."""

from dataclasses import replace

import numpy as np

from admission.calibration import TICKS_EACH, Calibration, Soak, SoakPart, SoakProbe, StepProbe
from admission.cost_model import StepSample
from admission.learned import Learned
from admission.port import Lease, Request
from admission.settings import AdmissionSettings
from bench.admission_plant import HICCUP, Plant
from bench.admission_sim import Simulation
from bench.admission_terms import Caller, Floats

_SETTLE_S = 2.0


class Watch:
    """A door that lets everybody in and keeps what it is told."""

    interval_s = 0.5
    limit = 0.0

    def __init__(self) -> None:
        self.soak = Soak()
        self._part = SoakPart()  # what is seen before all is settled is forgotten

    def try_admit(self, now: float, request: Request) -> Lease:
        return Lease(request.tenant, now)

    def release(self, now: float, lease: Lease) -> None: ...

    def ticks(self, shares: Floats, missed: int) -> None:
        for share in shares.tolist():
            self._part.ticks.add(share, missed=share > 1)

    def step(self, sessions: int, seconds: float, residents: int, tokens: float) -> None:
        self._part.steps.append(StepSample(sessions, seconds, tokens * sessions / residents))

    def control(self, now: float, reading: object) -> None:
        if now >= _SETTLE_S:
            self._part = self.soak.part(now - _SETTLE_S)


def calibrate(plant: Plant, settings: AdmissionSettings, seed: int) -> Learned:
    """What a calibration on this plant, noise included, learns."""
    rng = np.random.default_rng(seed)
    plant = replace(plant, calls=plant.calls[:1])  # ordinary sessions only
    calibration = Calibration(settings, plant.pool_windows, plant.header)
    while (probe := calibration.next()) is not None:
        if isinstance(probe, StepProbe):
            calibration.stepped(probe, [_tick_s(plant, probe, rng) for _ in range(TICKS_EACH)])
        else:
            calibration.soaked(probe, run_soak(plant, probe, int(rng.integers(2**31))))
    return calibration.result(plant.name, plant.cost.token_s * plant.header)


def _tick_s(plant: Plant, probe: StepProbe, rng: np.random.Generator) -> float:
    """As many steps as a tick takes, all sessions in each; in every step some of them are at their audio."""
    call, n = plant.calls[0], probe.sessions
    mean_s = plant.step_s(n, n + round(n * call.prefill / call.steps), n * probe.tokens)
    noise = np.exp(rng.normal(0, plant.noise, call.steps))
    spikes = np.where(rng.random(call.steps) < plant.spike, rng.uniform(*HICCUP), 1.0)
    return float(mean_s * (noise * spikes).sum())


def run_soak(plant: Plant, probe: SoakProbe, seed: int) -> Soak:
    watch = Watch()
    callers = [Caller(0.0, np.inf)] * probe.sessions
    simulation = Simulation(plant, watch, callers, _SETTLE_S + probe.seconds, seed)
    simulation.full_age = True
    simulation.run()
    return watch.soak
