"""Cutting an answer into clauses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.speech.clauses import ClauseCutter


def cut(*deltas: str) -> list[str]:
    cutter = ClauseCutter()
    return [clause for delta in deltas for clause in cutter.feed(delta)] + cutter.flush()


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("Hello!", ["Hello!"]),
        ("Hello! I am fine.", ["Hello!", " I am fine."]),
        ("Yes, I can do it at once now.", ["Yes, I can do it at once", " now."]),  # 5 words, or 7
        ("Of course, it is.", ["Of course,", " it is."]),
        ("One two three four five six.", ["One two three four five", " six."]),
        ("The capital of France is Paris.", ["The capital of France is Paris."]),  # not after "is"
        ("Mr. Smith is here.", ["Mr. Smith is here."]),
        ("It costs 3.5 euros, or so.", ["It costs 3.5 euros,", " or so."]),
        ("See J. Doe.", ["See J. Doe."]),
        ("1. Go home.", ["1. Go home."]),
        ('"Stop!" he said.', ['"Stop!"', " he said."]),
        ("First line\nsecond", ["First line", "\nsecond"]),
        (
            "Hi. The second sentence is longer, though, than it was. And a third.",
            ["Hi.", " The second sentence is longer, though, than it was.", " And a third."],
        ),
        ("你好。我很好。", ["你好。", "我很好。"]),
        ("", []),
        ("   ", ["   "]),
    ],
)
def test_cuts(text: str, clauses: list[str]) -> None:
    """Clauses end where a speaker would breathe; abbreviations and decimals do not end one."""
    assert cut(text) == clauses


def test_the_first_clause_does_not_wait_for_the_sentence() -> None:
    """Five words are out as soon as the sixth begins."""
    assert ClauseCutter().feed("Whales sing long songs underwater and") == [
        "Whales sing long songs underwater"
    ]


def test_no_clause_is_longer_than_the_limit() -> None:
    """Text without any punctuation or space is cut all the same."""
    assert max(map(len, cut("word " * 100 + "x" * 500))) <= 160


def test_every_answer_begins_anew() -> None:
    """After a flush the next clause is short again."""
    cutter = ClauseCutter()
    cutter.feed("Some words. And more")
    cutter.flush()
    assert cutter.feed("Hi! ") == ["Hi!"]


_TEXT = st.text(alphabet=st.sampled_from('aZ3.,!?: \n"é。'), max_size=400)


@settings(deadline=None)
@given(_TEXT)
def test_nothing_is_lost_whatever_the_split(text: str) -> None:
    """Clauses joined are the text, and are the same for every way of splitting it."""
    whole = cut(text)
    assert "".join(whole) == text
    assert cut(*text) == whole
    middle = len(text) // 2
    assert cut(text[:middle], text[middle:]) == whole
    assert all(whole)
