"""`metronome bench admission`: the controller against its alternatives, on simulated machines, in virtual time.

Fourteen scenarios, six controllers, three starts. The default is the plant that the controller was tuned on, with two
seeds; `--full` adds three plants and ten seeds that it was not. Every figure is a share of the plant's true capacity,
which is found first: the largest fleet, all at full age, that misses at most one tick in a thousand.
"""

import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from admission.learned import Learned
from bench import admission_decision, admission_wall
from bench.admission_plant import PLANTS, H, I, J, Plant
from bench.admission_runs import BASELINES, STARTS, Row, capacity_of, learned_for, run_case
from bench.admission_scenarios import SCENARIOS, Scenario
from bench.kv_output import NoPlot, check_plot, draw
from bench.report import Figure, Report, at_least, at_most, parser, progress

TUNED_SEEDS = (1, 2)
HELD_OUT_SEEDS = tuple(range(301, 311))
HELD_OUT = (H, I, J)
WANTED = {"cold": 0.75, "calibrated": 0.85, "warm": 0.90}
MAX_MISS, MAX_PEAK, MAX_RECOVERY_S, MIN_GOODPUT_RATIO = 0.001, 1.0, 5.0, 0.90
MAX_DECISION_US = 10.0


@dataclass(frozen=True, slots=True)
class Job:
    """One row to be made."""

    scenario: Scenario
    plant: Plant
    controller: str
    start: str
    seed: int

    @property
    def past(self) -> tuple[str, str, int]:
        """Jobs of the same one start with the same memory."""
        return self.plant.name, self.start, self.seed


def _capacity(plant: Plant) -> int:
    return capacity_of(plant)


def _learned(job: Job, capacity: int) -> Learned | None:
    return learned_for(job.plant, capacity, job.start, job.seed)


def _row(job: Job, capacity: int, learned: Learned | None) -> Row:
    case = job.scenario.case(job.plant, capacity, job.seed)
    return run_case(case, job.controller, job.start, job.seed, learned)


def jobs(plants: Sequence[Plant], seeds: Sequence[int], baselines: bool) -> Iterator[Job]:
    """Everything to run, scenario by scenario."""
    for plant in plants:
        for scenario in SCENARIOS:
            machine = scenario.machine(plant)
            for seed in seeds:
                for start in STARTS:
                    yield Job(scenario, machine, "metronome", start, seed)
                for name in BASELINES if baselines else ():
                    yield Job(scenario, machine, name, "cold", seed)


def run_all(work: Sequence[Job]) -> list[Row]:
    """All rows, on all cores."""
    machines = {job.plant.name: job.plant for job in work}
    rows: list[Row] = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = pool.map(_capacity, machines.values())
        capacities = dict(zip(machines, found, strict=True))
        for name, capacity in capacities.items():
            progress(f"plant {name}: {capacity} sessions")
        pasts = {job.past: job for job in work if job.start != "cold"}
        lives = pool.map(
            _learned, pasts.values(), [capacities[job.plant.name] for job in pasts.values()]
        )
        learned = dict(zip(pasts, lives, strict=True))
        progress(f"{len(learned)} memories")
        sizes = [capacities[job.plant.name] for job in work]
        memories = [learned.get(job.past) for job in work]
        for number, row in enumerate(pool.map(_row, work, sizes, memories), 1):
            rows.append(row)
            if number % 20 == 0:
                progress(f"{number} of {len(work)} runs")
    return rows


def problems(rows: Sequence[Row]) -> list[str]:
    """What the controller did not hold."""
    goodput = {
        (r.plant, r.seed, r.scenario): r.goodput for r in rows if r.controller == "aimd_window"
    }
    found = []
    for row in rows:
        if row.controller == "metronome":
            name = f"{row.plant} {row.scenario} {row.start} seed {row.seed}"
            other = goodput.get((row.plant, row.seed, row.scenario), 0.0)
            found += [f"{name}: {what}" for what in _problems_of(row, other)]
    return found


def _problems_of(row: Row, other_goodput: float) -> Iterator[str]:
    if not row.fault and row.miss > MAX_MISS:
        yield f"missed {row.miss:.4%} of its ticks"
    if row.peak_over_capacity > MAX_PEAK:
        yield f"admitted up to {row.peak_over_capacity:.3f} of capacity"
    if row.churns:
        if row.goodput < MIN_GOODPUT_RATIO * other_goodput:
            yield f"goodput {row.goodput:.3f} beside {other_goodput:.3f} of windowed AIMD"
    elif row.admitted_over_capacity < WANTED[row.start]:
        yield f"admitted {row.admitted_over_capacity:.3f} of capacity"
    if row.recovery_s is not None and row.recovery_s > MAX_RECOVERY_S:
        yield f"recovered after {row.recovery_s:.1f} s"


