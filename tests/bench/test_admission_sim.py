"""The simulator of admission: its engine, its plants, its rows, and that the controller keeps its word in it."""

import json
from math import inf

import numpy as np
import pytest

from admission.port import Lease, Request
from admission.resources import Reading
from bench.admission import _problems_of, problems, table
from bench.admission_calibrate import calibrate
from bench.admission_doors import Baseline, Gradient, Metronome, PerSample, PerWindow, settings_for
from bench.admission_plant import A, C, Call, L, M, Plant
from bench.admission_runs import Row, capacity_of, learned_for, run_case, steady_miss
from bench.admission_scenarios import SCENARIOS
from bench.admission_sim import Simulation
from bench.admission_terms import Caller, Faults
from engine.sim_backend import SimBackend, SimCost
from engine.work import Append, TickBatch

# A machine for a dozen sessions: the same laws, a tenth of the work.
SMALL = Plant(
    "small",
    SimCost(fixed_s=0.012, session_s=6e-4, token_s=1e-4, resident_s=1e-6),
    (Call(0.4, 3, 5),),
    window=800,
    header=60,
    pool_windows=60,
)


class Counting(Baseline):
    """Lets everybody in and counts what it is told."""

    def __init__(self) -> None:
        super().__init__(inf)
        self.seen = 0
        self.late = 0
        self.controls = 0

    def ticks(self, shares: np.ndarray, missed: int) -> None:
        self.seen += len(shares)
        self.late += int((shares > 1).sum())

    def control(self, now: float, reading: Reading) -> None:
        self.controls += 1


def _run(door: object, sessions: int, seconds: float, **more: object) -> Simulation:
    callers = [Caller(0.0, inf)] * sessions
    simulation = Simulation(SMALL, door, callers, seconds, 1, **more)  # type: ignore[arg-type]
    simulation.run()
    return simulation


def test_the_plant_costs_what_the_simulated_backend_costs() -> None:
    """One law: a step of the plant is a step of `SimBackend`."""
    backend = SimBackend(SMALL.cost, total_blocks=10_000)
    appends = tuple(Append(f"s{n}", 0, tuple(range(60)), 1, 0.0) for n in range(7))
    first = backend.step(TickBatch(appends))
    assert SMALL.step_s(7, 7 * 61, 7 * 60) == pytest.approx(first.engine_s)


def test_every_tick_is_judged_once() -> None:
    """Owed is what the callers sent, and the door hears of each, missed ones included."""
    door = Counting()
    tally = _run(door, 5, 20.0).tally
    assert tally.owed == pytest.approx(5 * 20 / 0.4, abs=10)
    assert (tally.missed, door.late) == (0, 0)
    overloaded = Counting()
    tally = _run(overloaded, 150, 20.0).tally
    assert tally.missed / tally.owed > 0.5
    assert overloaded.seen == pytest.approx(tally.owed, rel=0.05)


def test_a_stalled_engine_misses_what_it_owes_while_it_stalls() -> None:
    """Ticks are counted when their time has passed, not when they are served at last."""
    simulation = _run(Counting(), 5, 30.0, faults=Faults(stalls=((10.0, 5.0),)))
    during = np.sum(simulation.tally.bins[21:29], axis=0)
    assert during[1] == during[0] > 0
    after = np.sum(simulation.tally.bins[40:], axis=0)
    assert after[1] == 0


def test_the_same_seed_gives_the_same_run() -> None:
    """To the last tick."""
    one, other = (_run(Counting(), 8, 15.0).tally for _ in range(2))
    assert (one.owed, one.missed, one.served_s) == (other.owed, other.missed, other.served_s)


def test_capacity_is_where_misses_begin() -> None:
    """It holds itself, and not one tenth more."""
    capacity = capacity_of(SMALL, seconds=20, seeds=1)
    assert steady_miss(SMALL, capacity, 20, 1000) <= 0.001
    assert steady_miss(SMALL, int(1.1 * capacity) + 1, 20, 1000) > 0.001


@pytest.mark.parametrize(
    ("door", "shares", "grows"),
    [
        (PerSample(), np.full(50, 0.5), True),
        (PerSample(), np.full(50, 1.5), False),
        (PerWindow(), np.full(50, 0.5), True),
        (PerWindow(), np.full(50, 0.9), False),
        (Gradient(), np.full(50, 0.5), True),
    ],
)
def test_the_alternatives_follow_their_rules(
    door: Baseline, shares: np.ndarray, grows: bool
) -> None:
    """Up while it is used and fast, down (at least at their floor) when it is slow."""
    door.limit, before = 40, 40
    for _ in range(30):
        assert isinstance(door.try_admit(0.0, Request()), Lease)
    for _ in range(3):
        door.ticks(shares, 0)
        door.control(0.0, Reading())
    assert (door.limit > before) == grows
    assert (door.limit < before) == (not grows)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["cold", "calibrated", "warm"])
def test_the_controller_neither_over_admits_nor_leaves_the_house_empty(start: str) -> None:
    """A step to twice the capacity of a small machine."""
    scenario = next(s for s in SCENARIOS if s.name == "step")
    capacity = capacity_of(SMALL, seconds=30, seeds=1)
    learned = learned_for(SMALL, capacity, start, 1)
    row = run_case(scenario.case(SMALL, capacity, 1), "metronome", start, 1, learned)
    assert row.miss <= 0.001
    assert row.peak_over_capacity <= 1
    assert row.admitted_over_capacity >= 0.7  # a session is six percent of this machine
    assert row.rejected > 0


