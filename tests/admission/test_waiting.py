"""The line at the door: who enters next, who is told no and when, and what they are told to expect."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from admission.controller import Controller
from admission.port import AdmissionPort, Lease, Reason, Rejection, Request
from admission.settings import AdmissionSettings, Quotas, SessionShape
from admission.static_cap import StaticCap
from admission.waiting import MAX_ETA_S, Waiter, WaitingLine

SHAPE = SessionShape(0.08, 0.08, 1, 1024, 30, 32)
ORDINARY, PREMIUM = Request("t_a"), Request("t_p", premium=True)


def _full(places: int = 1, wait_s: float = 2.0, standing: int = 3) -> tuple[WaitingLine, Lease]:
    """A line before a full house, and one of the leases that fill it."""
    line = WaitingLine(StaticCap(places), wait_s, standing)
    for _ in range(places - 1):
        assert isinstance(line.arrive(0.0, ORDINARY), Lease)
    lease = line.arrive(0.0, ORDINARY)
    assert isinstance(lease, Lease)
    return line, lease


def _waits(line: WaitingLine, now: float, request: Request = ORDINARY) -> Waiter:
    waiter = line.arrive(now, request)
    assert isinstance(waiter, Waiter)
    return waiter


def _controller(**quotas: Any) -> Controller:
    """Bounded by its places only."""
    return Controller(AdmissionSettings(SHAPE, 4, quotas=Quotas(**quotas), paced=False))


def test_without_waiting_a_refusal_is_the_doors_own() -> None:
    """At once, with no position and the door's advice."""
    line, _ = _full(wait_s=0.0)
    answer = line.arrive(0.5, ORDINARY)
    assert isinstance(answer, Rejection)
    assert (answer.reason, answer.position, answer.retry_after_s) == ("capacity", 0, 2.0)


def test_the_first_in_line_gets_the_place_that_frees() -> None:
    """The second one stands on, and whoever comes anew stands behind it."""
    line, lease = _full()
    first, second = _waits(line, 1.0), _waits(line, 1.1)
    line.release(1.5, lease)
    assert isinstance(first.answer, Lease)
    assert (first.outcome, second.outcome) == ("admitted", None)
    assert line.take_answered() == [first]
    _waits(line, 1.6)
    assert len(line) == 2


def test_a_place_that_frees_by_itself_goes_to_whoever_waits() -> None:
    """A bound that has moved is noticed by the newcomer's knock, who still does not overtake."""
    cap = StaticCap(1)
    line = WaitingLine(cap, 2.0)
    lease = cap.try_admit(0.0, ORDINARY)
    assert isinstance(lease, Lease)
    first = _waits(line, 0.1)
    cap.release(0.2, lease)  # behind the line's back
    _waits(line, 0.3)
    assert first.outcome == "admitted"


def test_premium_callers_go_before_ordinary_ones() -> None:
    """Among themselves they keep their order."""
    line, lease = _full()
    ordinary = _waits(line, 1.0)
    first, second = _waits(line, 1.1, PREMIUM), _waits(line, 1.2, PREMIUM)
    line.release(1.3, lease)
    assert (first.outcome, second.outcome, ordinary.outcome) == ("admitted", None, None)


@pytest.mark.parametrize("reason", ["draining", "engine_down"])
def test_a_closed_door_is_not_waited_at(reason: Reason) -> None:
    """Who stands there is told at once, who comes is told at once."""
    line, _ = _full()
    waiters = [_waits(line, 1.0), _waits(line, 1.1), _waits(line, 1.2, PREMIUM)]
    line.close(1.5, reason)
    assert {waiter.outcome for waiter in waiters} == {"refused"}
    for answer in [waiter.answer for waiter in waiters] + [line.arrive(1.6, ORDINARY)]:
        assert isinstance(answer, Rejection)
        assert (answer.reason, answer.position) == (reason, 0)
    assert len(line) == 0