def table(rows: Sequence[Row]) -> str:
    """One line per scenario and controller: the worst of miss, peak and recovery, the least admitted."""
    groups: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.plant, row.scenario, row.controller, row.start), []).append(row)
    lines = [
        "plant          scenario     controller   start       miss max   peak   admitted  goodput  rejected  recovery"
    ]
    for (plant, scenario, controller, start), group in groups.items():
        recovery = [row.recovery_s for row in group if row.recovery_s is not None]
        lines.append(
            f"{plant:<14} {scenario:<12} {controller:<12} {start:<10} {max(r.miss for r in group):8.3%} "
            f"{max(r.peak_over_capacity for r in group):7.3f} {min(r.admitted_over_capacity for r in group):9.3f} "
            f"{statistics.median(r.goodput for r in group):8.3f} "
            f"{int(statistics.median(r.rejected for r in group)):9,} "
            + (f"{max(recovery):7.1f} s" if recovery else "")
        )
    return "\n".join(lines)


def _figures(rows: Sequence[Row], found: Sequence[str]) -> list[Figure]:
    own = [row for row in rows if row.controller == "metronome"]
    calm = [row for row in own if not row.fault]
    worst = max(row.miss for row in calm)
    peak = max(row.peak_over_capacity for row in own)
    figures = [
        Figure("runs", len(rows)),
        Figure(
            "missed, worst without a fault", round(100 * worst, 4), "%", "<= 0.1", worst <= MAX_MISS
        ),
        Figure("peak, worst", round(peak, 3), "x capacity", "<= 1", peak <= MAX_PEAK),
    ]
    for start, wanted in WANTED.items():
        least = min(r.admitted_over_capacity for r in own if r.start == start and not r.churns)
        figures.append(
            Figure(
                f"admitted, least, {start}",
                round(least, 3),
                "x capacity",
                f">= {wanted}",
                least >= wanted,
            )
        )
    figures.append(Figure("bounds not held", len(found), "", "0", not found))
    return figures


def _negative_control(plot: Path | None) -> list[Figure]:
    """The same controller, blind to age and memory, in front of calls that only grow."""
    seeing, blind = admission_wall.run(terms=True), admission_wall.run(terms=False)
    draw(plot, "seconds", admission_wall.panels(seeing, blind))
    return [
        at_most(
            "unbounded KV, missed in the worst minute",
            round(100 * seeing.worst_minute, 3),
            "%",
            0.1,
        ),
        Figure("unbounded KV, admitted", seeing.admitted, "sessions"),
        at_least(
            "the same blind, missed in the worst minute",
            round(100 * blind.worst_minute, 1),
            "%",
            50,
        ),
        Figure("the same blind, admitted", blind.admitted, "sessions"),
    ]


def _decision() -> Figure:
    spent = admission_decision.microseconds()
    name = f"a decision with {admission_decision.SESSIONS:,} sessions in"
    return at_most(name, round(spent, 2), "µs", MAX_DECISION_US)


def main(argv: Sequence[str]) -> int:
    """Run the suite; with --check 1 if a bound was not held."""
    command = parser("admission", "The admission controller against its alternatives, simulated.")
    command.add_argument(
        "--full", action="store_true", help="also plants and seeds that it was not tuned on (hours)"
    )
    command.add_argument(
        "--plot", type=Path, metavar="FILE", help="also draw the negative control, as a PNG"
    )
    command.add_argument("--scenario", action="append", help="only this one; may be repeated")
    command.add_argument(
        "--plant", action="append", choices=PLANTS, help="on this one, not on A; may be repeated"
    )
    options = command.parse_args(argv)
    try:
        check_plot(options.plot)
    except NoPlot as error:
        print(f"bench admission: {error}", file=sys.stderr)
        return 1
    report = Report("admission", argv)
    seeds = TUNED_SEEDS[:1] if options.quick else TUNED_SEEDS
    plants = [PLANTS[name] for name in options.plant or ("A",)]
    work = list(jobs(plants, seeds, baselines=True))
    if options.full:
        work += jobs(HELD_OUT, HELD_OUT_SEEDS, baselines=False)
        first = jobs(HELD_OUT, HELD_OUT_SEEDS[:1], baselines=True)
        work += [job for job in first if job.controller in BASELINES]
    if options.scenario:
        work = [job for job in work if job.scenario.name in options.scenario]
    rows = run_all(work)
    found = problems(rows)
    report.add(*_figures(rows, found), *_negative_control(options.plot), _decision())
    print(table(rows))
    report.publish(None)
    for problem in found:
        print(f"not held: {problem}", file=sys.stderr)
    if options.json is not None:
        whole: dict[str, Any] = report.as_json()
        whole["rows"] = [row.as_json() for row in rows]
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        print(f"written: {options.json}")
    return 1 if found and options.check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
