"""The whole door: conservation, bounds, stalls, quotas, and agreement with a full recomputation."""

import json
import random
import sys
from dataclasses import replace
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from admission.controller import Controller
from admission.explain import binding, bounds, explain
from admission.learned import Learned, loads
from admission.port import Lease, Rejection, Request
from admission.projection import Kind, demand_of
from admission.resources import Reading
from admission.settings import AdmissionSettings, Quotas, SessionShape

SHAPE = SessionShape(
    tick_s=0.2, budget_s=0.2, steps_per_tick=6, plateau_tokens=6000, fill_s=48, plateau_blocks=188
)
ORDINARY = Request(tick_s=0.2)
SLOW = Request(tick_s=1.0, steps_per_tick=10)
SHORT = Request(tick_s=0.2, plateau_tokens=1000)


# What a fleet of 170 that was served once is evidence for: half a creep more, while it is young again.
KNOWN = 174


def _settings(**changes: object) -> AdmissionSettings:
    return AdmissionSettings(**{"shape": SHAPE, "max_sessions": 400, **changes})  # type: ignore[arg-type]


def _experienced(**changes: object) -> Controller:
    """A controller that remembers a fleet of 170 and a cost law."""
    teacher = Controller(_settings())
    cost = teacher.tempo.outlook.cost
    for n in (4, 16, 64, 128):
        for each in (500, 6000):
            for _ in range(20):
                teacher.observe_step(n, 0.004 + 3e-5 * n + 2e-8 * n * each, n, n * each)
            cost.fit((n, n * each), 0.0)
    tail = (0.15, 0.15, 0.4)
    evidence = {"served": 170.0, "proven": 170.0, "capacity": 175.0}
    state = Learned("key", cost.export(), tail, -3, 30_000.0, **evidence, limit=175.0, join_s=1e-4)
    controller = Controller(_settings(**changes), state)
    controller.joins.rate = inf
    return controller


def _tick_along(controller: Controller, now: float, share: float = 0.3, ticks: int = 50) -> None:
    """An interval in which every tick took this share of its budget."""
    for _ in range(ticks):
        controller.observe_tick(share, missed=share > 1)
    active = controller.active
    controller.control(now, Reading(active, active * 6000.0, active * 188.0))


def _fill(controller: Controller, request: Request = ORDINARY, start: float = 0.0) -> list[Lease]:
    """Admit until two hundred in a row were refused, one every 50 ms."""
    leases: list[Lease] = []
    now, refused = start, 0
    while refused < 200:
        now += 0.05
        answer = controller.try_admit(now, request)
        if isinstance(answer, Lease):
            leases.append(answer)
            refused = 0
        else:
            refused += 1
    return leases


# -- bounds --------------------------------------------------------------------


def test_a_warm_controller_fills_to_its_evidence_and_no_further() -> None:
    """Remembered: 170 sessions at full age were served; a young fleet may be a fortieth larger."""
    controller = _experienced()
    leases = _fill(controller)
    assert len(leases) == controller.active == controller.limit == KNOWN


def test_a_cold_controller_starts_small() -> None:
    """Nothing is known, so a handful may enter until something is."""
    assert len(_fill(Controller(_settings()))) == 8


def test_without_age_terms_only_latency_counts() -> None:
    """The negative control: the same controller, blind to what its fleet will become."""
    controller = _experienced(age_terms=False)
    controller.tempo.aimd.value = 300
    assert len(_fill(controller)) == 300


def test_no_plateau_is_promised_that_the_pool_cannot_hold() -> None:
    """120 windows, five percent in reserve."""
    controller = _experienced(pool_blocks=120 * 188)
    assert len(_fill(controller)) == 114 == controller.limit
    answer = controller.try_admit(99.0, ORDINARY)
    assert isinstance(answer, Rejection)
    assert (answer.reason, answer.bound) == ("kv", "kv")
    assert answer.used > answer.limit


