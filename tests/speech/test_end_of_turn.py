"""How likely a turn is over, by its words and by how it fades."""

import numpy as np
import pytest

from engine.models.base import Eagerness
from engine.speech.end_of_turn import (
    completeness,
    final_fade,
    is_backchannel,
    longest_silence_ms,
    silence_ms,
)
from engine.speech.ports import Samples

NEUTRAL = 6.0  # dB: says nothing either way


@pytest.mark.parametrize(
    "words",
    [
        "What time is it in Lisbon?",
        "Yes, I can.",
        "Mm-hmm.",
        "Okay",
        "Please call my sister.",
        "If it rains, I will stay at home.",
    ],
)
def test_whole_utterances_are_more_likely_over_than_not(words: str) -> None:
    """Punctuation, replies and auxiliaries behind a pronoun end a turn."""
    assert completeness(words, NEUTRAL) >= 0.5


@pytest.mark.parametrize(
    "words",
    [
        "I would like to book a",
        "I would like to book a.",
        "My phone is broken, and",
        "The problem is that, um,",
        "We could",
        "The second thing I wanted to say is.",
        "If the shop is still open",
        "Let me see...",
        "So I told him -",
    ],
)
def test_broken_off_utterances_are_not_over(words: str) -> None:
    """Articles, conjunctions, fillers, bare auxiliaries and lone subordinate clauses want more, full stop or not."""
    assert completeness(words, NEUTRAL) < 0.35


def test_a_stranded_preposition_is_allowed_in_a_question() -> None:
    """ "Where are you from?" is more likely over than "I come from"."""
    assert (
        completeness("Where are you from?", NEUTRAL) > completeness("I come from.", NEUTRAL) + 0.3
    )


@pytest.mark.parametrize("words", ["I want to", "That is all.", ""])
def test_speech_that_fades_is_more_likely_over(words: str) -> None:
    """Whatever was said, and if nothing was understood the sound alone decides."""
    assert completeness(words, 15.0) > completeness(words, NEUTRAL) > completeness(words, -3.0)


@pytest.mark.parametrize("eagerness", ["low", "medium", "auto", "high"])
def test_silence_shrinks_as_completeness_grows(eagerness: Eagerness) -> None:
    """From the longest that any turn waits down to the shortest, and never beyond."""
    needed = [silence_ms(share / 20, eagerness) for share in range(21)]
    assert needed == sorted(needed, reverse=True)
    assert needed[0] == longest_silence_ms(eagerness)
    assert 200 <= needed[-1] < needed[0] / 3


def test_the_eager_wait_less() -> None:
    """High is at most medium, medium at most low; auto is medium."""
    for share in (0.0, 0.5, 1.0):
        high, medium, low = (silence_ms(share, e) for e in ("high", "medium", "low"))
        assert high < medium < low
        assert silence_ms(share, "auto") == medium


def _voice(*parts: tuple[float, float]) -> Samples:
    """A hum of so many seconds at such an amplitude, part by part."""
    pieces = [np.full(int(16_000 * s), a, np.float32) for s, a in parts]
    loud = np.concatenate(pieces)
    hum: Samples = (loud * np.sin(np.arange(len(loud)) * 0.08)).astype(np.float32)
    return hum


def test_the_fade_compares_the_end_with_what_came_before() -> None:
    """In dB, whatever silence follows."""
    faded = final_fade(_voice((1.0, 0.5), (0.2, 0.05), (0.5, 0.0)))
    assert faded == pytest.approx(20, abs=0.5)
    assert final_fade(_voice((1.0, 0.5), (0.2, 0.0))) == pytest.approx(0, abs=0.5)


@pytest.mark.parametrize(
    "samples", [_voice((0.1, 0.5)), _voice((1.0, 0.0)), np.zeros(0, np.float32)]
)
def test_too_little_sound_has_no_fade(samples: Samples) -> None:
    """A blip, silence and nothing at all."""
    assert final_fade(samples) == 0.0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("Mm-hmm.", True),
        ("Yeah, okay.", True),
        ("", True),
        ("I see", True),
        ("Stop.", False),
        ("No", False),
        ("Yeah but wait", False),
        ("okay okay okay okay", False),
    ],
)
def test_backchannels(words: str, expected: bool) -> None:
    """A few words that ask for nothing; whoever says more, or "stop", wants the floor."""
    assert is_backchannel(words) is expected
