"""From the rows of `metronome bench admission --json FILE` to the tables of docs/admission.md.

python -m bench.admission_table FILE
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bench.admission_runs import BASELINES, STARTS, Row

MISS = 0.001


def markdown(rows: Sequence[Row], tuned: str = "A") -> str:
    """The tuned plant beside its alternatives, then the plants and seeds that nothing was tuned on."""
    known = [row for row in rows if _letter(row) == tuned]
    held_out = [row for row in rows if _letter(row) != tuned]
    parts = ["\n".join(_compared(known))] if known else []
    parts += ["\n".join(_held_out(held_out))] if held_out else []
    return "\n\n".join(parts) + "\n"


def _compared(rows: Sequence[Row]) -> Iterable[str]:
    others = list(BASELINES)
    yield (
        "| scenario | metronome: missed, peak | admitted cold / calibrated / warm | "
        + " | ".join(name.replace("_", " ") for name in others)
        + " |"
    )
    yield "|---|---|---|" + "---|" * len(others)
    for scenario in _in_order(row.scenario for row in rows):
        own = _of(rows, scenario, "metronome")
        cells = [_missed_and_peak(_of(rows, scenario, name)) for name in others]
        admitted = " / ".join(f"{_least(own, start):.2f}" for start in STARTS)
        yield f"| {_name(own)} | {_missed_and_peak(own)} | {admitted} | " + " | ".join(cells) + " |"


def _held_out(rows: Sequence[Row]) -> Iterable[str]:
    yield (
        "| plant, scenario | missed, worst | runs above 0.1 % | peak, worst | admitted cold, least (median) |"
        " calibrated | warm | recovery, worst |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for letter in _in_order(map(_letter, rows)):
        here = [row for row in rows if _letter(row) == letter]
        for scenario in _in_order(row.scenario for row in here):
            own = _of(here, scenario, "metronome")
            above = sum(row.miss > MISS for row in own)
            counted = "–" if own[0].fault else f"{above} of {len(own)}"
            admitted = " | ".join(
                f"{_least(own, start):.2f} ({_admitted(own, start, statistics.median):.2f})"
                for start in STARTS
            )
            yield (
                f"| {letter} {_name(own)} | {_percent(max(row.miss for row in own))} | {counted} | "
                f"{max(row.peak_over_capacity for row in own):.3f} | {admitted} | {_recovery(own)} |"
            )


def _letter(row: Row) -> str:
    return row.plant.partition("+")[0]


def _in_order(names: Iterable[str]) -> list[str]:
    """Each once, as first met."""
    return list(dict.fromkeys(names))


def _of(rows: Sequence[Row], scenario: str, controller: str) -> list[Row]:
    return [row for row in rows if row.scenario == scenario and row.controller == controller]


def _name(rows: Sequence[Row]) -> str:
    what = " (goodput)" if rows[0].churns else " (fault)" if rows[0].fault else ""
    return f"`{rows[0].scenario}`{what}"


def _missed_and_peak(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    peak = max(row.peak_over_capacity for row in rows)
    goodput = f"; {min(row.goodput for row in rows):.2f}" if rows[0].churns else ""
    return f"{_percent(max(row.miss for row in rows))}, {peak:.2f}{goodput}"


def _percent(share: float) -> str:
    """Three decimals where it matters."""
    return f"{share:.3%}".replace("%", " %") if share < 0.1 else f"{share:.0%}".replace("%", " %")


def _admitted(rows: Sequence[Row], start: str, reduce: Callable[[Sequence[float]], float]) -> float:
    """Of the capacity; a churning scenario's is its goodput."""
    return float(reduce([row.admitted_over_capacity for row in rows if row.start == start]))


def _least(rows: Sequence[Row], start: str) -> float:
    return _admitted(rows, start, min)


def _recovery(rows: Sequence[Row]) -> str:
    found = [row.recovery_s for row in rows if row.recovery_s is not None]
    return f"{max(found):.1f} s" if found else ""


def main(argv: Sequence[str]) -> int:
    """Print both tables."""
    found = json.loads(Path(argv[0]).read_text(encoding="utf-8"))["rows"]
    print(markdown([Row(**row) for row in found]), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
