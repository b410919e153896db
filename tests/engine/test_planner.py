"""Earliest deadline first, within the prefill budget."""

from hypothesis import given
from hypothesis import strategies as st

from engine.planner import plan
from engine.work import Append


def append(deadline: float, tokens: int = 0) -> Append:
    return Append(f"s{deadline}", 0, (1,) * tokens, 3, deadline)


def test_the_earliest_deadline_goes_first() -> None:
    """Order of arrival does not matter."""
    assert [a.deadline for a in plan([append(3.0), append(1.0), append(2.0)], 10)] == [
        1.0,
        2.0,
        3.0,
    ]


def test_a_long_prefill_does_not_join_another() -> None:
    """Two prefills that do not fit one step go into two; decoding goes on beside them."""
    chosen = plan([append(1.0, 8), append(2.0, 8), append(3.0), append(4.0, 2)], 10)
    assert [a.deadline for a in chosen] == [1.0, 3.0, 4.0]


def test_a_prefill_longer_than_the_budget_does_not_starve() -> None:
    """The first append always fits."""
    assert [a.deadline for a in plan([append(1.0, 100)], 10)] == [1.0]


@given(st.lists(st.tuples(st.floats(0, 9), st.integers(0, 30)), max_size=20), st.integers(1, 40))
def test_the_budget_holds_and_the_most_urgent_is_served(
    work: list[tuple[float, int]], budget: int
) -> None:
    """Whatever waits: sorted, within budget or alone, and the earliest deadline is always in."""
    appends = [append(d, n) for d, n in work]
    chosen = plan(appends, budget)
    assert [a.deadline for a in chosen] == sorted(a.deadline for a in chosen)
    prefills = [len(a.token_ids) for a in chosen if a.token_ids]
    assert len(prefills) <= 1 or sum(prefills) <= budget
    if appends:
        assert chosen[0].deadline == min(a.deadline for a in appends)