def test_an_unbounded_policy_admits_until_the_wall_is_in_sight() -> None:
    """Without a plateau, what counts is how long the pool lasts, those who are about to enter included."""
    shape = SessionShape(0.2, 0.2, 6, 6000, 600, 188)
    settings = AdmissionSettings(shape, 400, pool_blocks=10_000, bounded=False)
    controller = Controller(settings, _state())
    controller.joins.rate = inf
    leases = _fill(controller)
    assert len(leases) == 9500 // 188
    answer = controller.try_admit(999.0, ORDINARY)
    assert isinstance(answer, Rejection)
    assert (answer.reason, answer.bound) == ("kv", "kv_wall")
    controller.control(1000.0, Reading(50, 1.0, 9000.0))
    for lease in leases[10:]:
        controller.release(1000.0, lease)
    assert isinstance(controller.try_admit(1001.0, ORDINARY), Rejection)


def _state() -> Learned:
    return _experienced().learned("key")


def test_long_ticks_cost_less_than_short_ones() -> None:
    """A session of one second with ten steps asks for a third of one of 200 ms with six."""
    slow = _fill(_experienced(max_sessions=1000), SLOW)
    assert len(slow) == pytest.approx(3 * len(_fill(_experienced())), rel=0.01)


def test_a_more_urgent_session_shrinks_what_fits() -> None:
    """Steps that a fleet of one-second ticks could stand are too long for it."""
    fast = Request(tick_s=0.04, steps_per_tick=6)
    controller = _experienced()
    _fill(controller, SLOW)
    before = controller.tempo.outlook.load(controller.fleet.demand)
    kind = controller.fleet.kind_of(fast)
    assert controller.tempo.outlook.load(controller.fleet.with_one(kind)) > 2 * before
    answer = controller.try_admit(500.0, fast)
    assert isinstance(answer, Rejection)


def test_nobody_enters_while_ticks_are_nearly_late() -> None:
    """Before the model or the limit know why."""
    controller = _experienced()
    controller.try_admit(0.0, ORDINARY)
    _tick_along(controller, 0.5, share=0.95)
    answer = controller.try_admit(0.6, ORDINARY)
    assert isinstance(answer, Rejection)
    assert answer.bound == "latency"


def test_congestion_cuts_the_limit_once_and_refutes_the_evidence() -> None:
    """However many windows of it there are within the cooldown."""
    controller = _experienced()
    _fill(controller)
    for half in range(5):
        _tick_along(controller, 100.0 + half / 2)
    for half in range(5):
        for _ in range(20):
            controller.observe_tick(0.95, missed=False)  # some are in time: no stall
        _tick_along(controller, 103.0 + half / 2, share=1.2)
    assert controller.tempo.aimd.decreases == 1
    assert controller.tempo.aimd.value == pytest.approx(0.9 * KNOWN, abs=1)
    assert controller.tempo.evidence.served <= KNOWN


def test_a_fleet_whose_headers_are_short_proves_its_own_size() -> None:
    """Priced with the header that is reserved, it never holds all of those tokens, and would creep nowhere."""
    served = []
    for share in (1.0, 0.95):
        controller = _experienced(shape=replace(SHAPE, full_share=share))
        _fill(controller)
        for half in range(100):
            for _ in range(300):
                controller.observe_tick(0.3, missed=False)
            active = controller.active
            controller.control(100 + half / 2, Reading(active, active * 0.95 * 6000.0, 0.0))
        served.append(controller.tempo.evidence.proven / active)
    assert served == pytest.approx([0.95, 1.0], abs=0.01)


def test_a_state_of_an_engine_that_carried_nobody_can_be_used() -> None:
    """Slower than its beat, it allows not one session; that is remembered, read again and kept again."""
    controller = _experienced()
    nobody = replace(controller.learned("key"), served=0.0, proven=0.0, capacity=0.0, limit=4.0)
    again = Controller(_settings(), loads(nobody.dumps(), "key"))
    again.plan()
    assert again.learned("key").proven == 0
    again.tempo.outlook.capacity = 0.0
    assert again.learned("key").capacity == 0


def test_long_ticks_do_not_make_for_slow_joins() -> None:
    """What a header costs is not known yet; that a tick is two seconds of twenty steps does not make it dearer."""
    rates = [
        Controller(
            _settings(shape=replace(SHAPE, tick_s=tick_s, budget_s=tick_s, steps_per_tick=n))
        ).joins.rate
        for tick_s, n in ((0.08, 1), (0.2, 6), (1.0, 10), (2.0, 20))
    ]
    assert min(rates) > 5


