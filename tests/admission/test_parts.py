"""The small parts: memory, CPU, stalls, pacing, advice, and what is remembered."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.learned import Learned, loads
from admission.pacing import JoinTokens, Probation
from admission.port import Lease
from admission.resources import IngestLoad, KvPool, StallLatch
from admission.retry import MAX_S, RetryAdvice


def test_a_pool_promises_no_more_than_it_has() -> None:
    """Less a reserve, and a plateau given back can be promised again."""
    pool = KvPool(100, reserve=0.05)
    pool.promise(90)
    assert (pool.fits(5), pool.fits(6)) == (True, False)
    pool.free(40)
    assert pool.fits(45)


def test_the_wall_is_forecast_from_how_fast_the_pool_fills() -> None:
    """Ten blocks a second towards a thousand: a hundred seconds at the start, forty after sixty."""
    pool = KvPool(1000, reserve=0.0)
    assert pool.wall_s(10) == 100
    for second in range(61):
        pool.observe(10.0 * second, 1.0)
    assert pool.wall_s(10) == 40
    assert 35 < pool.wall_s(0) < 60  # as it was seen to fill
    steady = KvPool(1000, reserve=0.0)
    for _ in range(10):
        steady.observe(500.0, 1.0)
    assert steady.wall_s(0) == inf


def test_cores_bound_the_fleet_once_they_are_busy() -> None:
    """An idle machine proves nothing; a busy one carries what its cores can."""
    ingest = IngestLoad(cores=2, share=0.85)
    ingest.observe(0.1, 50, 1.0)
    ingest.plan(10, 50)
    assert ingest.limit == inf
    for _ in range(20):
        ingest.observe(1.36, 50, 1.0)
    ingest.plan(10, 50)
    assert ingest.limit == pytest.approx(10 * 1.7 / 1.36)


def test_a_stall_is_latched_until_ticks_come_in_time() -> None:
    """And for a while after it nothing that is measured is believed."""
    latch = StallLatch(hold_s=2.5)
    latch.update(1.0, 10, 10, 0.0, 0.2)
    assert latch.believes(1.0)
    latch.update(1.5, 10, 0, 0.0, 0.2)  # owed, and none in time
    assert latch.is_set
    latch.update(2.0, 0, 0, 0.0, 0.2)  # nothing is judged: still stalled
    assert latch.is_set
    latch.update(2.5, 10, 9, 0.0, 0.2)
    assert not latch.is_set
    assert not latch.believes(4.9)
    assert latch.believes(5.0)


def test_a_step_that_does_not_end_is_a_stall() -> None:
    """Also where nobody owes anything."""
    latch = StallLatch(hold_s=2.5)
    latch.update(1.0, 0, 0, 0.9, 0.2)
    assert not latch.is_set
    latch.update(2.0, 0, 0, 1.1, 0.2)
    assert latch.is_set


def test_an_engine_that_stays_slow_is_the_engine_there_is() -> None:
    """The latch lets go of ticks that keep coming late, and leaves them to the limit."""
    latch = StallLatch(hold_s=2.5)
    latch.update(0.0, 10, 0, 0.0, 0.2)
    for half_seconds in range(1, 30):
        latch.update(half_seconds / 2, 10, 5, 0.0, 0.2)
    assert not latch.is_set


def test_joins_are_rationed() -> None:
    """A burst, then the rate; and saying how long to wait."""
    joins = JoinTokens(burst=4)
    joins.rate = 2.0
    taken = 0
    while joins.available(0.0) >= 1:
        joins.take()
        taken += 1
    assert taken == 4
    assert joins.available(0.4) < 1 <= joins.available(0.5)


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), max_size=60))
def test_probation_counts_the_young(moves: list[tuple[float, bool]]) -> None:
    """However they come and leave: the same number as counting all."""
    probation, now, inside = Probation(1.0), 0.0, []
    for pause, leaves in moves:
        now += pause
        if leaves and inside:
            lease = inside.pop(len(inside) // 2)
            lease.released = True
            probation.left(lease)
        else:
            lease = Lease("t", now)
            probation.entered(lease)
            inside.append(lease)
        assert probation.count(now) == sum(lease.admitted_at > now - 1.0 for lease in inside)


def test_callers_are_told_different_times() -> None:
    """So that they do not come back together; within half of the base."""
    advice = RetryAdvice()
    told = {round(advice.after_s(1000), 3) for _ in range(50)}
    assert len(told) == 50
    assert max(told) < 1.5 * min(told)


def test_advice_grows_with_the_crowd_and_not_for_those_who_are_only_paced() -> None:
    """Doubled for every full house refused, bounded, and back at the base after an admission."""
    advice = RetryAdvice()
    first = advice.after_s(2)
    for _ in range(40):
        last = advice.after_s(2)
    assert first < 3 < last <= MAX_S
    assert advice.after_s(2, pacing=True) < 1.5
    advice.admitted()
    assert advice.after_s(2) <= 3


STATE = Learned(
    "sim/cpu/1/1024",
    {"theta": [1.0]},
    (0.2, 0.2, 0.4),
    -3,
    30_000.0,
    served=170.0,
    proven=165.0,
    capacity=180.0,
    limit=171.0,
    join_s=0.004,
    calibrated=True,
)


def test_what_was_learned_survives_json() -> None:
    """For the same key."""
    assert loads(STATE.dumps(), STATE.key) == STATE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        STATE.dumps().replace('"version": 3', '"version": 0'),
        STATE.dumps().replace("170.0", "NaN"),
        STATE.dumps().replace('"tail"', '"tale"'),
        STATE.dumps()[:-20],
    ],
)
def test_what_is_damaged_is_not_used(text: str) -> None:
    """A cold start is always possible."""
    assert loads(text, STATE.key) is None


def test_the_memory_of_another_machine_is_not_used() -> None:
    """A cost model of something else is worse than none."""
    assert loads(STATE.dumps(), "sim/gpu/1/1024") is None
