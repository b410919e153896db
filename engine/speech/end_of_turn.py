"""Was that the end of the turn? A judgement on the words so far and on how they faded. Pure.

    pause ──▶ words, loudness ──▶ completeness 0–1 ──▶ silence that ends the turn, between the bounds of the eagerness

A caller who has said something whole is answered after a short silence; one who stopped in "I would like to book a"
is left time to think. English only: of another language only the punctuation and the loudness tell. The weights were
set by hand; `metronome bench turn-taking` measures how well they do. Pitch was tried and left out: on that set it told
nothing that the words had not.
"""

import math
import re

import numpy as np

from engine.models.base import Eagerness
from engine.speech.ports import SPEECH_RATE, Samples

# Silence in ms after what is surely over, and after what surely is not. The most bounds the wait for a caller who has
# given up in mid-sentence, and for words that never come.
_BOUNDS: dict[Eagerness, tuple[int, int]] = {
    "low": (600, 4000),
    "medium": (300, 2000),
    "auto": (300, 2000),
    "high": (200, 1200),
}
_SURE, _DOUBTFUL = 0.75, 0.25  # completeness from which, and up to which, a bound itself holds

_FINAL = SPEECH_RATE // 5  # samples: the last 200 ms of speech
_WINDOW = SPEECH_RATE // 100
_AUDIBLE_DB = -30.0  # below the loudest window

_WORD = re.compile(r"[a-z0-9]+(?:['’][a-z]+)*")


def _these(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Hardly anything English ends with these: what follows is still owed.
_DANGLING = _these(
    "a an the my your his its our their every "
    "and or but because although though unless until than whether if while since nor "
    "of to into onto from with without at by for between among during against towards per via near as "
    "i'm i'll i'd i've you're you'll we're we'll we'd they're he's she's it's that's there's what's let's "
    "i we he she they who whose which very quite rather um uh er erm uhm hmm mm mr mrs ms dr"
)
# They end a turn behind a pronoun, as in "yes, I can", and nowhere else.
_AUXILIARY = _these(
    "am are was were be been is isn't have has had do does did would could should will might must may can cannot"
)
_PRONOUN = _these("i you we they he she it that this there")
# These may end a turn, and seldom do.
_LEANING = _these(
    "on in up over under after before about where when why how what like so well "
    "want wants need needs get take make give tell say think know mean called named some any each another "
    "good new old first next last other same little large big small actually maybe just only also even still "
    "number one two three four five six seven eight nine zero"
)
_STRANDED = _these("of to from with at by for about near in on into like")  # "where are you from?"
_ASKING = _these("what where who whom which how whose why")
# A clause that begins so wants another one.
_SUBORDINATE = _these("if when whenever because although while before after since unless once")
_REPLIES = _these(
    "yes yeah yep no nope okay ok thanks sure right exactly please hello hi hey bye goodbye correct great "
    "perfect stop continue"
)
_BACKCHANNEL = _these(
    "mm mmm hm hmm mhm uh huh ah oh yeah yep yes ok okay right sure i see good great cool nice wow exactly really"
)
_BACKCHANNEL_WORDS = 3
_MARKS = {",": -1.5, "-": -2.0, "…": -2.0, ":": -2.0, ".": 1.0, "!": 1.0, "?": 1.0}


def completeness(words: str, fade: float) -> float:
    """How likely a turn is over after `words`, 0–1, where `fade` is how its sound ends (see `final_fade`)."""
    return 1 / (1 + math.exp(-(_spoken(words) + 0.25 * min(max(fade - 6.0, -8.0), 4.0))))


def silence_ms(complete: float, eagerness: Eagerness) -> int:
    """The silence after which a turn of this completeness ends; in between the bounds on a geometric scale."""
    least, most = _BOUNDS[eagerness]
    share = min(max((complete - _DOUBTFUL) / (_SURE - _DOUBTFUL), 0.0), 1.0)
    return round(most * math.pow(least / most, share))


def longest_silence_ms(eagerness: Eagerness) -> int:
    """The silence that ends any turn, whatever its words: what holds until they are known."""
    return _BOUNDS[eagerness][1]


def is_backchannel(words: str) -> bool:
    """True for what listeners say without wanting the floor, and where nothing intelligible was said."""
    found = _WORD.findall(words.lower())
    return len(found) <= _BACKCHANNEL_WORDS and _BACKCHANNEL.issuperset(found)


def final_fade(samples: Samples) -> float:
    """dB by which the end of speech in float32[n] at 16 kHz is quieter than the speech before it; 0 if too short.

    A sentence fades out; one that breaks off does so at full voice. Silence behind the speech does not matter.
    """
    whole = len(samples) // _WINDOW
    power = np.square(samples[: whole * _WINDOW]).reshape(whole, _WINDOW).mean(axis=1)
    level = 10 * np.log10(power + 1e-10)
    audible = np.flatnonzero(level > level.max(initial=-100.0) + _AUDIBLE_DB)
    final = _FINAL // _WINDOW
    if len(audible) < 2 * final:
        return 0.0
    end = int(audible[-1]) + 1
    before = audible[audible < end - final]
    return float(level[before].mean() - level[end - final : end].mean())


def _spoken(text: str) -> float:
    """The log-odds that a turn is over, by its words alone."""
    words = _WORD.findall(text.lower())
    if not words:
        return 0.0  # nothing understood: the sound must do
    written = text.rstrip("\"'”’ )")
    odds = -2.0 if written.endswith("...") else _MARKS.get(written[-1:], 0.0)
    return odds + _ending(words) + _opening(words, text)


def _ending(words: list[str]) -> float:
    before, last = [""] * (len(words) == 1) + words[-2:]
    if (before, last) == ("mm", "hmm") or last in _REPLIES:
        return 1.0
    if last in _AUXILIARY:
        return -1.0 if before in _PRONOUN else -4.0
    if last in _STRANDED and words[0] in _ASKING and len(words) > 2:
        return -1.0
    if last in _DANGLING:
        return -4.0
    return -1.5 if last in _LEANING and before else 0.0


def _opening(words: list[str], text: str) -> float:
    if words[0] in _SUBORDINATE and "," not in text.rstrip(",. ") and len(words) < 9:
        return -2.5
    if len(words) > 2 and words[0] in _ASKING | _AUXILIARY:
        return 0.5  # questions are short and meant to be answered
    return 0.0