def test_joins_are_paced() -> None:
    """Headers of new sessions may take a tenth of the engine's time."""
    controller = _experienced()
    controller.join_s = 0.01
    controller.plan()
    got = sum(isinstance(controller.try_admit(0.0, ORDINARY), Lease) for _ in range(50))
    assert got == 4
    answer = controller.try_admit(0.0, ORDINARY)
    assert isinstance(answer, Rejection)
    assert answer.reason == "join_rate"
    later = sum(isinstance(controller.try_admit(t / 100, ORDINARY), Lease) for t in range(1, 101))
    assert later == pytest.approx(10, abs=1)


def test_a_cold_controller_watches_its_youngest() -> None:
    """Nobody more enters before those who just did have been seen."""
    controller = Controller(_settings())
    controller.joins.rate = inf
    got = sum(isinstance(controller.try_admit(0.0, ORDINARY), Lease) for _ in range(50))
    assert got == 4
    answer = controller.try_admit(0.5, ORDINARY)
    assert isinstance(answer, Rejection)
    assert answer.reason == "probation"
    assert isinstance(controller.try_admit(1.1, ORDINARY), Lease)


# -- stalls ----------------------------------------------------------------------


def test_a_stalled_engine_takes_nobody_and_keeps_its_limit() -> None:
    """Refused while it stalls; within one percent of the limit after."""
    controller = _experienced()
    _fill(controller)
    for half in range(20):
        _tick_along(controller, 100 + half / 2)
    limit = controller.tempo.aimd.value
    for half in range(6):
        _tick_along(controller, 110 + half / 2, share=inf)
        answer = controller.try_admit(110.1 + half / 2, ORDINARY)
        assert isinstance(answer, Rejection)
        assert answer.reason == "engine_stalled"
    for half in range(20):
        _tick_along(controller, 113 + half / 2)
    assert controller.tempo.aimd.value == pytest.approx(limit, rel=0.01)
    assert controller.active == KNOWN


def test_the_steps_of_a_stall_are_not_learned() -> None:
    """Three times as long, in a crowd that was never seen: neither while it lasts nor in the interval that ends it."""
    controller = _experienced()
    _fill(controller)
    before = controller.tempo.outlook.cost.law.theta.copy()
    for half in range(24):
        for _ in range(20 if half < 7 else 0):
            controller.observe_step(170, 0.09, 170, 170 * 6000)
        _tick_along(controller, 110 + half / 2, share=inf if half < 6 else 0.3)
    assert controller.tempo.outlook.cost.law.theta == pytest.approx(before)


def test_zero_traffic_changes_nothing() -> None:
    """An hour of nothing leaves the limit, the evidence and the door as they were."""
    controller = _experienced()
    limit, served = controller.limit, controller.tempo.evidence.served
    for half in range(7200):
        controller.control(half / 2, Reading())
    assert (controller.limit, controller.tempo.evidence.served) == (limit, served)
    assert isinstance(controller.try_admit(3601.0, ORDINARY), Lease)


def test_a_closed_door_stays_closed_for_its_first_reason() -> None:
    """Draining does not become something else."""
    controller = _experienced()
    controller.close("draining")
    controller.close("engine_down")
    answer = controller.try_admit(0.0, ORDINARY)
    assert isinstance(answer, Rejection)
    assert answer.reason == "draining"


# -- tenants -----------------------------------------------------------------------


def test_two_tenants_at_ten_to_one_each_get_their_quota() -> None:
    """The loud one is told 429-worthy reasons; the quiet one finds room."""
    controller = _experienced(quotas=Quotas(by_tenant={"loud": 100, "quiet": 50}))
    rng, reasons = random.Random(1), set()
    for knock in range(4000):
        tenant = "loud" if rng.random() < 10 / 11 else "quiet"
        answer = controller.try_admit(knock / 20, Request(tenant, 0.2))
        if isinstance(answer, Rejection):
            reasons.add((tenant, answer.reason))
    assert dict(controller.fleet.by_tenant) == {"loud": 100, "quiet": 50}
    assert ("loud", "quota") in reasons


