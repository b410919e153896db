"""Who sits in which row, and how many rows a step computes."""

import random

import pytest

from engine.moshi_adapter.settings import MoshiSettings
from engine.moshi_adapter.slots import Move, SlotTable

SIZES = (1, 2, 4, 8)


def seated(*names: str) -> SlotTable:
    table = SlotTable(SIZES)
    for name in names:
        table.take(name)
    return table


def test_the_lowest_free_row_is_taken() -> None:
    """Rows fill from below, and the batch is the smallest that holds them."""
    table = SlotTable(SIZES)
    assert table.rows == 0
    rows = [(table.take(name).row, table.rows) for name in "abcde"]  # type: ignore[union-attr]
    assert rows == [(0, 1), (1, 2), (2, 4), (3, 4), (4, 8)]


def test_a_full_house_takes_nobody() -> None:
    """The ninth finds no row, and one that leaves makes room for it."""
    table = seated(*"abcdefgh")
    assert table.take("i") is None
    table.leave("c")
    table.leave("c")
    seat = table.take("i")
    assert seat is not None
    assert seat.row == 2


def test_nobody_moves_for_nothing() -> None:
    """A gap stays where closing it would not make the batch smaller."""
    table = seated(*"abcd")
    table.leave("a")
    assert table.compact() == []
    assert table.rows == 4


def test_the_last_moves_into_a_gap_for_a_smaller_batch() -> None:
    """Two of four are left, in rows 1 and 3: the one in row 3 moves down, with its age."""
    table = seated(*"abcd")
    table.seats["d"].frames = 7
    table.leave("a")
    table.leave("c")
    assert table.compact() == [Move(3, 0)]
    assert (table.seats["d"].row, table.seats["d"].frames, table.rows) == (0, 7, 2)


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_never_shared_or_lost(seed: int) -> None:
    """Through any coming and going: one row each, no row twice, and the smallest batch after `compact`."""
    rng, table = random.Random(seed), SlotTable(SIZES)
    contents: dict[int, str] = {}  # what the memory of each row holds
    for step in range(200):
        for name in [n for n in table.seats if rng.random() < 0.2]:
            table.leave(name)
        if rng.random() < 0.7:
            name = f"s{step}"
            seat = table.take(name)
            assert (seat is None) == (len(table.seats) == 8 and name not in table.seats)
            if seat is not None:
                contents[seat.row] = name
        for move in table.compact():
            contents[move.target] = contents[move.source]
        assert all(contents[seat.row] == name for name, seat in table.seats.items())
        assert table.rows == next((s for s in SIZES if s >= len(table.seats)), 0) * bool(
            table.seats
        )


def test_the_number_of_slots_is_always_a_batch_size() -> None:
    """Six slots step as 1, 2, 4 or 6 rows."""
    assert MoshiSettings("x", slots=6).batch_sizes == (1, 2, 4, 6)
    assert MoshiSettings("x", slots=1).batch_sizes == (1,)


@pytest.mark.parametrize(
    "wrong",
    [
        {"slots": 0},
        {"buckets": (0,)},
        {"context_frames": 0},
        {"temperature": -1.0},
        {"location": ""},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    """Each names what is wrong."""
    with pytest.raises(ValueError, match=next(iter(wrong)).split("_")[-1]):
        MoshiSettings(**{"location": "x", **wrong})  # type: ignore[arg-type]
