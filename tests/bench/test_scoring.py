"""Words and loudness are scored as a listener would."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.scoring import edit_distance, normalise, percentile, rms_dbfs, word_error_rate


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("Go forward 10 meters.", "go forward ten metres"),
        ("Mr. Dashwood", "mister Dashwood"),
        ("It’s 25%!", "its twenty five percent"),
        ("twenty-one", "21"),
        ("1,204,000 people", "one million two hundred four thousand people"),
        ("3.14", "3 point 14"),
        ("007", "seven"),
        ("ill-disposed", "ill disposed"),
    ],
)
def test_two_ways_to_write_the_same_words_are_equal(written: str, spoken: str) -> None:
    """Case, punctuation, digits and common abbreviations do not count as errors."""
    assert normalise(written) == normalise(spoken)
    assert word_error_rate(written, spoken) == 0.0


def test_each_wrong_missing_and_added_word_is_one_error() -> None:
    """One substitution, one deletion and one insertion over four words are 0.75."""
    assert word_error_rate("go forward ten meters", "go backward meters please") == 0.75


def test_hearing_something_where_nothing_was_said_is_infinitely_wrong() -> None:
    """An empty reference cannot hide what was heard."""
    assert word_error_rate("", "you") == float("inf")
    assert word_error_rate("...", "") == 0.0


def test_a_number_too_long_for_words_is_read_digit_by_digit() -> None:
    """Long runs of digits neither fail nor explode."""
    assert normalise("1234567890123")[:3] == ["one", "two", "three"]


@given(st.text(max_size=40))
def test_normalising_twice_changes_nothing(text: str) -> None:
    """Normalised words are a fixed point, whatever the text."""
    words = normalise(text)
    assert normalise(" ".join(words)) == words


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abc"), max_size=8))
def test_edit_distance_is_symmetric_and_bounded(left: list[str], right: list[str]) -> None:
    """It is a distance: zero only for equal lists, never more than the longer one."""
    distance = edit_distance(left, right)
    assert distance == edit_distance(right, left)
    assert abs(len(left) - len(right)) <= distance <= max(len(left), len(right))
    assert (distance == 0) == (left == right)


def test_a_full_scale_sine_is_three_db_down_and_silence_is_bottomless() -> None:
    """The reference of dBFS is a full-scale square wave."""
    sine = (32767 * np.sin(np.linspace(0, 200 * np.pi, 24_000))).astype(np.int16)
    assert rms_dbfs(sine) == pytest.approx(-3.01, abs=0.02)
    assert rms_dbfs(np.zeros(100, np.int16)) == float("-inf")
    assert rms_dbfs(np.zeros(0, np.int16)) == float("-inf")


def test_a_percentile_is_one_of_the_values() -> None:
    """Nearest rank: no value is made up between two measured ones."""
    values = [5.0, 1.0, 4.0, 2.0, 3.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    assert percentile(values, 0.5) == 5.0
    assert percentile(values, 0.9) == 9.0
    assert percentile(values, 1.0) == 10.0
    assert percentile([7.0], 0.01) == 7.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)
