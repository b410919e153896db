"""The caller's recent audio."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.speech.utterance import UtteranceBuffer


def ramp(start: int, stop: int) -> np.ndarray:
    return np.arange(start, stop, dtype=np.float32)


def test_audio_is_read_by_position() -> None:
    """Samples come back by where they were in the stream, across pieces."""
    buffer = UtteranceBuffer(1000)
    buffer.push(ramp(0, 10))
    buffer.push(ramp(10, 30))
    assert buffer.read(5, 15).tolist() == list(range(5, 15))


def test_the_oldest_audio_goes_first_and_is_counted() -> None:
    """Past the capacity the oldest samples are dropped, and how many is known."""
    buffer = UtteranceBuffer(100)
    buffer.push(ramp(0, 250))
    buffer.push(ramp(250, 260))
    assert buffer.dropped_samples == 160
    assert buffer.read(0, 1000).tolist() == list(range(160, 260))


def test_audio_can_be_forgotten_before_it_arrives() -> None:
    """Forgetting up to a position ahead of the stream swallows what comes before it."""
    buffer = UtteranceBuffer(100)
    buffer.push(ramp(0, 10))
    buffer.forget(15)
    buffer.push(ramp(10, 20))
    assert buffer.read(0, 100).tolist() == list(range(15, 20))
    assert buffer.dropped_samples == 0


def test_nothing_is_an_empty_array() -> None:
    """A range without samples reads as none."""
    assert UtteranceBuffer(10).read(0, 5).shape == (0,)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), max_size=30))
def test_it_holds_what_was_not_forgotten_up_to_its_capacity(steps: list[tuple[int, int]]) -> None:
    """Whatever is pushed and forgotten, the readable range is exact and within the bound."""
    buffer, end, floor = UtteranceBuffer(64), 0, 0
    for size, back in steps:
        buffer.push(ramp(end, end + size))
        end += size
        floor = max(floor, end - 64)
        buffer.forget(end - back)
        floor = max(floor, end - back)
        assert buffer.read(0, end).tolist() == list(range(max(0, floor), end))
