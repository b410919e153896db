"""One row of the admission table: a case, a controller, a start; and the capacity that everything is measured in."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from admission.learned import Learned
from bench.admission_calibrate import calibrate
from bench.admission_doors import Baseline, Gradient, Metronome, PerSample, PerWindow, settings_for
from bench.admission_plant import Plant
from bench.admission_scenarios import COLD_S, READY_S, Case
from bench.admission_sim import Simulation
from bench.admission_terms import BIN_S, Caller, Tally

MISS = 0.001  # the share of missed ticks that a capacity may have
_RECOVERED_MISS = 0.01
_RECOVERED_BINS = int(5 / BIN_S)

BASELINES: dict[str, Callable[[int], Baseline]] = {
    "none": lambda capacity: Baseline(float("inf")),
    "static": lambda capacity: Baseline(capacity),
    "aimd_sample": lambda capacity: PerSample(),
    "aimd_window": lambda capacity: PerWindow(),
    "gradient": lambda capacity: Gradient(),
}
STARTS = ("cold", "calibrated", "warm")


@dataclass(frozen=True, slots=True)
class Row:
    """Shares are of 1. `admitted_over_capacity` of a churning scenario is its goodput."""

    plant: str
    seed: int
    scenario: str
    controller: str
    start: str
    fault: bool
    churns: bool
    capacity: int
    miss: float  # missed ÷ owed, whole run
    peak_over_capacity: float
    admitted_over_capacity: float  # at the end of the measuring window
    end_over_capacity: float  # at the end of the run
    goodput: float  # session-seconds served in time ÷ those of a full house, whole run
    rejected: int
    recovery_s: float | None  # from the end of the last fault to the first 5 s with < 1 % missed

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def steady_miss(plant: Plant, sessions: int, seconds: float, seed: int) -> float:
    """Missed ÷ owed of so many sessions, all at full age."""
    callers = [Caller(0.0, np.inf)] * sessions
    simulation = Simulation(plant, Baseline(float("inf")), callers, seconds, seed)
    simulation.full_age = True
    return simulation.run().miss


def capacity_of(
    plant: Plant, seconds: float = 60.0, seeds: int = 2, confirm_s: float = 320.0
) -> int:
    """The largest number of sessions, all at full age, that miss at most one tick in a thousand.

    Searched by looks of `seconds`, and confirmed by one of `confirm_s`, as long as a run lasts: where a full house does
    not come back from a hiccup it takes minutes until the one comes, and then everybody misses.
    """

    def holds(sessions: int, seconds: float, seeds: int) -> bool:
        misses = [steady_miss(plant, sessions, seconds, 1000 + seed) for seed in range(seeds)]
        return sum(misses) / seeds <= MISS

    low, high = 1, 2
    while high <= plant.pool_windows and steady_miss(plant, high, 10.0, 1000) <= MISS:
        low, high = (
            high,
            min(2 * high, plant.pool_windows) if high < plant.pool_windows else high + 1,
        )
    low //= 2
    thorough = 3 * seeds if plant.spike else seeds  # rare hiccups need longer to be seen
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle, seconds, thorough) else (low, middle)
    while low > 1 and not holds(low, confirm_s, seeds):
        low -= 1
    return low


def learned_for(plant: Plant, capacity: int, start: str, seed: int) -> Learned | None:
    """What the controller starts with, whatever the scenario."""
    settings = settings_for(plant)
    if start == "cold":
        return None
    if start == "calibrated":
        return calibrate(plant, settings, 7000 + seed)
    # Warm: remembered from one earlier life of this controller, which began cold, on the same plant.
    door = Metronome(settings)
    when = np.linspace(0, 60, int(2 * capacity))
    Simulation(plant, door, [Caller(float(t), np.inf) for t in when], 900.0, 9000 + seed).run()
    return door.controller.learned(plant.name)


def run_case(case: Case, controller: str, start: str, seed: int, learned: Learned | None) -> Row:
    """Run it and read the row. `learned`: what the controller starts with."""
    if controller == "metronome":
        door: Any = Metronome(settings_for(case.plant), learned)
    else:
        door = BASELINES[controller](case.capacity)
    simulation = Simulation(case.plant, door, case.callers, case.horizon_s, seed, case.faults)
    return row_of(case, controller, start, seed, simulation.run())


def row_of(case: Case, controller: str, start: str, seed: int, tally: Tally) -> Row:
    read_at = case.crosses_at + (COLD_S if start == "cold" else READY_S)
    wanted = min(case.capacity, case.demand)
    active = [n for t, n, _ in tally.trace if t <= read_at][-1]
    goodput = tally.served_s / (case.capacity * case.horizon_s)
    return Row(
        plant=case.plant.name,
        seed=seed,
        scenario=case.name,
        controller=controller,
        start=start,
        fault=case.faults.any,
        churns=case.churns,
        capacity=case.capacity,
        miss=tally.miss,
        peak_over_capacity=tally.peak / case.capacity,
        admitted_over_capacity=goodput if case.churns else active / wanted,
        end_over_capacity=tally.trace[-1][1] / wanted,
        goodput=goodput,
        rejected=tally.rejected,
        recovery_s=_recovery_s(case, tally),
    )


def _recovery_s(case: Case, tally: Tally) -> float | None:
    if not case.faults.any:
        return None
    first = int(np.ceil(case.faults.over_at / BIN_S))
    for start in range(first, len(tally.bins) - _RECOVERED_BINS + 1):
        owed, missed = np.sum(tally.bins[start : start + _RECOVERED_BINS], axis=0)
        if owed and missed / owed < _RECOVERED_MISS:
            return start * BIN_S - case.faults.over_at
    return case.horizon_s - case.faults.over_at
