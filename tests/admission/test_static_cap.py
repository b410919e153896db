"""The fixed cap: leases are conserved, refusals say why and when."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from admission.port import AdmissionPort, Lease, Rejection, Request
from admission.static_cap import BASE_RETRY_S, MAX_RETRY_S, StaticCap

REQUEST = Request()


def admitted(cap: StaticCap) -> Lease:
    lease = cap.try_admit(0.0, REQUEST)
    assert isinstance(lease, Lease)
    return lease


def refused(cap: StaticCap) -> Rejection:
    rejection = cap.try_admit(0.0, REQUEST)
    assert isinstance(rejection, Rejection)
    return rejection


def test_it_is_an_admission_port() -> None:
    """StaticCap fits the port."""
    port: AdmissionPort = StaticCap(3)
    assert (port.active, port.limit) == (0, 3)


def test_a_lease_says_whose_and_since_when() -> None:
    """The lease carries the tenant and the instant of the request."""
    lease = StaticCap(1).try_admit(4.5, Request(tenant="t_1"))
    assert isinstance(lease, Lease)
    assert (lease.tenant, lease.admitted_at, lease.released) == ("t_1", 4.5, False)


def test_a_full_house_refuses_until_a_place_is_free() -> None:
    """The one over the cap is refused for capacity; after a release the next one enters."""
    cap = StaticCap(1)
    lease = admitted(cap)
    rejection = refused(cap)
    assert (rejection.reason, rejection.retry_after_s) == ("capacity", BASE_RETRY_S)
    assert "1 sessions" in rejection.message
    cap.release(1.0, lease)
    assert lease.released
    assert admitted(cap) is not lease


def test_a_second_release_frees_nobody_elses_place() -> None:
    """Releasing a lease twice gives back one place."""
    cap = StaticCap(2)
    first, second = admitted(cap), admitted(cap)
    cap.release(0.0, first)
    cap.release(0.0, first)
    assert cap.active == 1
    cap.release(0.0, second)
    assert cap.active == 0


def test_once_closed_nobody_enters_but_everybody_may_leave() -> None:
    """After close every request is refused for the first reason given; leases stay valid."""
    cap = StaticCap(2)
    lease = admitted(cap)
    cap.close("draining")
    cap.close("engine_down")
    assert refused(cap).reason == "draining"
    assert cap.active == 1
    cap.release(0.0, lease)
    assert (cap.active, refused(cap).reason) == (0, "draining")


def test_retry_after_grows_with_the_crowd_and_is_bounded() -> None:
    """Each full house refused in a row doubles the wait, up to a limit; a freed place resets it."""
    cap = StaticCap(2)
    lease, _ = admitted(cap), admitted(cap)
    waits = [refused(cap).retry_after_s for _ in range(6)]
    assert waits == [BASE_RETRY_S * factor for factor in (1, 1, 2, 2, 4, 4)]
    assert max(refused(cap).retry_after_s for _ in range(5000)) == MAX_RETRY_S
    cap.release(0.0, lease)
    admitted(cap)
    assert refused(cap).retry_after_s == BASE_RETRY_S


@pytest.mark.parametrize("places", [0, -1])
def test_a_door_without_places_is_an_error(places: int) -> None:
    """A cap below one is refused."""
    with pytest.raises(ValueError, match="at least 1"):
        StaticCap(places)


@given(st.integers(1, 20), st.integers(0, 60))
def test_exactly_the_cap_gets_in(places: int, knocks: int) -> None:
    """Of any number of requests, min(cap, requests) are admitted."""
    cap = StaticCap(places)
    verdicts = [cap.try_admit(0.0, REQUEST) for _ in range(knocks)]
    assert sum(isinstance(verdict, Lease) for verdict in verdicts) == min(places, knocks)


class Door(RuleBasedStateMachine):
    """Any order of requests, releases, double releases and closing conserves the places."""

    def __init__(self) -> None:
        super().__init__()
        self.cap = StaticCap(3)
        self.out: list[Lease] = []
        self.returned: list[Lease] = []
        self.closed = False

    @rule()
    def knock(self) -> None:
        verdict = self.cap.try_admit(0.0, REQUEST)
        assert isinstance(verdict, Lease) == (len(self.out) < 3 and not self.closed)
        if isinstance(verdict, Lease):
            self.out.append(verdict)
        else:
            assert BASE_RETRY_S <= verdict.retry_after_s <= MAX_RETRY_S

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.out))
        self.cap.release(0.0, lease)
        self.out.remove(lease)
        self.returned.append(lease)

    @precondition(lambda self: self.returned)
    @rule(data=st.data())
    def leave_again(self, data: st.DataObject) -> None:
        self.cap.release(0.0, data.draw(st.sampled_from(self.returned)))

    @rule()
    def close(self) -> None:
        self.cap.close("draining")
        self.closed = True

    @invariant()
    def places_are_conserved(self) -> None:
        assert self.cap.active == len(self.out) <= self.cap.limit == 3
        assert [lease.released for lease in self.out] == [False] * len(self.out)


TestDoor = Door.TestCase
TestDoor.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
