"""The audio of a conversation's items, kept for clients that read it back, within a budget of bytes per call.

    max_bytes   [ tape: the caller's last seconds, not yet an item ][ shelf: a clip per item, the oldest go first ]

All of it is in the format it had on the wire. A clip is told whole or not at all: one that was forgotten, or is longer
than an event may be, is just absent.
"""

from collections import deque
from collections.abc import Iterable, Iterator

import pybase64

from protocol.audio_format import PCM_RATE, AudioFormat

# 15 s at 24 kHz, 90 s of G.711: 960 kB of base64, since some clients refuse frames over 1 MiB.
MAX_CLIP_BYTES = 720_000
_MAX_TAPE_BYTES = 960_000  # a clip and, at 24 kHz, the 5 s it may take to find where it ended
_PIECE_BYTES = 48_000  # what the tape forgets at a time, at most: an append may be 15 MiB

_UNITS_PER_MS = PCM_RATE // 1000


class Clip:
    """The audio of one item, as it grows. Only its first `MAX_CLIP_BYTES` are kept."""

    __slots__ = ("_kept", "_length", "_limit", "_pieces", "_shelf", "format")

    def __init__(self, shelf: "AudioShelf", audio_format: AudioFormat) -> None:
        self.format = audio_format
        self._shelf: AudioShelf | None = shelf  # None: forgotten
        self._pieces: list[bytes] = []
        self._kept = 0  # bytes in the pieces
        self._length = 0  # bytes there ever were, up to the limit
        self._limit: int | None = None  # bytes that were heard; None: all

    def add(self, audio: bytes) -> None:
        """More of it, in its format. Once per tick and answer, so kept short."""
        if self._limit is not None:
            audio = audio[: self._limit - self._length]
        size, shelf = len(audio), self._shelf
        self._length += size
        if shelf is None or self._length > MAX_CLIP_BYTES or not size:
            return
        self._pieces.append(audio)
        self._kept += size
        shelf.bytes_kept += size
        if shelf.bytes_kept > shelf.max_bytes:
            shelf.make_room()

    def cut(self, heard_ms: int) -> None:
        """Keep the first `heard_ms` alone, also of what is still to come."""
        limit = heard_ms * self.format.rate // 1000 * self.format.sample_bytes
        self._limit = limit if self._limit is None else min(limit, self._limit)
        self._length = min(self._length, self._limit)
        if self._kept > self._length:
            self._pieces = [b"".join(self._pieces)[: self._length]]
            lost, self._kept = self._kept - self._length, self._length
            if self._shelf is not None:
                self._shelf.bytes_kept -= lost

    def base64(self) -> str | None:
        """All of it; None if it is not all there, or there is none."""
        if self._kept < self._length or not self._kept:
            return None
        return pybase64.b64encode_as_string(b"".join(self._pieces))

    def forget(self) -> None:
        """Give the memory back. Idempotent."""
        if self._shelf is not None:
            self._shelf.remove(self, self._kept)
        self._shelf = None
        self._pieces, self._kept = [], 0


class AudioShelf:
    """Holds clips, the oldest first, as many as fit."""

    def __init__(self, max_bytes: int) -> None:
        self.bytes_kept = 0
        self.max_bytes = max_bytes
        self._clips: dict[Clip, None] = {}  # in order of age

    def clip(self, audio_format: AudioFormat, pieces: Iterable[bytes] = ()) -> Clip:
        """A new clip, of that to begin with."""
        clip = Clip(self, audio_format)
        self._clips[clip] = None
        for piece in pieces:
            clip.add(piece)
        return clip

    def make_room(self) -> None:
        """Forget the oldest clips until the others fit."""
        while self.bytes_kept > self.max_bytes:
            next(iter(self._clips)).forget()

    def remove(self, clip: Clip, byte_count: int) -> None:
        """A clip with so many bytes is forgotten."""
        self._clips.pop(clip)
        self.bytes_kept -= byte_count


class Tape:
    """The caller's newest audio, by position: 24ths of a millisecond since the call began, exact at 8 and at 24 kHz.

    One append per frame and call goes through `append`, so that is kept short.
    """

    def __init__(self, max_bytes: int) -> None:
        self.end = 0  # position after the newest sample
        self.format = AudioFormat.PCM  # of all that is on it
        self._max_bytes = max_bytes
        self._pieces: deque[bytes] = deque()  # without gaps, up to the end
        self._bytes = 0
        self._measure()

    def _measure(self) -> None:
        self._sample_bytes = self.format.sample_bytes
        self._step = PCM_RATE // self.format.rate  # positions per sample

    def append(self, audio: bytes, audio_format: AudioFormat) -> int:
        """More audio; returns its length. What is older than the bound allows is forgotten."""
        if audio_format is not self.format:
            self.wipe()
            self.format = audio_format
            self._measure()
        size = len(audio)
        for piece in (audio,) if size <= _PIECE_BYTES else _cut(audio):
            self._pieces.append(piece)
            self._bytes += len(piece)
            while self._bytes > self._max_bytes:
                self._bytes -= len(self._pieces.popleft())
        length = size // self._sample_bytes * self._step
        self.end += length
        return length

    def wipe(self) -> None:
        """Forget all audio. Time goes on."""
        self._pieces.clear()
        self._bytes = 0

    def read(self, start: int, stop: int) -> list[bytes]:
        """The audio between two positions; nothing if its beginning was forgotten."""
        width, step = self._sample_bytes, self._step
        place = self.end - self._bytes // width * step
        if not self._pieces or start < place:
            return []
        pieces = []
        for piece in self._pieces:
            first, last = ((p - place) // step * width for p in (start, stop))
            if last > 0 and first < len(piece):
                pieces.append(piece[max(0, first) : last])
            place += len(piece) // width * step
        return pieces


def _cut(audio: bytes) -> Iterator[bytes]:
    for start in range(0, len(audio), _PIECE_BYTES):
        yield audio[start : start + _PIECE_BYTES]


def shared_out(max_bytes: int) -> tuple[int, int]:
    """How a call's budget is divided: bytes for the tape, bytes for the shelf."""
    tape = min(max_bytes // 2, _MAX_TAPE_BYTES)
    return tape, max_bytes - tape


def position(ms: int) -> int:
    """The position on the tape at so many milliseconds of the call."""
    return ms * _UNITS_PER_MS
