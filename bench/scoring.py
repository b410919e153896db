"""How well words were heard, and whether sound can be: pure functions over text and samples."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# fmt: off
_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)
_TENS = (
    "zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)
# fmt: on
_SCALES = ((1_000_000_000, "billion"), (1_000_000, "million"), (1_000, "thousand"))
_MAX_SPELLED = 10**12  # longer runs of digits are read digit by digit, as telephone numbers are

_SPELLINGS = {
    "mr": "mister",
    "mrs": "missus",
    "dr": "doctor",
    "st": "saint",
    "metre": "meter",
    "metres": "meters",
    "colour": "color",
    "okay": "ok",
}
_SYMBOLS = {"%": " percent ", "&": " and ", "+": " plus ", "=": " equals ", "$": " dollars "}

_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_DECIMAL_POINT = re.compile(r"(?<=\d)\.(?=\d)")
_NUMBER = re.compile(r"\d+")
_APOSTROPHE = re.compile(r"['’]")
_NOT_A_WORD = re.compile(r"[^a-z0-9]+")


def number_words(number: int) -> list[str]:
    """The English words of `number` (0 or more), without "and": 121 is one hundred twenty one."""
    if number < 20:
        return [_ONES[number]]
    if number < 100:
        tens, ones = divmod(number, 10)
        return [_TENS[tens], *([_ONES[ones]] if ones else [])]
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return [_ONES[hundreds], "hundred", *(number_words(rest) if rest else [])]
    size, scale = next((size, scale) for size, scale in _SCALES if number >= size)
    count, rest = divmod(number, size)
    return [*number_words(count), scale, *(number_words(rest) if rest else [])]


def _spell(match: re.Match[str]) -> str:
    digits = match.group()
    if int(digits) >= _MAX_SPELLED:
        return " " + " ".join(_ONES[int(digit)] for digit in digits) + " "
    return f" {' '.join(number_words(int(digits)))} "


def normalise(text: str) -> list[str]:
    """The words of `text` as they are said: lower case, no punctuation, numbers spelled out."""
    text = _DECIMAL_POINT.sub(" point ", _THOUSANDS.sub("", text.lower()))
    for symbol, spoken in _SYMBOLS.items():
        text = text.replace(symbol, spoken)
    text = _NUMBER.sub(_spell, _APOSTROPHE.sub("", text))
    return [_SPELLINGS.get(word, word) for word in _NOT_A_WORD.split(text) if word]


def edit_distance(reference: Sequence[str], heard: Sequence[str]) -> int:
    """Fewest substitutions, insertions and deletions that turn `heard` into `reference`."""
    row = list(range(len(heard) + 1))
    for i, want in enumerate(reference, 1):
        diagonal, row[0] = row[0], i
        for j, got in enumerate(heard, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (want != got))
    return row[-1]


def word_error_rate(reference: str, heard: str) -> float:
    """Word errors per reference word, both sides normalised.

    0.0 where both are empty, infinite where only the reference is.
    """
    wanted, got = normalise(reference), normalise(heard)
    if not wanted:
        return float("inf") if got else 0.0
    return edit_distance(wanted, got) / len(wanted)


def rms_dbfs(samples: NDArray[np.int16]) -> float:
    """Loudness of mono pcm16 samples in dB relative to full scale; minus infinity for silence."""
    if samples.size == 0:
        return float("-inf")
    mean_square = float(np.mean(np.square(samples.astype(np.float64) / 32768.0)))
    return 10.0 * float(np.log10(mean_square)) if mean_square > 0.0 else float("-inf")


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0-1) of `values` do not exceed.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values to take a percentile of")
    ordered = sorted(values)
    rank = -(-round(share * len(ordered) * 1e9) // 1_000_000_000)  # ceiling, safe from 0.1 + 0.2
    return ordered[max(0, int(rank) - 1)]