def test_premium_sessions_enter_while_standard_ones_are_refused() -> None:
    """Twenty places are reserved for them, whatever the bound that refuses the others."""
    controller = _experienced(quotas=Quotas(reserved=20, premium=frozenset({"gold"})))
    assert len(_fill(controller, Request("plain", 0.2))) == KNOWN - 20
    assert len(_fill(controller, Request("gold", 0.2), start=500.0)) == 20
    assert isinstance(controller.try_admit(999.0, Request("plain", 0.2)), Rejection)


def test_premium_that_is_in_already_needs_no_reserve() -> None:
    """Places are reserved for premium sessions that could still come."""
    controller = _experienced(quotas=Quotas(reserved=20))
    assert len(_fill(controller, Request("gold", 0.2, premium=True))) == KNOWN


# -- explanations --------------------------------------------------------------------


def test_every_bound_is_explained_and_one_binds() -> None:
    """As JSON, and by how much."""
    controller = _experienced(pool_blocks=120 * 188)
    _fill(controller)
    found = explain(controller, 100.0)
    assert json.loads(json.dumps(found)) == found
    assert found["binding"] == "kv"
    assert found["binding_share"] == pytest.approx(1, abs=0.01)
    assert {bound["name"] for bound in found["bounds"]} >= {"model", "evidence", "aimd", "kv"}


def test_the_binding_bound_is_the_one_that_refuses() -> None:
    """What the explanation says is what the next caller is told."""
    for changes in ({}, {"pool_blocks": 100 * 188}, {"max_sessions": 50}):
        controller = _experienced(**changes)
        _fill(controller)
        answer = controller.try_admit(999.0, ORDINARY)
        assert isinstance(answer, Rejection)
        assert answer.bound == binding(bounds(controller)).name


# -- conservation -----------------------------------------------------------------------


def _recomputed(controller: Controller, leases: list[Lease]) -> None:
    """Everything the O(1) path keeps up to date, from the leases alone."""
    fleet = controller.fleet
    kinds: dict[Kind, int] = {}
    for lease in leases:
        assert lease.request is not None
        kind = fleet.kind_of(lease.request)
        kinds[kind] = kinds.get(kind, 0) + 1
    expected = demand_of(kinds.items())
    assert fleet.active == len(leases)
    assert tuple(fleet.demand) == pytest.approx(tuple(expected), rel=1e-9)
    assert controller.pool.promised_blocks == sum(
        fleet.blocks_of(kind) * n for kind, n in kinds.items()
    )
    tenants = [lease.tenant for lease in leases]
    assert dict(fleet.by_tenant) == {tenant: tenants.count(tenant) for tenant in set(tenants)}


class Door(RuleBasedStateMachine):
    """Arrivals, departures, crashes of sessions, intervals and stalls, in any order."""

    @initialize(pool=st.integers(5, 60))
    def open(self, pool: int) -> None:
        self.controller = _experienced(pool_blocks=pool * 188, max_sessions=40)
        self.now = 0.0
        self.inside: list[Lease] = []
        self.gone: list[Lease] = []
        self.admitted = self.refused = 0

    @rule(
        request=st.sampled_from([ORDINARY, SLOW, SHORT]),
        tenant=st.sampled_from(["a", "b"]),
        pause=st.floats(0, 2),
    )
    def knock(self, request: Request, tenant: str, pause: float) -> None:
        self.now += pause
        answer = self.controller.try_admit(
            self.now, Request(tenant, request.tick_s, 0.0, request.steps_per_tick)
        )
        if isinstance(answer, Lease):
            assert not self.controller.stall.is_set
            self.inside.append(answer)
            self.admitted += 1
        else:
            assert answer.reason
            assert answer.retry_after_s > 0
            self.refused += 1

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), twice=st.booleans())
    def leave(self, data: st.DataObject, twice: bool) -> None:
        lease = self.inside.pop(data.draw(st.integers(0, len(self.inside) - 1)))
        self.gone.append(lease)
        for _ in range(1 + twice):  # a crash handler may come second
            self.controller.release(self.now, lease)

    @rule(share=st.sampled_from([0.2, 0.7, 0.95, 1.5, inf]), ticks=st.integers(0, 40))
    def interval(self, share: float, ticks: int) -> None:
        self.now += 0.5
        _tick_along(self.controller, self.now, share, ticks)

    @invariant()
    def nothing_is_lost(self) -> None:
        controller = self.controller
        assert self.admitted == len(self.inside) + len(self.gone)
        assert controller.decisions == {"admitted": self.admitted, "rejected": self.refused}
        assert controller.active <= 40
        assert controller.pool.promised_blocks <= controller.pool.usable_blocks
        assert 4 <= controller.tempo.aimd.value <= 40
        _recomputed(controller, self.inside)


