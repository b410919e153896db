"""Which words were heard by which moment."""

import pytest

from protocol.alignment import SpokenText

RATE = 8000
MS = 16  # bytes per millisecond at that rate


def spoken(*clauses: tuple[str, int]) -> SpokenText:
    """A text spoken clause by clause: (text, ms)."""
    text = SpokenText(RATE)
    for words, ms in clauses:
        text.write(words)
        text.speak(ms * MS)
    return text


@pytest.mark.parametrize(
    ("heard_ms", "kept"),
    [
        (0, ""),
        (1, ""),
        (374, ""),
        (375, "Hello"),  # 5 of 12 characters
        (899, "Hello"),
        (900, "Hello there,"),
        (1000, "Hello there,"),
        (1900, "Hello there, how are"),
        (2100, "Hello there, how are you?"),
        (9999, "Hello there, how are you?"),
    ],
)
def test_cut(heard_ms: int, kept: str) -> None:
    """A cut between clauses is exact; inside one it keeps the whole words heard by then."""
    text = spoken(("Hello there,", 900), (" how are you?", 1200))
    assert text.cut(heard_ms) == min(heard_ms, 2100)
    assert text.heard() == kept
    assert text.text == "Hello there, how are you?"


def test_cuts_only_shrink() -> None:
    """What was forgotten stays forgotten."""
    text = spoken(("Hello there,", 900), (" how are you?", 1200))
    text.cut(900)
    assert text.cut(2000) == 900
    assert text.audio_ms == 900


def test_pieces_without_audio_between_them_are_one() -> None:
    """Words that arrive together are spoken together."""
    text = spoken(("Hello", 0), (" there,", 900), (" bye.", 300))
    text.cut(900)
    assert text.heard() == "Hello there,"


def test_unspoken_words_are_dropped() -> None:
    """Words whose audio never came are forgotten on request, the others kept whole."""
    text = spoken(("Hello.", 500), (" More.", 0))
    assert text.heard() == "Hello. More."
    text.drop_unspoken()
    assert text.heard() == "Hello."


def test_nothing_spoken() -> None:
    """An answer without words or audio has neither."""
    text = SpokenText(RATE)
    assert (text.text, text.heard(), text.audio_ms, text.cut(50)) == ("", "", 0, 0)
    text.speak(100 * MS)  # a laugh
    text.drop_unspoken()
    assert text.heard() == ""