def test_a_stalled_engine_is_not_waited_for() -> None:
    """Nobody knows when it moves again."""
    controller = _controller()
    line = WaitingLine(controller, 2.0)
    for _ in range(4):
        line.arrive(0.0, ORDINARY)
    waiter = _waits(line, 0.1)
    controller.stall.is_set = True
    line.settle(0.2)
    assert isinstance(waiter.answer, Rejection)
    assert waiter.answer.reason == "engine_stalled"


def test_a_full_quota_is_refused_at_once_and_blocks_nobody() -> None:
    """Neither at the door nor in the line: there it is refused when its tenant's last place is taken."""
    line = WaitingLine(_controller(by_tenant={"t_b": 1}), 2.0)
    leases = [line.arrive(0.0, ORDINARY) for _ in range(4)]
    mine, next_of_mine = _waits(line, 0.1, Request("t_b")), _waits(line, 0.2, Request("t_b"))
    behind = _waits(line, 0.3)
    assert isinstance(leases[0], Lease)
    line.release(0.5, leases[0])
    assert (mine.outcome, next_of_mine.outcome, behind.outcome) == ("admitted", "refused", None)
    assert isinstance(next_of_mine.answer, Rejection)
    assert next_of_mine.answer.reason == "quota"
    at_the_door = line.arrive(0.6, Request("t_b"))
    assert isinstance(at_the_door, Rejection)
    assert (at_the_door.reason, at_the_door.position) == ("quota", 0)


def test_whoever_has_waited_long_enough_is_told_position_and_time() -> None:
    """In the fields and in the message; the advice is the estimate."""
    line, _ = _full()
    waiter = _waits(line, 0.5)
    premium = _waits(line, 1.0, PREMIUM)
    line.settle(2.4)
    assert waiter.outcome is None
    assert line.due_at == 2.5
    line.settle(2.5)
    answer = waiter.answer
    assert isinstance(answer, Rejection)
    assert (waiter.outcome, answer.reason, answer.position) == ("timed_out", "capacity", 2)
    assert f"Position in line: 2; a place is expected in {answer.retry_after_s:.0f} s." in (
        answer.message
    )
    assert premium.outcome is None


def test_a_full_line_refuses_at_once_and_says_where_one_would_stand() -> None:
    """As many as there are places, plus one."""
    line, _ = _full(standing=3)
    for _ in range(3):
        _waits(line, 1.0)
    answer = line.arrive(1.0, ORDINARY)
    assert isinstance(answer, Rejection)
    assert (answer.reason, answer.position, len(line)) == ("capacity", 4, 3)
    assert answer.retry_after_s > 4


def test_a_small_call_does_not_slip_past_a_large_one() -> None:
    """Though there is memory for it: the first in line would stand there for ever."""
    controller = Controller(AdmissionSettings(SHAPE, 4, pool_blocks=100, paced=False))
    line = WaitingLine(controller, 2.0, 1)
    assert isinstance(line.arrive(0.0, ORDINARY), Lease)
    large = _waits(line, 0.1, Request("t_a", plateau_tokens=3200))
    small = Request("t_b", plateau_tokens=32)
    assert (controller.why_not(0.2, large.request), controller.why_not(0.2, small)) == ("kv", None)
    answer = line.arrive(0.2, small)
    assert isinstance(answer, Rejection)
    assert (answer.reason, answer.bound, answer.position) == ("capacity", "line", 2)


def test_who_does_not_wait_is_told_no_at_once() -> None:
    """With the position that waiting would have meant."""
    line, _ = _full()
    _waits(line, 1.0)
    answer = line.arrive(1.1, ORDINARY, waits=False)
    assert isinstance(answer, Rejection)
    assert (answer.position, len(line)) == (2, 1)


