"""What admission is tried with: who comes when, for how long, on which machine, and what breaks.

Everything is in multiples of the plant's true capacity, so that any plant can be tried. Callers who are turned away
come back, with the advice they got, until they are in: demand does not fade while a controller hesitates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bench.admission_plant import Call, Plant
from bench.admission_terms import Caller, Faults

OFFERED = 2.0  # × capacity
COLD_S = 300.0  # from the moment demand crosses capacity to the reading, without history …
READY_S = 60.0  # … and with a calibration or a remembered state
_TAIL_S = 20.0  # after the last reading
CALL_S = 180.0  # mean length of a call where calls end
_CHURN_S = 900.0
_FOREVER = float("inf")
_SLOW_TICK_S = 5.0  # × the plant's own tick: the other kind of session in the mix


@dataclass(frozen=True, slots=True)
class Case:
    """One scenario on one plant, ready to run."""

    name: str
    plant: Plant
    capacity: int
    callers: Sequence[Caller]
    crosses_at: float  # demand reaches capacity (or stops growing below it)
    demand: int  # sessions wanted at the readings, at least
    horizon_s: float
    faults: Faults = field(default_factory=Faults)
    churns: bool = False  # judged by goodput


@dataclass(frozen=True, slots=True)
class Scenario:
    """A name, the machine it needs, and who comes."""

    name: str
    machine: Callable[[Plant], Plant]
    build: Callable[["Scenario", Plant, int, int], Case]

    def case(self, plant: Plant, capacity: int, seed: int) -> Case:
        """On this (already adapted) plant of this capacity."""
        return self.build(self, plant, capacity, seed)


def _arrivals(
    scenario: Scenario, plant: Plant, capacity: int, when: Sequence[float], **more: object
) -> Case:
    """Everybody stays for ever."""
    callers = [Caller(float(at), _FOREVER) for at in sorted(when)]
    reached = min(capacity, len(callers))
    crosses_at = callers[reached - 1].at
    case = Case(
        scenario.name,
        plant,
        capacity,
        callers,
        crosses_at,
        len(callers),
        crosses_at + COLD_S + _TAIL_S,
    )
    return replace(case, **more)  # type: ignore[arg-type]  # fields of Case


def _step(scenario: Scenario, plant: Plant, capacity: int, seed: int) -> Case:
    rng = np.random.default_rng(seed)
    return _arrivals(scenario, plant, capacity, rng.uniform(0, 1, int(OFFERED * capacity)).tolist())


def _ramp(scenario: Scenario, plant: Plant, capacity: int, seed: int) -> Case:
    rng = np.random.default_rng(seed)
    count = int(OFFERED * capacity)
    return _arrivals(scenario, plant, capacity, rng.uniform(0, count / 8, count).tolist())


def _flash(scenario: Scenario, plant: Plant, capacity: int, seed: int) -> Case:
    rng = np.random.default_rng(seed)
    first, then = capacity // 3, int(1.6 * capacity)
    when = np.concatenate([rng.uniform(0, 30, first), rng.uniform(90, 90.5, then)])
    return _arrivals(scenario, plant, capacity, when.tolist())


def _co_aging(scenario: Scenario, plant: Plant, capacity: int, seed: int) -> Case:
    return _arrivals(scenario, plant, capacity, np.arange(0.5, OFFERED * capacity, 1.0).tolist())


def _under(scenario: Scenario, plant: Plant, capacity: int, seed: int) -> Case:
    rng = np.random.default_rng(seed)
    count = int(0.7 * capacity)
    return _arrivals(scenario, plant, capacity, rng.uniform(0, 60, count).tolist())


def _churn(scenario: Scenario, plant: Plant, capacity: int, seed: int) -> Case:
    """A Poisson stream of calls of exponential length that would keep twice the capacity busy."""
    rng = np.random.default_rng(seed)
    rate = OFFERED * capacity / CALL_S
    gaps = rng.exponential(1 / rate, int(rate * _CHURN_S * 1.3) + 10)
    when = np.cumsum(gaps)
    lasts = rng.exponential(CALL_S, len(when))
    callers = [
        Caller(float(at), float(s)) for at, s in zip(when, lasts, strict=True) if at < _CHURN_S
    ]
    # With everybody let in, the fleet grows towards twice the capacity as 1 - exp(-t/mean).
    crosses_at = CALL_S * float(np.log(OFFERED / (OFFERED - 1)))
    return Case(
        scenario.name, plant, capacity, callers, crosses_at, capacity, _CHURN_S, churns=True
    )


def _slowdown(scenario: Scenario, plant: Plant, capacity: int, seed: int) -> Case:
    faults = Faults(slow=((150.0, 210.0, 1.6),))
    return _with_faults(scenario, plant, capacity, seed, faults)


def _stall(scenario: Scenario, plant: Plant, capacity: int, seed: int) -> Case:
    return _with_faults(scenario, plant, capacity, seed, Faults(stalls=((150.0, 3.0),)))


def _recovery(scenario: Scenario, plant: Plant, capacity: int, seed: int) -> Case:
    """Twice as slow for 20 s, a stall, and slow again."""
    faults = Faults(slow=((130.0, 150.0, 2.0), (170.0, 190.0, 2.0)), stalls=((160.0, 2.0),))
    return _with_faults(scenario, plant, capacity, seed, faults)


def _with_faults(
    scenario: Scenario, plant: Plant, capacity: int, seed: int, faults: Faults
) -> Case:
    """A ramp, in which every second call ends now and then, so that the limit matters after the fault."""
    rng = np.random.default_rng(seed)
    count = int(OFFERED * capacity)
    when = np.sort(rng.uniform(0, count / 8, count))
    lasts = np.where(rng.random(count) < 0.5, _FOREVER, rng.exponential(2 * CALL_S, count))
    later = rng.uniform(count / 8, 400, capacity // 2)
    callers = [Caller(float(a), float(s)) for a, s in zip(when, lasts, strict=True)]
    callers += [Caller(float(at), _FOREVER) for at in np.sort(later)]
    crosses_at = float(when[capacity - 1])
    horizon_s = crosses_at + COLD_S + _TAIL_S
    return Case(
        scenario.name, plant, capacity, callers, crosses_at, capacity, horizon_s, faults=faults
    )


def _same(plant: Plant) -> Plant:
    return plant


def _small_pool(plant: Plant) -> Plant:
    return plant.with_pool(int(0.45 * plant.pool_windows))


def _mixed(plant: Plant) -> Plant:
    call = plant.calls[0]
    slow = Call(_SLOW_TICK_S * call.tick_s, 2 * call.steps, int(3 * call.prefill))
    return plant.mixed(slow)


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("step", _same, _step),
    Scenario("ramp", _same, _ramp),
    Scenario("flash", _same, _flash),
    Scenario("co_aging", _same, _co_aging),
    Scenario("churn", _same, _churn),
    Scenario("noisy", Plant.noisy, _ramp),
    Scenario("noisy_under", Plant.noisy, _under),
    Scenario("two_speeds", Plant.two_speeds, _ramp),
    Scenario("nonlinear", Plant.convex, _ramp),
    Scenario("kv_bound", _small_pool, _ramp),
    Scenario("slowdown", _same, _slowdown),
    Scenario("stall", _same, _stall),
    Scenario("recovery", _same, _recovery),
    Scenario("mixed", _mixed, _ramp),
)
