"""Cutting appends into ticks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.framer import Framer


@given(st.binary(max_size=400), st.lists(st.integers(0, 60), max_size=30))
def test_every_split_gives_the_same_frames(data: bytes, cuts: list[int]) -> None:
    """However a stream is appended, the frames and the rest are the same."""
    whole = Framer(16)
    expected = whole.push(data)
    pieces, framer, frames, rest = [], Framer(16), [], data
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    for piece in [*pieces, rest]:
        frames += framer.push(piece)
    assert frames == expected
    assert framer.pending_bytes == whole.pending_bytes < 16
    assert framer.flush() == whole.flush() == data[len(expected) * 16 :]


def test_flush_empties() -> None:
    """What was flushed does not come again."""
    framer = Framer(4)
    framer.push(b"abc")
    assert (framer.flush(), framer.flush()) == (b"abc", b"")


@pytest.mark.parametrize("size", [0, -2, 3])
def test_a_frame_is_a_whole_number_of_samples(size: int) -> None:
    """Odd and empty frames are refused."""
    with pytest.raises(ValueError, match="frame"):
        Framer(size)
