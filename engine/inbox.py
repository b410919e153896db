"""Caller audio that nobody has heard yet, bounded in bytes, with the marks that must be met in order.

Past the bound an append is refused whole: nothing of legal audio is ever lost in part. Frame-locked models, for which
late audio has no value, drop the oldest frame instead and count it.
"""

from collections import deque
from collections.abc import Iterator

import msgspec

from engine.work import Frame


class Refused(msgspec.Struct, frozen=True):
    """An append that did not fit; none of it was taken."""

    limit_s: float


class CommitMark(msgspec.Struct, frozen=True):
    """All audio before this mark belongs to the user item `item_id`."""

    item_id: str


class ClearMark(msgspec.Struct, frozen=True):
    """All audio before this mark is forgotten."""


Entry = Frame | CommitMark | ClearMark
MAX_MARKS = 256  # commits and clears waiting behind audio; a client that sends more is refused


class FrameInbox:
    """A bounded queue of frames and marks."""

    def __init__(self, capacity_bytes: int, *, drop_oldest: bool = False) -> None:
        self.capacity_bytes = capacity_bytes
        self.drop_oldest = drop_oldest
        self.dropped = 0  # frames forgotten by `drop_oldest`, ever
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._marks = 0

    def has_room(self, size: int) -> bool:
        """True if `size` more bytes would be taken."""
        return self.drop_oldest or self._bytes + size <= self.capacity_bytes

    def put(self, frame: Frame) -> list[Frame]:
        """Store one frame; the frames that had to go for it (only where `drop_oldest`)."""
        gone: list[Frame] = []
        self._entries.append(frame)
        self._bytes += len(frame.pcm)
        while (
            self._bytes > self.capacity_bytes
            and self.drop_oldest
            and len(self._entries) - self._marks > 1
        ):
            gone.append(self._drop_oldest())
        return gone

    def _drop_oldest(self) -> Frame:
        """The oldest frame, taken out from among the marks, which stay: what they are for must still be done."""
        for index, entry in enumerate(self._entries):
            if isinstance(entry, Frame):
                del self._entries[index]
                self._bytes -= len(entry.pcm)
                self.dropped += 1
                return entry
        raise AssertionError("no frame is stored")

    def mark(self, entry: CommitMark | ClearMark) -> bool:
        """Store a mark; False if too many wait already."""
        if self._marks >= MAX_MARKS:
            return False
        self._entries.append(entry)
        self._marks += 1
        return True

    def head(self) -> Entry | None:
        """The entry that is next, left in place."""
        return self._entries[0] if self._entries else None

    def pop(self) -> Entry:
        """Take the next entry. Raises IndexError when empty."""
        entry = self._entries.popleft()
        if isinstance(entry, Frame):
            self._bytes -= len(entry.pcm)
        else:
            self._marks -= 1
        return entry

    def frames(self) -> Iterator[Frame]:
        """The frames, oldest first, left in place."""
        return (entry for entry in self._entries if isinstance(entry, Frame))

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = self._marks = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def queued_bytes(self) -> int:
        return self._bytes
