"""Words and the call that a model begins among them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.call_scan import CallScanner
from engine.models.tools import CallMark

MARK = CallMark("<tool_call>", 7)
NAMES = {"look", "listen"}


def scanned(scanner: CallScanner, pieces: list[str]) -> str:
    words = "".join(scanner.feed(piece) for piece in pieces)
    return words + scanner.rest()


def split(text: str, cuts: list[int]) -> list[str]:
    places = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


@pytest.mark.parametrize(
    ("text", "words", "found"),
    [
        ("Let me see.\n<tool_call>\n{", "Let me see.", True),
        ("<tool_call>", "", True),
        (" \n<tool_call>{", "", True),
        ("3 <too many, <tool_cal", "3 <too many, <tool_cal", False),
        ("a <<tool_call>", "a <", True),
        ("No call.\n", "No call.\n", False),
    ],
)
@given(cuts=st.lists(st.integers(0, 60), max_size=6))
def test_a_mark_is_found_however_it_is_split(
    text: str, words: str, found: bool, cuts: list[int]
) -> None:
    """Words before it stay words, less the line break that leads to it; half a mark is words after all."""
    scanner = CallScanner(MARK, NAMES)
    assert scanned(scanner, split(text, cuts)) == words
    assert scanner.found is found


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"name": "look", "arguments": {}}', "look"),
        ('\n {"name":"listen" , "arguments":{"a', "listen"),
        ('{"name": "smell", "arguments": {}}', ""),
        ('Well, {"name": "look", "arguments": {}}', ""),
        ('{"a": 1}', ""),
        ("{" + " " * 300 + "x", ""),
        ("Hello.", ""),
    ],
)
@given(cuts=st.lists(st.integers(0, 400), max_size=6))
def test_a_bare_call_is_an_answer_that_begins_with_one(
    text: str, name: str, cuts: list[int]
) -> None:
    """Of a function that may be called, at the very beginning; anything else is words, and none of them is lost."""
    scanner = CallScanner(None, NAMES)
    words = scanned(scanner, split(text, cuts))
    assert (scanner.name if scanner.found else "") == name
    assert words == ("" if name else text)


def test_words_are_held_no_longer_than_needed() -> None:
    """Nothing waits that cannot belong to a mark; without tools nothing waits at all."""
    scanner = CallScanner(MARK, NAMES)
    assert [scanner.feed(piece) for piece in ("Hi", " there <", "3")] == ["Hi", " there", " <3"]
    idle = CallScanner(MARK, ())
    assert idle.feed("x <tool_call>") == "x <tool_call>"
    assert not idle.found
    bare = CallScanner(None, NAMES)
    assert bare.feed("Hello") == "Hello"
    assert bare.feed(" {") == " {"
