"""Which tokens go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kv_policy import KvPolicy


@given(
    length=st.integers(0, 5000),
    sink=st.integers(0, 900),
    spare=st.integers(0, 700),
    block=st.sampled_from([16, 32, 128]),
)
def test_a_cut_makes_room_and_keeps_as_much_of_the_window_as_fits(
    length: int, sink: int, spare: int, block: int
) -> None:
    """Whole blocks behind the sink go; what is left fits the limit, or nothing but the sink's blocks is left."""
    policy = KvPolicy("anchored", window_tokens=512, slack_tokens=128)
    limit = policy.limit(sink, 100_000)
    cut = policy.cut(length, sink, limit, block, spare)
    if length + spare <= limit:
        assert cut is None
        return
    if cut is None:  # nothing to drop behind the sink
        assert length < sink + 512 + 2 * block
        return
    start, stop = cut
    assert start % block == stop % block == 0
    assert sink <= start < sink + block
    left = length - (stop - start)
    assert left + spare <= limit or left - start < block
    assert left <= start + 512 + block
    assert left - start >= min(512, limit - sink - spare - 2 * (block - 1))


@pytest.mark.parametrize("name", ["unbounded", "sliding"])
def test_other_policies_never_cut(name: str) -> None:
    """Bounding is the engine's own business there, or nobody's."""
    policy = KvPolicy(name)  # type: ignore[arg-type]
    assert policy.cut(100_000, 10, 4096, 32) is None
    assert policy.limit(10, 4096) == 4096


def test_the_plateau_covers_everything_a_session_may_hold() -> None:
    """ceil((sink + window + slack + tick) / block) + 1 blocks."""
    assert (
        KvPolicy("anchored", 512, 128).plateau_blocks(sink=60, tick_tokens=10, block_size=32) == 24
    )


def test_a_session_settles_between_being_cut_and_being_cut_again() -> None:
    """Fed a tick at a time for thousands of ticks, it holds what is priced, but for a block's rounding."""
    policy, length, held = KvPolicy("anchored", 512, 128), 60, list[int]()
    limit = policy.limit(60, 100_000)
    for tick in range(5000):
        length += 10
        cut = policy.cut(length, 60, limit, 32)
        if cut is not None:
            length -= cut[1] - cut[0]
        if tick > 100:
            held.append(length)
    assert policy.settled_tokens(60) == pytest.approx(sum(held) / len(held), abs=32)


def test_a_window_must_be_positive() -> None:
    """A policy that keeps nothing is refused."""
    with pytest.raises(ValueError, match="positive"):
        KvPolicy("anchored", 0, 1)


def test_a_session_cannot_hold_more_than_the_deployment_reserved() -> None:
    """A client's window shrinks to fit; truncation disabled means refused at the plateau, not a full pool."""
    deployment = KvPolicy("anchored", 512, 128)
    assert KvPolicy("anchored", 100, 50).within(deployment) == KvPolicy("anchored", 100, 50)
    assert KvPolicy("anchored", 4000, 1000).within(deployment).total_tokens == 640
    full = KvPolicy("unbounded").within(deployment)
    assert not full.truncates
    assert full.limit(10, 4096) == 650
    assert KvPolicy("unbounded").within(KvPolicy("unbounded")).limit(10, 4096) == 4096


def test_a_long_header_takes_from_its_own_window() -> None:
    """Instructions past what is reserved shrink that session's window; they never take blocks from another's."""
    policy = KvPolicy("anchored", 512, 128, header_tokens=100)
    assert policy.limit(60, 4096) == 700
    assert policy.limit(300, 4096) == 740
