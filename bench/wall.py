"""`metronome bench wall`: a pool that is too small for calls that only grow, under three KV policies.

Four calls on the production engine, in real time, with a simulated frame-locked model that asks a tiny real one for its
tokens. `unbounded` runs into the wall: vLLM finds no block, computes nothing, and returns at once. Two ways to watch
are compared: how long engine steps take, and the ticks that are owed (TickLedger). The moment is predicted early on.
"""

import asyncio
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.kv_backend import MeteredBackend, quiet
from bench.kv_output import NoPlot, check_plot, draw, kv_parser, write_csv
from bench.kv_stats import wall_s
from bench.report import Figure, Report, at_least, at_most, progress
from bench.scoring import percentile
from bench.sim import Listener
from bench.tiny_model import write_tiny_llama
from engine.backend import Backend, EngineUnavailable
from engine.clock import LoopClock
from engine.engine import Engine
from engine.executor import ThreadExecutor
from engine.kv_policy import KvPolicy, PolicyName
from engine.models.base import SessionSetup
from engine.models.sim import SimDuplex, SimDuplexSettings
from engine.observer import StepStats, TickStats, TurnStats
from engine.settings import EngineSettings
from engine.vllm_adapter.environment import prepare_environment
from engine.vllm_adapter.settings import VllmSettings

SESSIONS = 4
TICK_MS = 200
SPOKEN, DECODED = 29, 1  # tokens per tick
WINDOW, SLACK, BLOCK = 256, 128, 32  # tokens
POOL = 128  # blocks
RUNS, QUICK_RUNS = 10, 1
POLICIES: tuple[PolicyName, ...] = ("unbounded", "sliding", "anchored")
MAX_PREDICTION_ERROR = 0.15
_FULL_S = POOL * BLOCK * TICK_MS / 1000 / (SESSIONS * (SPOKEN + DECODED))  # as arithmetic has it
_LIFE_S = 1.5 * _FULL_S  # of a run
_LOOK_FROM, _LOOK_TO = 0.15, 0.4  # of _FULL_S: where the growth is measured
_SETTLE_S = 2 * TICK_MS / 1000  # after the last good tick, until every owed one has been judged


