"""Cost, tail and projection together: what fits, and what would not come back from a hiccup."""

import pytest

from admission.cost_model import CostModel, StepSample
from admission.fleet import MAX_KINDS, Fleet
from admission.latency_window import Histogram
from admission.outlook import Outlook
from admission.port import Lease, Request
from admission.projection import CURVE, demand_of
from admission.settings import SessionShape, Temper, crowd_share
from admission.tail import Tail, TailRatio

SHAPE = SessionShape(0.2, 0.2, 6, 6000, 48, 188)
FLEET = Fleet(SHAPE)


def _outlook(curved: float, steady: bool = True) -> Outlook:
    cost = CostModel(0.2 / 7, 6000)
    for n in (2, 8, 32, 90, 200):
        for each in (1000, 6000):
            for _ in range(10):
                read = n * each
                seconds = 0.004 + 3e-5 * n + (1 - curved) * 2e-8 * read
                curve = curved * 1.2e-4 * (read / 6000 / 100) ** CURVE * 100
                cost.add(StepSample(n, seconds + curve, read))
            cost.fit((n, n * each), 0.0)
    cost.calibrated = True
    tail = TailRatio(Tail(0.02, 0.02, 0.5) if steady else Tail(1.0, 1.0, 0.5))
    outlook = Outlook(cost, tail, 0.95, 0.96)
    outlook.refresh(FLEET)
    return outlook


def test_a_noisy_machine_holds_fewer() -> None:
    """The slower its slowest ticks, the shorter an even one must be."""
    assert _outlook(0.0, steady=False).capacity < 0.9 * _outlook(0.0).capacity


def test_where_steps_vary_the_distance_kept_is_one_in_load() -> None:
    """However steep latency is near the top: a few percent fewer, and none where steps vary by less than a twelfth."""
    outlook = _outlook(0.0)
    doubts = []
    for noise in (0.04, 0.08, 0.18):
        outlook.cost.noise = noise
        outlook.refresh(FLEET)
        doubts.append(outlook.doubt)
    of_the_law = doubts[0] / 0.04  # per noise
    assert doubts[1] == pytest.approx(0.08 * of_the_law, abs=0.01)
    kept = (1 + doubts[2]) / (1 + 0.18 * of_the_law) - 1
    assert kept == pytest.approx(0.03, abs=0.01)


def test_a_law_of_few_young_sessions_lets_in_a_few_more() -> None:
    """Even where its steps happened to fall with load, so that any number seems to cost no more than these."""
    cost = CostModel(0.2 / 7, 6000)
    for interval in range(20):
        for step in range(10):
            lucky = 1 - 0.02 * (interval + step % 2)
            cost.add(StepSample(2 + interval // 4, 0.005 * lucky, 100 * (interval + 1)))
        cost.fit((8, 800 * (interval + 1)), 0.0)
    assert cost.ready
    likely = cost.coefficients()
    assert 0.005 + 1000 * likely[1] + 6_000_000 * likely[2] < 0.2 / 7  # a thousand seem to fit
    cost.noise = 0.15
    outlook = Outlook(cost, TailRatio(), 0.95, 0.96)
    outlook.refresh(FLEET)
    assert outlook.capacity < 60


def test_load_and_capacity_are_two_ways_of_saying_the_same() -> None:
    """A fleet of exactly the capacity has a load of one, nearly, and one more session more than that."""
    for curved in (0.0, 1.0):
        outlook = _outlook(curved)
        inside = demand_of([(FLEET.ordinary, int(outlook.capacity))])
        beyond = demand_of([(FLEET.ordinary, int(outlook.capacity) + 2)])
        assert 0.97 < outlook.load(inside) <= 1.001 < outlook.load(beyond)


def test_a_fleet_must_be_able_to_come_back_from_a_hiccup() -> None:
    """Where cost grows faster than in proportion, everybody in one step takes too long before ticks are late."""
    outlook = _outlook(1.0)
    assert outlook.capacity < _outlook(0.0).capacity
    capacity = outlook.capacity
    everybody = 0.004 + 3e-5 * capacity + 1.2e-4 * (capacity / 100) ** CURVE * 100
    assert 6 * everybody == pytest.approx(0.96 * 0.2, rel=0.03)


def test_long_ticks_need_more_to_spare() -> None:
    """A second's lateness takes longer to make good than a fifth of one."""
    temper = Temper()
    shares = [crowd_share(temper, tick_s, skips_late=False) for tick_s in (0.02, 0.2, 1.0, 5.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[2] == pytest.approx(0.9)
    assert 0.85 < shares[3] < shares[0] < 1


def test_who_leaves_out_late_ticks_needs_next_to_nothing_to_spare() -> None:
    """A session is in time again with its next frame, however long ticks are."""
    temper = Temper()
    shares = [crowd_share(temper, tick_s, skips_late=True) for tick_s in (0.02, 0.2, 1.0, 5.0)]
    assert set(shares) == {temper.crowd_share}
    assert 0.96 < temper.crowd_share <= 1


def test_a_slow_engine_is_no_tail() -> None:
    """While the gain says that the engine is slower than it was, late ticks teach nothing about chance."""
    outlook = _outlook(0.0)
    late = Histogram()
    for _ in range(2000):
        late.add(0.95, missed=False)
    outlook.cost.regime.lasts_s = 1.0
    before = outlook.tail.known
    for _ in range(20):
        outlook.learn(late, demand_of([(FLEET.ordinary, 50)]), 1.0)
    assert outlook.tail.known == before
    outlook.cost.regime.lasts_s = 0.0
    for _ in range(20):
        outlook.learn(late, demand_of([(FLEET.ordinary, 50)]), 1.0)
    assert outlook.tail.known.slowest > before.slowest


def test_kinds_are_bounded() -> None:
    """Clients cannot make the table of kinds grow for ever."""
    fleet = Fleet(SHAPE)
    for number in range(MAX_KINDS):
        fleet.kind_of(Request(tick_s=0.1 + number / 1000))
    with pytest.raises(ValueError, match="kinds"):
        fleet.kind_of(Request(tick_s=9.0))


def test_another_period_has_a_budget_in_proportion() -> None:
    """A deployment that allows half a tick allows half of any tick."""
    fleet = Fleet(SessionShape(0.2, 0.1, 6, 6000, 48))
    kind = fleet.kind_of(Request(tick_s=1.0))
    assert (kind.tick_s, kind.budget_s) == (1.0, 0.5)
    lease = Lease("t", 0.0, request=Request(tick_s=1.0))
    fleet.enter(lease, kind, premium=False)
    assert fleet.units == pytest.approx(0.2)
    assert fleet.ticks_per_s == pytest.approx(1.0)
