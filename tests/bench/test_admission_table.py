"""The tables of docs/admission.md: the worst of each group, and what a reader must not miss."""

from dataclasses import replace

from bench.admission_runs import BASELINES, STARTS, Row
from bench.admission_table import markdown

ROW = Row(
    "A", 1, "step", "metronome", "cold", False, False, 180, 0.0, 0.97, 0.95, 0.95, 0.9, 9, None
)


def _rows(plant: str, **changes: object) -> list[Row]:
    own = [replace(ROW, plant=plant, start=start, **changes) for start in STARTS]  # type: ignore[arg-type]
    return own + [replace(row, controller=name) for row in own[:1] for name in BASELINES]


def test_the_worst_of_the_seeds_is_shown() -> None:
    """Most missed, highest peak, least admitted."""
    rows = [
        *_rows("A"),
        replace(ROW, seed=2, miss=0.0005, peak_over_capacity=0.99, admitted_over_capacity=0.8),
    ]
    line = markdown(rows).splitlines()[2]
    assert line.startswith("| `step` | 0.050 %, 0.99 | 0.80 / 0.95 / 0.95 |")


def test_runs_beyond_the_bound_are_counted_on_plants_that_nothing_was_tuned_on() -> None:
    """One of three missed more than a tick in a thousand."""
    rows = _rows("A") + _rows("H+noise") + [replace(ROW, plant="H+noise", start="warm", miss=0.002)]
    assert "| H `step` | 0.200 % | 1 of 4 |" in markdown(rows)


def test_a_fault_is_marked_and_shows_its_recovery() -> None:
    """What it makes them miss is physics, so it is not counted against them."""
    rows = _rows("H", fault=True, miss=0.2, recovery_s=2.5)
    table = markdown(_rows("A") + rows)
    assert "| H `step` (fault) | 20 % | – |" in table
    assert "2.5 s |" in table
