"""Which tokens go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kv_policy import KvPolicy


@given(
    length=st.integers(0, 5000),
    sink=st.integers(0, 900),
    spare=st.integers(0, 400),
    block=st.sampled_from([16, 32, 128]),
)
def test_a_cut_keeps_the_sink_and_the_window(
    length: int, sink: int, spare: int, block: int
) -> None:
    """Whole blocks behind the sink go, and what is left is the window and less than one block."""
    policy = KvPolicy("anchored", window_tokens=512, slack_tokens=128)
    cut = policy.cut(length, sink, block, spare)
    if cut is None:
        assert length + spare <= sink + 640 or length < sink + 512 + 2 * block
        return
    start, stop = cut
    assert start % block == stop % block == 0
    assert sink <= start < sink + block
    assert 512 <= length - stop < 512 + block


@pytest.mark.parametrize("name", ["unbounded", "sliding"])
def test_other_policies_never_cut(name: str) -> None:
    """Bounding is the engine's own business there, or nobody's."""
    policy = KvPolicy(name)  # type: ignore[arg-type]
    assert policy.cut(100_000, 10, 32) is None
    assert policy.limit(10, 4096) == 4096


def test_the_plateau_covers_everything_a_session_may_hold() -> None:
    """ceil((sink + window + slack + tick) / block) + 1 blocks."""
    assert (
        KvPolicy("anchored", 512, 128).plateau_blocks(sink=60, tick_tokens=10, block_size=32) == 24
    )


def test_a_window_must_be_positive() -> None:
    """A policy that keeps nothing is refused."""
    with pytest.raises(ValueError, match="positive"):
        KvPolicy("anchored", 0, 1)