TestDoor = Door.TestCase
TestDoor.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.slow
def test_leases_are_conserved_over_a_million_moves() -> None:
    """Arrivals, departures and double releases; sums end exactly where a recomputation puts them."""
    controller = _experienced(pool_blocks=200 * 188)
    controller.tempo.evidence.served, controller.tempo.shown = 500.0, 500.0
    controller.tempo.aimd.value = 400
    rng, inside, now = random.Random(7), [], 0.0
    requests = (ORDINARY, SLOW, SHORT)
    for move in range(1_000_000):
        now += 0.01
        if inside and rng.random() < 0.5:
            at = int(rng.random() * len(inside))
            inside[at], inside[-1] = inside[-1], inside[at]
            controller.release(now, inside[-1])
            controller.release(now, inside.pop())
        else:
            answer = controller.try_admit(now, requests[move % 3])
            if isinstance(answer, Lease):
                inside.append(answer)
    _recomputed(controller, inside)
    assert sum(controller.decisions.values()) > 450_000
    for lease in inside:
        controller.release(now, lease)
    _recomputed(controller, [])
    assert controller.fleet.demand.rate == 0


def test_scaling_time_scales_the_decisions() -> None:
    """A machine twice as slow with ticks twice as long holds the same fleet."""
    sizes = []
    for c in (1.0, 2.0):
        shape = SessionShape(0.2 * c, 0.2 * c, 6, 6000, 48 * c)
        teacher = Controller(AdmissionSettings(shape, 400))
        for n in (4, 16, 64, 128):
            for _ in range(20):
                teacher.observe_step(n, c * (0.004 + 1.5e-4 * n), n, n * 6000.0)
            teacher.tempo.outlook.cost.fit((n, n * 6000.0), 0.0)
        teacher.plan()
        sizes.append(teacher.tempo.outlook.capacity)
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-6)


def test_a_decision_is_the_same_work_at_four_thousand_sessions_as_at_four() -> None:
    """O(1), counted in calls of functions; `metronome bench admission` measures the microseconds."""
    # So seldom that any number of them fits, so that every bound is asked.
    seldom = Request(tick_s=10_000.0, steps_per_tick=1, plateau_tokens=100)

    def calls(fleet: int) -> int:
        controller = Controller(AdmissionSettings(SHAPE, 100_000), _state())
        controller.joins.rate = inf
        for knock in range(fleet):
            assert isinstance(controller.try_admit(float(knock), seldom), Lease)
        counted = 0

        def count(frame: object, event: str, arg: object) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            lease = controller.try_admit(float(fleet), seldom)
        finally:
            sys.setprofile(None)
        assert isinstance(lease, Lease)
        return counted

    assert calls(4000) == calls(4) > 10


def test_nobody_is_locked_out_by_what_was_learned() -> None:
    """A state from a slow minute says that not even one call fits: one enters all the same, and the truth shows."""
    slow = Controller(_settings())
    for n in (1, 2, 4):
        for _ in range(50):
            slow.observe_step(n, 0.3 + 0.01 * n, n, n * 6000.0)
        slow.tempo.outlook.cost.fit((n, n * 6000.0), 0.0)
    controller = Controller(_settings(), slow.learned("key"))
    controller.plan()
    assert controller.tempo.outlook.capacity < 1
    assert controller.limit == 1
    lease = controller.try_admit(0.0, ORDINARY)
    assert isinstance(lease, Lease)
    refused = controller.try_admit(5.0, ORDINARY)
    assert isinstance(refused, Rejection)
    assert refused.reason == "capacity"
    controller.release(6.0, lease)
    assert isinstance(controller.try_admit(7.0, ORDINARY), Lease)