class Witness:
    """Keeps what an observer of the engine is told. Instants on the engine's clock."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self.ticks: list[TickStats] = []
        self.steps: list[tuple[float, StepStats]] = []  # when it was told

    def tick(self, stats: TickStats) -> None:
        self.ticks.append(stats)

    def served(self, stats: TickStats) -> None:
        """Its verdict has been kept."""

    def step(self, stats: StepStats) -> None:
        self.steps.append((self._clock.now(), stats))

    def turn(self, stats: TurnStats) -> None:
        """A frame-locked model has no turns."""


@dataclass(slots=True)
class Run:
    """What one life under one policy came to. Instants in seconds since the calls began."""

    policy: PolicyName
    ticks: list[tuple[float, str]]  # (deadline, outcome), in order of deadline
    steps: list[tuple[float, float, int, int]]  # (end, seconds in the engine, blocks, tokens held)
    failures: list[str] = field(default_factory=list)

    @property
    def stalled_at(self) -> float:
        """Deadline of the last tick that was met, if none was for the rest of the run; infinity otherwise."""
        met = [deadline for deadline, outcome in self.ticks if outcome == "on_time"]
        last = max(met, default=0.0)
        owed_since = sum(1 for deadline, _ in self.ticks if deadline > last)
        return last if owed_since > 4 * SESSIONS else math.inf

    @property
    def predicted_at(self) -> float:
        """When the pool will be full, by how it fills early on."""
        looks = [(end, tokens) for end, _, _, tokens in self.steps if end >= _LOOK_FROM * _FULL_S]
        (start, few), (now, many) = (
            looks[0],
            next(look for look in looks if look[0] >= _LOOK_TO * _FULL_S),
        )
        return now + wall_s(POOL * BLOCK - many, (many - few) / (now - start))

    def misses(self, start: float, stop: float) -> float:
        """Share of the ticks due in [start, stop) that were missed; NaN if none was due."""
        due = [outcome for deadline, outcome in self.ticks if start <= deadline < stop]
        return sum(outcome != "on_time" for outcome in due) / len(due) if due else math.nan

    def step_p99(self, start: float, stop: float) -> float:
        """Of engine steps that ended in [start, stop), seconds; NaN if there was none."""
        taken = [seconds for end, seconds, _, _ in self.steps if start <= end < stop]
        return percentile(taken, 0.99) if taken else math.nan


def settings(folder: Path, policy: PolicyName) -> VllmSettings:
    return VllmSettings(
        str(folder),
        "bfloat16",
        block_size=BLOCK,
        max_num_seqs=SESSIONS,
        total_blocks=POOL,
        prefix_caching=False,  # every call says the same here, and must not share it
        sliding_window=WINDOW if policy == "sliding" else None,
    )


async def live(folder: Path, policy: PolicyName) -> Run:
    """Let the calls live for a while; they push a frame each in every tick, whatever comes back.

    Raises:
        EngineUnavailable: the engine is missing.
    """
    clock = LoopClock()
    witness = Witness(clock)

    def build() -> Backend:
        return MeteredBackend(settings(folder, policy))

    model = SimDuplex(
        SimDuplexSettings(tick_ms=TICK_MS, prefill_per_tick=SPOKEN, decode_per_tick=DECODED)
    )
    engine = Engine(
        model,
        ThreadExecutor(build),
        clock,
        witness,
        EngineSettings(),
        KvPolicy(policy, WINDOW, SLACK),
    )
    await engine.start()
    listeners = [Listener() for _ in range(SESSIONS)]
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(engine.run())
        await asyncio.sleep(0)  # `run` opens the group that sessions live in
        origin = clock.now()
        await _push(engine, clock, listeners)
        engine.request_stop()
        await running
    await engine.stop()
    return Run(
        policy,
        sorted((tick.deadline - origin, tick.outcome) for tick in witness.ticks),
        [
            (end - origin, step.engine_s, step.kv.held_blocks, step.kv.resident_tokens)
            for end, step in witness.steps
        ],
        [failure for listener in listeners for failure in listener.failures],
    )


async def _push(engine: Engine, clock: LoopClock, listeners: Sequence[Listener]) -> None:
    """A frame of silence from every call in every tick, on an absolute grid."""
    frame = bytes(engine.model.spec.input_rate * TICK_MS // 1000 * 2)
    sessions = [
        engine.open(f"call-{number}", SessionSetup(), listener)
        for number, listener in enumerate(listeners)
    ]
    origin = clock.now()
    for number in range(round(_LIFE_S * 1000 / TICK_MS)):
        await clock.sleep_until(origin + number * TICK_MS / 1000)
        for session in sessions:
            session.push_audio(frame, clock.now())
    await clock.sleep_until(clock.now() + 2 * TICK_MS / 1000)
    for number in range(len(sessions)):
        engine.close(f"call-{number}")


def figures(runs: Sequence[Run]) -> list[Figure]:
    """The figures of the report."""
    hit = [run for run in runs if run.policy == "unbounded"]
    found = [
        Figure("runs of each policy", len(hit)),
        at_least("unbounded: runs that stalled", sum(_stalled(run) for run in hit), "", len(hit)),
    ]
    if all(_stalled(run) for run in hit):
        found += _wall_figures(hit)
    for policy in ("sliding", "anchored"):
        own = [run for run in runs if run.policy == policy]
        misses = max(run.misses(0, math.inf) for run in own)
        found += [
            at_most(f"{policy}: runs that stalled", sum(_stalled(run) for run in own), "", 0),
            Figure(f"{policy}: ticks missed, worst run", round(100 * misses, 2), "%"),
            Figure(f"{policy}: blocks held, at most", max(s[2] for run in own for s in run.steps)),
        ]
    return found


def _stalled(run: Run) -> bool:
    return math.isfinite(run.stalled_at)


def _wall_figures(runs: Sequence[Run]) -> list[Figure]:
    """Of the runs that met the wall; where runs differ, the worst."""
    errors = [abs(run.predicted_at - run.stalled_at) / run.stalled_at for run in runs]
    worst = runs[errors.index(max(errors))]
    before = max(run.step_p99(0, run.stalled_at) for run in runs)
    after = max(run.step_p99(run.stalled_at + _SETTLE_S, math.inf) for run in runs)
    ours = min(run.misses(run.stalled_at + _SETTLE_S, math.inf) for run in runs)
    healthy = max(run.misses(0, run.stalled_at) for run in runs)
    return [
        Figure("unbounded: wall predicted, worst run", round(worst.predicted_at, 2), "s"),
        Figure("unbounded: wall met, worst run", round(worst.stalled_at, 2), "s"),
        at_most("unbounded: prediction off by", round(max(errors), 4), "", MAX_PREDICTION_ERROR),
        Figure("before the wall: engine step p99", round(1e3 * before, 2), "ms"),
        at_most("behind the wall: engine step p99", round(1e3 * after, 2), "ms", TICK_MS),
        Figure("before the wall: ticks missed", round(100 * healthy, 2), "%"),
        at_least("behind the wall: ticks missed", round(100 * ours, 2), "%", 100.0),
    ]


def _publish_data(runs: Sequence[Run], csv_file: Path | None, plot: Path | None) -> None:
    """Per run and tick period: share of ticks missed, p99 of engine steps, blocks held."""
    rows: list[tuple[Any, ...]] = []
    curves: dict[str, dict[str, Any]] = {
        "ticks missed, %": {},
        "engine step p99, ms": {},
        "KV blocks held": {},
    }
    for number, run in enumerate(runs):
        table = [_period(run, k * TICK_MS / 1000) for k in range(1, int(_LIFE_S * 1000 / TICK_MS))]
        rows += [(number, run.policy, *line) for line in table]
        times, *series = zip(*table, strict=True)
        for panel, values in zip(curves.values(), series, strict=True):
            panel.setdefault(run.policy, (times, values))  # the first run of each
    names = ("run", "policy", "seconds", "missed_percent", "step_p99_ms", "held_blocks")
    write_csv(csv_file, names, rows)
    draw(plot, "seconds since the calls began", curves)


def _period(run: Run, start: float) -> tuple[float, float, float, int]:
    stop = start + TICK_MS / 1000
    held = [blocks for end, _, blocks, _ in run.steps if end < stop]
    return (
        round(start, 3),
        round(100 * run.misses(start, stop), 1),
        round(1e3 * run.step_p99(start, stop), 3),
        held[-1] if held else 0,
    )


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; 1 if it could not run, or with --check a target missed."""
    description = "Calls that outgrow the pool, and who notices."
    options = kv_parser("wall", description).parse_args(argv)
    report = Report("wall", argv)
    quiet()
    runs: list[Run] = []
    try:
        check_plot(options.plot)
        with TemporaryDirectory(prefix="metronome-bench-") as folder:
            prepare_environment(VllmSettings(folder))
            model = write_tiny_llama(Path(folder))
            for number in range(QUICK_RUNS if options.quick else RUNS):
                for policy in POLICIES:
                    run = asyncio.run(live(model, policy))
                    runs.append(run)
                    progress(f"run {number + 1}, {policy}: {_told(run)}")
    except (EngineUnavailable, NoPlot) as error:
        print(f"bench wall: {error}", file=sys.stderr)
        return 1
    report.add(*figures(runs))
    report.publish(options.json)
    _publish_data(runs, options.csv, options.plot)
    return 1 if options.check and report.missed else 0


def _told(run: Run) -> str:
    if _stalled(run):
        return f"stalled at {run.stalled_at:.2f} s, predicted {run.predicted_at:.2f} s"
    return f"never stalled, {100 * run.misses(0, math.inf):.1f} % of ticks missed"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
