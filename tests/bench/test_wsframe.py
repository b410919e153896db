"""The load generator's half of RFC 6455."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from bench.wsframe import TEXT, frames, handshake, masked


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_a_masked_frame_is_what_another_implementation_makes(size: int) -> None:
    """Header form, mask and payload agree with python-websockets at every length boundary."""
    payload = bytes(range(256)) * (size // 256 + 1)
    theirs = Frame(Opcode.TEXT, payload[:size]).serialize(mask=True)
    key = theirs[-size - 4 : len(theirs) - size]
    assert masked(TEXT, payload[:size], key) == theirs


@given(st.lists(st.integers(0, 70_000), max_size=4), st.integers(0, 12))
def test_frames_are_found_whole_and_a_cut_one_is_left(sizes: list[int], cut: int) -> None:
    """Every whole frame is reported once; of what is cut off nothing is."""
    wire = b"".join(Frame(Opcode.TEXT, b"x" * size).serialize(mask=False) for size in sizes)
    found = list(frames(wire))
    assert [stop - start for _, start, stop in found] == sizes
    assert {opcode for opcode, _, _ in found} <= {TEXT}
    shorter = wire[: len(wire) - cut] if cut else wire
    whole = list(frames(shorter))
    assert whole == found[: len(whole)]
    assert all(stop <= len(shorter) for _, _, stop in whole)


def test_a_handshake_carries_the_key_only_if_there_is_one() -> None:
    """An anonymous caller sends no Authorization header."""
    assert b"Authorization: Bearer k\r\n" in handshake("h", 1, "/p", "k")
    assert b"Authorization" not in handshake("h", 1, "/p", "")
