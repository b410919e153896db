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


AROUND = ((4,), (5,))


def image(length: int = 2) -> AudioChunk:
    return AudioChunk((8, *[9] * length), 1, features=(Feature("image", 1, length, {}),))


def said(memory: AudioMemory, *item_ids: str) -> list[tuple[int, ...]]:
    """The items as they are fed."""
    segments = memory.spell([Segment((), "message", item_id) for item_id in item_ids])
    return [memory.unmark(segment.token_ids)[0] for segment in segments]


def test_what_is_shown_between_turns_is_a_message() -> None:
    """With what opens and closes a turn around it, and a mark of its own."""
    memory = AudioMemory(100)
    marked = memory.show("i1", image(), AROUND)
    assert memory.unmark(marked) == ((4, 8, 9, 9, 5), (Feature("image", 2, 2, {}),))
    assert said(memory, "i1") == [(4, 8, 9, 9, 5)]
    assert not memory.turn


def test_what_is_shown_within_a_turn_is_part_of_it() -> None:
    """And its own item is empty for as long as that turn is in the conversation."""
    memory = AudioMemory(100)
    memory.hear(chunk())
    marked = memory.show("i1", image(), AROUND)
    assert memory.unmark(marked)[0] == (8, 9, 9)
    memory.hear(chunk())
    memory.commit("u1")
    heard = chunk().token_ids
    assert said(memory, "i1", "u1") == [(), (*heard, 8, 9, 9, *heard)]
    assert said(memory, "u1", "i1") == [(*heard, 8, 9, 9, *heard), ()]
    assert said(memory, "i1") == [(4, 8, 9, 9, 5)]  # the turn was deleted
    assert said(memory, "u1") == [(*heard, *heard)]  # the image was


def test_what_was_shown_in_a_turn_that_was_no_turn_is_a_message() -> None:
    """The audio is forgotten, the image is not."""
    memory = AudioMemory(100)
    memory.hear(chunk())
    memory.show("i1", image(), AROUND)
    memory.clear()
    memory.hear(chunk())
    memory.commit("u1")
    assert said(memory, "i1", "u1") == [(4, 8, 9, 9, 5), chunk().token_ids]


def test_features_of_images_count_like_those_of_audio() -> None:
    """The bound is one for both; what is older is fed bare."""
    memory = AudioMemory(5)
    old, new = memory.show("i1", image(3), AROUND), memory.show("i2", image(3), AROUND)
    assert memory.audio_tokens == 3
    assert memory.unmark(old)[1] == ()
    assert len(memory.unmark(new)[1]) == 1
