"""What is still to be played, on a grid of 200 ms: answers come faster than they are spoken. Pure.

Bounded by its owner: the engine stops decoding when playback is some seconds behind.
"""

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

GRID_MS = 200
# How fast people speak, until it is known how fast this voice does: about 15 letters a second.
_LETTER_MS = 65
Role = Literal["system", "user", "assistant"]


@dataclass(slots=True)
class Said:
    """A message of the conversation; an answer's text grows as it is played."""

    role: Role
    item_id: str
    text: str = ""
    awaits_words: bool = False  # the caller's, until it is transcribed


@dataclass(slots=True)
class _Clause:
    """Words whose audio begins at `start`, in bytes, and ends where the next clause's begins."""

    start: int
    whose: Said
    words: deque[str]  # not said yet; blanks belong to the word behind them
    size: int  # characters
    said: int = 0  # of them

    def begun(self, end: int) -> int:
        """Where the audio of its next word begins, taking it to be spoken evenly."""
        return self.start + (end - self.start) * self.said // self.size

    def say(self) -> str:
        """The next word."""
        word = self.words.popleft()
        self.said += len(word)
        self.whose.text += word
        return word


@dataclass(slots=True)
class Playout:
    """Audio and the words that go with it; positions count bytes of pcm16 ever pushed."""

    rate: int  # Hz
    _pieces: deque[bytes] = field(default_factory=deque)
    _begun: int = 0  # bytes of the first piece that are played
    _pushed: int = 0
    _played: int = 0
    _clauses: deque[_Clause] = field(default_factory=deque)
    _letter_bytes: float = 0.0  # of audio, in the clauses so far

    def __post_init__(self) -> None:
        self._letter_bytes = _LETTER_MS * self.rate * 2 / 1000

    def push_words(self, whose: Said, words: str) -> None:
        """Words, just ahead of the audio that speaks them."""
        if words:
            pieces = deque(re.findall(r"\s*\S+\s*\Z|\s*\S+|\s+", words))
            self._clauses.append(_Clause(self._pushed, whose, pieces, len(words)))

    def push_audio(self, pcm: bytes) -> None:
        """pcm16 at `rate`."""
        if pcm:
            self._pieces.append(pcm)
            self._pushed += len(pcm)

    def clear(self) -> None:
        """Interrupted: nothing of it will be heard."""
        self._pieces.clear()
        self._clauses.clear()
        self._begun = 0
        self._played = self._pushed

    def take(self) -> tuple[bytes, str]:
        """The next 200 ms, filled up with silence, and the words that begin in them; those were then said."""
        size = self.rate * 2 * GRID_MS // 1000
        taken = bytearray()
        while self._pieces and len(taken) < size:
            piece = self._pieces[0][self._begun : self._begun + size - len(taken)]
            taken += piece
            self._begun += len(piece)
            if self._begun == len(self._pieces[0]):
                self._pieces.popleft()
                self._begun = 0
        self._played += len(taken)
        return bytes(taken.ljust(size, b"\0")), self._say()

    def _say(self) -> str:
        """The words whose time has come; all there are once nothing is left to play."""
        said = []
        while self._clauses and self._clauses[0].start <= self._played:
            clause = self._clauses[0]
            end = self._end(clause)
            while clause.words and (not self._pieces or clause.begun(end) < self._played):
                said.append(clause.say())
            if clause.words:
                break
            self._clauses.popleft()
            if self._clauses:
                self._letter_bytes += (
                    (self._clauses[0].start - clause.start) / clause.size - self._letter_bytes
                ) / 2
        return "".join(said)

    def _end(self, clause: _Clause) -> int:
        """Where its audio ends; while that is still coming, where it would at the pace so far."""
        if len(self._clauses) > 1:
            return self._clauses[1].start
        return max(self._pushed, clause.start + int(clause.size * self._letter_bytes))
