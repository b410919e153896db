"""Today's fleet at full age."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.projection import (
    CURVE,
    Kind,
    demand_of,
    load,
    scale_to_full,
    step_now,
)

LINEAR = (0.004, 3e-5, 2e-8, 0.0)
CURVED = (0.004, 3e-5, 1e-8, 1e-10)
FAST = Kind(0.08, 0.08, 2, 2000)
SLOW = Kind(1.0, 1.0, 10, 2000)

numbers = st.integers(1, 300)
laws = st.sampled_from([LINEAR, CURVED])


@given(laws, numbers, numbers)
def test_a_larger_fleet_is_a_larger_load(
    law: tuple[float, float, float, float], first: int, more: int
) -> None:
    """Strictly."""
    small, large = demand_of([(FAST, first)]), demand_of([(FAST, first + more)])
    assert load(law, 0.02, small.rate, small.tokens) < load(law, 0.02, large.rate, large.tokens)


@given(laws, numbers)
def test_a_fleet_scaled_to_full_is_exactly_full(
    law: tuple[float, float, float, float], sessions: int
) -> None:
    """The two ways of asking agree: the load of so many such fleets is one."""
    demand = demand_of([(FAST, sessions), (SLOW, sessions)])
    times = scale_to_full(law, 0.03, demand.rate, demand.tokens)
    assert load(law, 0.03, times * demand.rate, times * demand.tokens) == pytest.approx(1)


def test_no_fleet_fits_where_an_empty_step_is_too_long() -> None:
    """The fixed cost alone takes the step's time."""
    demand = demand_of([(FAST, 1)])
    assert scale_to_full(LINEAR, 0.003, demand.rate, demand.tokens) == 0


@given(laws, numbers)
def test_the_step_now_is_a_fixed_point(
    law: tuple[float, float, float, float], sessions: int
) -> None:
    """Or the longest there is, where the engine cannot keep up."""
    demand = demand_of([(FAST, sessions)])
    step_s = step_now(law, demand.rate, demand.tokens, 0.04)
    read = step_s * demand.tokens
    following = law[0] + law[1] * step_s * demand.rate + law[2] * read + law[3] * read**CURVE
    assert step_s == pytest.approx(min(following, 0.04), rel=0.01)


def test_a_session_of_one_second_asks_for_less_than_one_of_eighty_milliseconds() -> None:
    """By its steps per second; and the more urgent one sets how long a step may be."""
    mixed = demand_of([(FAST, 3), (SLOW, 4)])
    assert mixed.rate == pytest.approx(3 * 25 + 4 * 10)
    assert mixed.urgency == FAST.urgency > SLOW.urgency
    assert demand_of([(SLOW, 4)]).urgency == SLOW.urgency
    assert demand_of([(FAST, 0)]) == demand_of([])
