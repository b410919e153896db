"""Which session sits in which row of the batch, and how many rows a step needs. Pure.

    [0, rows)       computed by the next step: `rows` is the smallest batch size above the highest taken row
    [rows, slots)   free

Sessions never move while that changes nothing. When one leaves and the highest row could then be given up for a
smaller batch, the last session moves down into the gap.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Seat:
    """One session's row."""

    row: int
    frames: int = 0  # heard so far
    prompt_frames: int = 0  # of its prompt so far, before the first it heard


@dataclass(frozen=True, slots=True)
class Move:
    """The stream in row `source` goes on in row `target`."""

    source: int
    target: int


class SlotTable:
    """Seats sessions in rows 0 … slots − 1."""

    def __init__(self, batch_sizes: Sequence[int]) -> None:
        """`batch_sizes` ascending; the last is the number of slots."""
        self._sizes = tuple(batch_sizes)
        self._seats: dict[str, Seat] = {}
        self._free = list(range(self.slots))  # ascending

    @property
    def slots(self) -> int:
        return self._sizes[-1]

    @property
    def seats(self) -> dict[str, Seat]:
        """By session id."""
        return self._seats

    @property
    def rows(self) -> int:
        """Batch size of the next step; 0 while nobody is seated."""
        return self._size(len(self._occupied()))

    def take(self, session_id: str) -> Seat | None:
        """Seat a session in the lowest free row; None if the house is full."""
        assert session_id not in self._seats, session_id
        if not self._free:
            return None
        seat = self._seats[session_id] = Seat(self._free.pop(0))
        return seat

    def leave(self, session_id: str) -> None:
        """Give a row back. Idempotent."""
        seat = self._seats.pop(session_id, None)
        if seat is not None:
            self._free = sorted([*self._free, seat.row])

    def compact(self) -> list[Move]:
        """Seat the sessions of the highest rows lower, if that leaves a smaller batch."""
        target_rows = self._size(len(self._seats))
        moves = []
        for seat in self._seats.values():
            if seat.row >= target_rows:
                free = self._free.pop(0)
                moves.append(Move(seat.row, free))
                self._free.append(seat.row)
                seat.row = free
        self._free.sort()
        return moves

    def _occupied(self) -> range:
        return range(max((seat.row for seat in self._seats.values()), default=-1) + 1)

    def _size(self, rows: int) -> int:
        """The smallest batch size that holds `rows` rows; 0 for none."""
        return next((size for size in self._sizes if size >= rows), 0) if rows else 0