def test_whoever_hangs_up_leaves_the_line_at_once() -> None:
    """The next one moves up; leaving twice changes nothing."""
    line, lease = _full()
    first, second = _waits(line, 1.0), _waits(line, 1.1)
    line.leave(1.2, first)
    line.leave(1.2, first)
    line.release(1.3, lease)
    assert (first.outcome, first.answer, second.outcome) == ("left", None, "admitted")


def test_a_place_given_to_somebody_who_is_just_gone_goes_to_the_next() -> None:
    """No lease is lost."""
    line, lease = _full()
    first, second = _waits(line, 1.0), _waits(line, 1.1)
    line.release(1.2, lease)
    assert first.outcome == "admitted"
    line.leave(1.2, first)
    assert (first.outcome, second.outcome, line.door.active) == ("left", "admitted", 1)


def test_waiting_is_no_refusal() -> None:
    """It neither counts as one nor makes the advice to others grow."""
    controller = _controller()
    line = WaitingLine(controller, 2.0)
    for _ in range(4):
        line.arrive(0.0, ORDINARY)
    for _ in range(100):
        _waits(line, 0.1)
        line.settle(0.1)
    assert controller.decisions == {"admitted": 4, "rejected": 0}


# -- how long ---------------------------------------------------------------------


def test_where_nothing_is_known_a_place_takes_two_seconds() -> None:
    """And never less than one, nor more than five minutes."""
    line, _ = _full()
    assert (line.eta_s(1), line.eta_s(3), line.eta_s(10_000)) == (2.0, 6.0, MAX_ETA_S)


def test_the_estimate_follows_the_calls_that_end() -> None:
    """One every ten seconds, so the third in line waits thirty."""
    line, lease = _full()
    for turn in range(1, 61):
        line.release(10.0 * turn, lease)
        again = line.arrive(10.0 * turn, ORDINARY)
        assert isinstance(again, Lease)
        lease = again
    assert line.eta_s(1) == pytest.approx(10, rel=0.15)
    assert line.eta_s(3) == pytest.approx(30, rel=0.15)


def test_the_line_itself_knows_better_than_the_calls_that_end() -> None:
    """Where calls end and nobody may take their places, the estimate grows while people stand there."""
    line, lease = _full(wait_s=60.0)
    for turn in range(1, 61):
        line.release(1.0 * turn, lease)
        again = line.arrive(1.0 * turn, ORDINARY)
        assert isinstance(again, Lease)
        lease = again
    assert line.eta_s(1) == pytest.approx(1, rel=0.1)
    _waits(line, 60.0)
    line.settle(110.0)
    assert line.eta_s(1) > 5


# -- always -------------------------------------------------------------------------


