"""What was heard, as marks in the mirror and as tokens and features for the engine."""

import numpy as np

from engine.audio_memory import AudioMemory
from engine.models.base import AudioChunk, Segment
from engine.work import Feature

PLACEHOLDER = 7


def chunk(length: int = 3) -> AudioChunk:
    tensors = {"mel": np.zeros((2, length), np.float32)}
    tokens = (1, *[PLACEHOLDER] * length, 2)
    return AudioChunk(tokens, 1, features=(Feature("audio", 1, length, tensors),))


def test_equal_placeholders_get_different_marks() -> None:
    """And come back as what they were, with their features where they belong."""
    memory = AudioMemory(100)
    first, second = memory.hear(chunk()), memory.hear(chunk())
    assert first[0] == second[0] == 1
    assert first[1] == first[2] != second[1]
    tokens, features = memory.unmark([9, *first, *second])
    assert tokens == (9, *chunk().token_ids, *chunk().token_ids)
    assert [(f.offset, f.length) for f in features] == [(2, 3), (7, 3)]


def test_a_stretch_that_is_not_whole_is_fed_bare() -> None:
    """Its features would not fit it."""
    memory = AudioMemory(100)
    marked = memory.hear(chunk())
    assert memory.unmark(marked[2:]) == ((PLACEHOLDER, PLACEHOLDER, 2), ())


def test_features_are_kept_for_the_newest_audio_only() -> None:
    """What is older has its placeholders and nothing behind them."""
    memory = AudioMemory(5)
    old, new = memory.hear(chunk()), memory.hear(chunk())
    assert memory.audio_tokens == 3
    assert memory.unmark(old) == (chunk().token_ids, ())
    assert len(memory.unmark(new)[1]) == 1


def test_a_spoken_item_is_spelled_as_it_was_heard() -> None:
    """Typed items are left as they are."""
    memory = AudioMemory(100)
    marked = memory.hear(chunk())
    memory.commit("u1")
    assert not memory.turn
    spoken, typed = memory.spell([Segment((), "message", "u1"), Segment((5,), "message", "u2")])
    assert spoken.token_ids == marked
    assert typed.token_ids == (5,)


def test_what_was_cleared_is_in_no_item() -> None:
    """A commit after it starts from nothing."""
    memory = AudioMemory(100)
    memory.hear(chunk())
    memory.clear()
    memory.commit("u1")
    (spoken,) = memory.spell([Segment((5,), "message", "u1")])
    assert spoken.token_ids == ()