def test_a_lucky_law_of_few_calls_does_not_fill_the_house() -> None:
    """Its first steps happen to be shorter with more calls in them, as if any number cost the same. It holds 153."""
    scenario = next(s for s in SCENARIOS if s.name == "noisy")
    plant = M.noisy()
    door = Metronome(settings_for(plant))
    simulation = Simulation(plant, door, scenario.case(plant, 153, 1).callers, 40.0, 1)
    assert simulation.run().peak <= 153


@pytest.mark.slow
def test_a_capacity_is_what_does_not_collapse_after_minutes() -> None:
    """Where a full house does not come back from a hiccup, a look of one minute sees nothing of it."""
    plant = C.convex()
    assert steady_miss(plant, 165, 60.0, 1000) <= 0.001
    assert steady_miss(plant, 165, 320.0, 1000) > 0.1
    assert capacity_of(plant, seeds=1) == 164


@pytest.mark.slow
def test_a_full_house_comes_back_from_a_hiccup() -> None:
    """Batches are padded there, which makes some steps longer than the law that was learned says."""
    scenario = next(s for s in SCENARIOS if s.name == "nonlinear")
    plant = C.convex()
    learned = learned_for(plant, 164, "calibrated", 21)
    row = run_case(scenario.case(plant, 164, 21), "metronome", "calibrated", 21, learned)
    assert row.miss <= 0.001
    assert 0.95 < row.peak_over_capacity <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "capacity"), [(L.two_speeds(), 139), (M.two_speeds(), 135)])
def test_a_machine_that_changed_its_speed_while_it_was_calibrated(
    plant: Plant, capacity: int
) -> None:
    """The house is neither left empty for a tail that was none (L) nor filled for the fast minutes (M)."""
    scenario = next(s for s in SCENARIOS if s.name == "two_speeds")
    learned = learned_for(plant, capacity, "calibrated", 3)
    row = run_case(scenario.case(plant, capacity, 3), "metronome", "calibrated", 3, learned)
    assert row.miss <= 0.001
    assert row.peak_over_capacity <= 1
    assert row.admitted_over_capacity >= 0.85


@pytest.mark.slow
def test_windowed_aimd_walks_into_the_wall_of_age() -> None:
    """What the controller is there to prevent: a young fleet says "more" until it is too old."""
    scenario = next(s for s in SCENARIOS if s.name == "ramp")
    capacity = capacity_of(SMALL, seconds=30, seeds=1)
    row = run_case(scenario.case(SMALL, capacity, 1), "aimd_window", "cold", 1, None)
    assert row.peak_over_capacity > 1.1
    assert row.miss > 0.3


def test_every_scenario_can_be_built_for_any_plant() -> None:
    """Demand crosses capacity inside the horizon, with three hundred seconds to go."""
    for scenario in SCENARIOS:
        machine = scenario.machine(SMALL)
        case = scenario.case(machine, 15, 1)
        assert case.name == scenario.name
        assert case.horizon_s >= case.crosses_at + 300
        assert len(case.callers) >= min(case.demand, 10)
        assert case.faults.over_at < case.horizon_s - 5


def test_a_calibration_finds_nearly_the_capacity() -> None:
    """From a hundred steps and a few fleets; it is not above it."""
    state = calibrate(SMALL, settings_for(SMALL), 1)
    capacity = capacity_of(SMALL, seconds=20, seeds=1)
    assert 0.75 * capacity <= state.served <= capacity
    assert state.calibrated


def test_a_cold_start_knows_nothing() -> None:
    """No state; the others have one."""
    assert learned_for(SMALL, 10, "cold", 1) is None


def test_the_production_controller_is_what_is_simulated() -> None:
    """Ticks reach it as shares of their budget, missed where they exceed it."""
    door = Metronome(settings_for(A))
    door.ticks(np.array([0.5, 1.5, inf]), 0)
    current = door.controller.tempo.window.current
    assert (current.total, current.missed) == (3, 2)


def _row(**changes: object) -> Row:
    values = {
        "plant": "A",
        "seed": 1,
        "scenario": "ramp",
        "controller": "metronome",
        "start": "warm",
        "fault": False,
        "churns": False,
        "capacity": 100,
        "miss": 0.0,
        "peak_over_capacity": 0.95,
        "admitted_over_capacity": 0.95,
        "end_over_capacity": 0.95,
        "goodput": 0.9,
        "rejected": 5,
        "recovery_s": None,
    }
    return Row(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"miss": 0.0011}, "missed"),
        ({"miss": 0.5, "fault": True}, ""),
        ({"peak_over_capacity": 1.01}, "admitted up to"),
        ({"admitted_over_capacity": 0.89}, "admitted 0.890"),
        ({"admitted_over_capacity": 0.8, "start": "cold"}, ""),
        ({"recovery_s": 5.5, "fault": True}, "recovered after"),
        ({"churns": True, "admitted_over_capacity": 0.1}, ""),
        ({"churns": True, "goodput": 0.7}, "goodput"),
    ],
)
def test_what_was_not_held_is_said(changes: dict[str, object], said: str) -> None:
    """Each bound of its own; a fault may miss ticks, and churn is judged by goodput."""
    found = list(_problems_of(_row(**changes), other_goodput=0.9))
    assert bool(found) == bool(said)
    assert all(said in problem for problem in found)


def test_only_the_controller_is_judged_and_rows_are_json() -> None:
    """Alternatives may fail; the table has a line for each group."""
    rows = [_row(), _row(controller="none", peak_over_capacity=2.0, miss=0.9)]
    assert problems(rows) == []
    assert len(table(rows).splitlines()) == 3
    keys = json.loads(json.dumps(rows[0].as_json()))
    assert {"scenario", "controller", "start", "fault", "miss", "recovery_s"} <= keys.keys()
