"""The search for the largest load that holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.search import most_held


@given(st.integers(20, 3000), st.integers(10, 1000), st.sampled_from([1.05, 1.4, 2.0]))
def test_the_answer_holds_and_is_close_to_the_limit(limit: int, start: int, stride: float) -> None:
    """Never more than the true limit, and within the precision below it."""
    found = most_held(lambda n: n <= limit, start, ceiling=4000, precision=0.1, stride=stride)
    if start // 16 > limit:
        return
    assert found <= limit
    assert limit - found <= max(1.0, 0.1 * found) + 1 or found == 0


def test_nothing_holds() -> None:
    """A server that answers nobody on time holds none, and the search ends."""
    assert most_held(lambda n: False, 250, ceiling=4000) == 0


def test_a_single_failure_is_not_believed() -> None:
    """A busy machine may spoil one try; the second one counts."""
    spoiled = {250}

    def holds(n: int) -> bool:
        if n in spoiled:
            spoiled.remove(n)
            return False
        return n <= 250

    assert most_held(holds, 250, ceiling=4000, precision=0.5) == 250


@pytest.mark.parametrize("ceiling", [250, 400])
def test_the_search_stops_at_the_ceiling(ceiling: int) -> None:
    """What the door would refuse is not tried."""
    tried: list[int] = []

    def holds(n: int) -> bool:
        tried.append(n)
        return True

    assert most_held(holds, 250, ceiling=ceiling) == ceiling
    assert max(tried) == ceiling