class Line(RuleBasedStateMachine):
    """Callers of four tenants come, wait, hang up, are let in and leave; everybody's story is told twice."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.line = WaitingLine(StaticCap(1), 2.0)
        self.door: AdmissionPort = self.line.door
        self.most = 1
        self.inside: list[Lease] = []
        self.order: dict[bool, list[Waiter]] = {True: [], False: []}  # who stands, by class
        self.unaware: list[Waiter] = []  # answered, and not told yet

    @initialize(learning=st.booleans(), places=st.integers(1, 4), standing=st.integers(1, 6))
    def begin(self, learning: bool, places: int, standing: int) -> None:
        if learning:
            quotas = Quotas(default=2, premium=frozenset({"p"}), reserved=places - 1)
            self.door = Controller(AdmissionSettings(SHAPE, places, quotas=quotas, paced=False))
        else:
            self.door = StaticCap(places)
        self.most = places
        self.line = WaitingLine(self.door, 2.0, standing)

    @rule(tenant=st.sampled_from("abcp"), patient=st.booleans())
    def arrive(self, tenant: str, patient: bool) -> None:
        request = Request(tenant, 0.08, premium=tenant == "p")
        answer = self.line.arrive(self.now, request, waits=patient)
        self._hear()
        ahead = self.order[True] + ([] if request.premium else self.order[False])
        if isinstance(answer, Lease):
            assert not ahead
            self.inside.append(answer)
        elif isinstance(answer, Waiter):
            assert patient
            assert answer.deadline == self.now + 2.0
            self.order[request.premium].append(answer)
        else:
            assert answer.position in (0, len(ahead) + 1)

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), twice=st.booleans())
    def end_a_call(self, data: st.DataObject, twice: bool) -> None:
        lease = self.inside.pop(data.draw(st.integers(0, len(self.inside) - 1)))
        for _ in range(1 + twice):
            self.line.release(self.now, lease)
        self._hear()

    @precondition(lambda self: self._standing())
    @rule(data=st.data())
    def hang_up_in_line(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(self._standing()))
        self.order[waiter.is_premium].remove(waiter)
        self.line.leave(self.now, waiter)
        assert waiter.outcome == "left"
        self._hear()

    @precondition(lambda self: self.unaware)
    @rule(data=st.data(), gone=st.booleans())
    def hear_the_answer(self, data: st.DataObject, gone: bool) -> None:
        waiter = self.unaware.pop(data.draw(st.integers(0, len(self.unaware) - 1)))
        if gone:
            self.line.leave(self.now, waiter)
            self._hear()
        elif isinstance(waiter.answer, Lease):
            self.inside.append(waiter.answer)

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.line.due_at <= until:
            self.now = self.line.due_at
            self.line.settle(self.now)
            assert self.line.due_at > self.now
            self._hear()
        self.now = until

    @rule(reason=st.sampled_from(["draining", "engine_down"]))
    def close_and_reopen(self, reason: Reason) -> None:
        self.line.close(self.now, reason)
        self._hear()
        assert not self._standing()
        self.door.reopen(reason)

    def _standing(self) -> list[Waiter]:
        return self.order[True] + self.order[False]

    def _hear(self) -> None:
        """Check the answers in the order in which they were given."""
        for waiter in self.line.take_answered():
            mine = self.order[waiter.is_premium]
            if waiter.outcome == "admitted":
                assert mine[0] is waiter
                assert waiter.is_premium or not self.order[True]
            if waiter.outcome == "timed_out":
                assert (mine[0], self.now) == (waiter, waiter.deadline)
            mine.remove(waiter)
            self.unaware.append(waiter)

    @invariant()
    def leases_are_conserved(self) -> None:
        given = sum(isinstance(waiter.answer, Lease) for waiter in self.unaware)
        assert self.door.active == len(self.inside) + given <= self.most

    @invariant()
    def the_line_is_bounded_and_nobody_stands_too_long(self) -> None:
        standing = self._standing()
        assert len(self.line) == len(standing) <= self.line.places
        assert all(w.outcome is None and self.now < w.deadline for w in standing)

    @invariant()
    def nobody_stands_there_for_nothing(self) -> None:
        for first in (self.order[True] or self.order[False])[:1]:
            assert self.door.why_not(self.now, first.request) is not None

    @invariant()
    def estimates_are_sane(self) -> None:
        assert 1 <= self.line.eta_s(1) <= self.line.eta_s(2) <= MAX_ETA_S


TestLine = Line.TestCase
TestLine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_step_costs_the_same_in_a_long_line() -> None:
    """O(1): ten times as many who wait do not make coming and going ten times dearer.

    A ratio, because machines differ, and a wide one, because a long line leaves less of a busy machine's caches.
    """
    import time

    def cost(standing: int) -> float:
        line, _ = _full(standing=standing + 1, wait_s=60.0)
        waiters = [_waits(line, 1.0) for _ in range(standing)]
        for waiter in waiters[: standing // 2]:  # holes at the head are no burden
            line.leave(1.0, waiter)
        best = float("inf")
        for _ in range(20):
            started = time.process_time()
            for _ in range(100):
                line.leave(1.0, _waits(line, 1.0))
                line.settle(1.0)
            best = min(best, time.process_time() - started)
        return best

    assert cost(5000) < 4 * cost(500)
