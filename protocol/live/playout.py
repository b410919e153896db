"""What is still to be played, on a grid of 200 ms: answers come faster than they are spoken. Pure.

Bounded by its owner: the engine stops decoding when playback is some seconds behind.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

GRID_MS = 200
Role = Literal["system", "user", "assistant"]


@dataclass(slots=True)
class Said:
    """A message of the conversation; an answer's text grows as it is played."""

    role: Role
    item_id: str
    text: str = ""
    awaits_words: bool = False  # the caller's, until it is transcribed


@dataclass(slots=True)
class Playout:
    """Audio and the words that go with it; positions count bytes of pcm16 ever pushed."""

    rate: int  # Hz
    _pieces: deque[bytes] = field(default_factory=deque)
    _begun: int = 0  # bytes of the first piece that are played
    _pushed: int = 0
    _played: int = 0
    # (position of the audio that speaks them, whose, words)
    _words: deque[tuple[int, Said, str]] = field(default_factory=deque)

    def push_words(self, whose: Said, words: str) -> None:
        """Words, just ahead of the audio that speaks them."""
        self._words.append((self._pushed, whose, words))

    def push_audio(self, pcm: bytes) -> None:
        """pcm16 at `rate`."""
        if pcm:
            self._pieces.append(pcm)
            self._pushed += len(pcm)

    def clear(self) -> None:
        """Interrupted: nothing of it will be heard."""
        self._pieces.clear()
        self._words.clear()
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
        said = []
        while self._words:
            position, whose, words = self._words[0]
            if position > self._played or (position == self._played and self._pieces):
                break
            self._words.popleft()
            whose.text += words
            said.append(words)
        return "".join(said)
