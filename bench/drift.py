"""`metronome bench drift`: what a tick costs as calls grow old, under each of the four KV policies.

Eight calls on an engine for each policy, all with the same tiny model in one process, fed in turns, tick by tick. At
the end a second generation joins on engines of its own, so that its first ticks with full windows and the last ticks of
the old calls alternate: whatever else the machine does meets all alike. A tick is 25 tokens in and 5 out.
"""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.kv_backend import MeteredBackend, quiet
from bench.kv_driver import CallFailed, GrowingCalls, TickCost, random_header
from bench.kv_output import Curve, NoPlot, check_plot, draw, kv_parser, write_csv
from bench.kv_stats import tenths
from bench.report import Figure, Report, at_least, at_most, progress
from bench.scoring import percentile
from bench.tiny_model import write_tiny_llama
from engine.backend import EngineUnavailable
from engine.kv_policy import KvPolicy, PolicyName
from engine.vllm_adapter.environment import prepare_environment
from engine.vllm_adapter.settings import VllmSettings

SESSIONS = 8
SPOKEN, DECODED = 25, 5  # tokens per tick
SINK, WINDOW, SLACK, BLOCK = 64, 1024, 256, 32  # tokens
AGE, QUICK_AGE = 20_000, 4_000  # tokens, at the end
POLICIES: tuple[PolicyName, ...] = ("unbounded", "sliding", "anchored", "recycle")
MAX_GROWTH = 1.10  # of the median tick, last tenth over first full one
MAX_SHIFT_SHARE = 0.05
_LAYERS = 4
_MAX_CONTEXT = 32_768
_STAGGER = 32  # tokens between the ages of two calls, so that they are cut back in different ticks


def settings(folder: Path, policy: PolicyName, age: int) -> VllmSettings:
    """An engine whose pool holds all calls at their full age, so that no policy meets the wall here."""
    per_session = age // BLOCK + SESSIONS + 2
    return VllmSettings(
        str(folder),
        "bfloat16",
        block_size=BLOCK,
        max_model_len=_MAX_CONTEXT,
        max_num_seqs=SESSIONS,
        total_blocks=max(SESSIONS * per_session, _MAX_CONTEXT // BLOCK + 1),
        sliding_window=WINDOW if policy == "sliding" else None,
    )


@dataclass(frozen=True, slots=True)
class Ticks:
    """Every tick of the calls under one policy."""

    old: list[TickCost]
    young: list[TickCost]  # of the second generation, which ends with the first

    @property
    def last(self) -> list[TickCost]:
        """The last tenth of the old calls' life."""
        return self.old[len(self.old) * 9 // 10 :]

    @property
    def first(self) -> list[TickCost]:
        """The first tenth with full windows, lived by the young calls at the same time."""
        return self.young[-len(self.last) :]

    @property
    def growth(self) -> float:
        """Median tick, last tenth over first full one."""
        return _median_ms(self.last) / _median_ms(self.first)


def _median_ms(ticks: Sequence[TickCost]) -> float:
    return 1e3 * statistics.median(tick.wall_s for tick in ticks)


def young_life(ticks: int) -> int:
    """Ticks from the beginning to the end of the first tenth with full windows; `ticks` are a whole life."""
    full = (WINDOW + SLACK) // (SPOKEN + DECODED)  # ticks
    tenth = next(part for part in range(1, 10) if part * ticks // 10 >= full)
    return (tenth + 1) * ticks // 10


class Generation:
    """The calls of one policy on an engine of their own."""

    def __init__(self, model: Path, policy: PolicyName, age: int) -> None:
        headers = [random_header(SINK, number) for number in range(SESSIONS)]
        self.costs: list[TickCost] = []
        self._backend = MeteredBackend(settings(model, policy, age))
        self._calls = GrowingCalls(self._backend, KvPolicy(policy, WINDOW, SLACK), headers)
        self._calls.open(_STAGGER)

    def tick(self) -> None:
        self.costs.append(self._calls.tick(SPOKEN, DECODED))

    def shutdown(self) -> None:
        self._backend.shutdown()


def grow(folder: Path, age: int) -> dict[PolicyName, Ticks]:
    """Let all calls live to `age` tokens, and a second generation until its windows have been full for a tenth.

    Raises:
        EngineUnavailable, CallFailed: an engine is missing or broke.
    """
    model = write_tiny_llama(folder, _LAYERS)
    progress(f"two engines each for {', '.join(POLICIES)}")
    old = {policy: Generation(model, policy, age) for policy in POLICIES}
    young = {policy: Generation(model, policy, age) for policy in POLICIES}
    ticks = (age - SINK) // (SPOKEN + DECODED)
    for number in range(ticks):
        for policy in POLICIES:
            old[policy].tick()
            if number >= ticks - young_life(ticks):
                young[policy].tick()
        if number % (ticks // 10) == 0:
            progress(_told(old))
    for generation in (*old.values(), *young.values()):
        generation.shutdown()
    return {policy: Ticks(old[policy].costs, young[policy].costs) for policy in POLICIES}


def _told(old: dict[PolicyName, Generation]) -> str:
    latest = {policy: generation.costs[-1] for policy, generation in old.items()}
    shown = ", ".join(f"{policy} {1e3 * tick.wall_s:.0f} ms" for policy, tick in latest.items())
    return f"age {latest['unbounded'].age:,} tokens: {shown}"


def figures(costs: dict[PolicyName, Ticks]) -> list[Figure]:
    """The figures of the report."""
    found: list[Figure] = []
    for policy, ticks in costs.items():
        for label, part in (("first full tenth", ticks.first), ("last tenth", ticks.last)):
            p99 = 1e3 * percentile([tick.wall_s for tick in part], 0.99)
            found.append(Figure(f"{policy}: tick p50, {label}", round(_median_ms(part), 2), "ms"))
            found.append(Figure(f"{policy}: tick p99, {label}", round(p99, 2), "ms"))
        name, growth = f"{policy}_p50_last_over_first", round(ticks.growth, 3)
        bounded = policy == "anchored"
        found += [
            at_most(name, growth, "x", MAX_GROWTH) if bounded else Figure(name, growth, "x"),
            Figure(
                f"{policy}: blocks per session, at the end", ticks.old[-1].held_blocks / SESSIONS
            ),
        ]
    stretch = _median_ms(costs["unbounded"].last) / _median_ms(costs["anchored"].last)
    found.append(Figure("unbounded over anchored: tick p50, last tenth", round(stretch, 2), "x"))
    return found + _anchored_figures(costs["anchored"].old)


def _anchored_figures(series: Sequence[TickCost]) -> list[Figure]:
    bound = KvPolicy("anchored", WINDOW, SLACK).plateau_blocks(SINK, SPOKEN + DECODED, BLOCK)
    most = max(tick.held_blocks for tick in series) / SESSIONS
    share = sum(tick.shift_s for tick in series) / sum(tick.engine_s for tick in series)
    cuts = sum(1 for tick in series if tick.dropped)
    return [
        at_most("anchored: blocks per session, at most", most, "", bound),
        at_least("anchored: ticks with a drop", cuts, "", 1),
        at_most("shift_share_of_tick", round(share, 4), "", MAX_SHIFT_SHARE),
    ]


def _publish_data(costs: dict[PolicyName, Ticks], csv_file: Path | None, plot: Path | None) -> None:
    names = (
        "policy",
        "generation",
        "age_tokens",
        "wall_ms",
        "cpu_ms",
        "engine_ms",
        "shift_ms",
        "held_blocks",
    )
    rows = [
        (
            policy,
            generation,
            tick.age,
            *(round(1e3 * s, 3) for s in (tick.wall_s, tick.cpu_s, tick.engine_s, tick.shift_s)),
            tick.held_blocks,
        )
        for policy, ticks in costs.items()
        for generation, series in (("old", ticks.old), ("young", ticks.young))
        for tick in series
    ]
    write_csv(csv_file, names, rows)
    medians: dict[str, Curve] = {}
    tails: dict[str, Curve] = {}
    blocks: dict[str, Curve] = {}
    for policy, ticks in costs.items():
        ages = [tick.age for tick in ticks.old]
        parts = tenths(ages, [1e3 * tick.wall_s for tick in ticks.old])
        middles = [(part.age_from + part.age_to) / 2 for part in parts]
        medians[policy] = (middles, [part.p50 for part in parts])
        tails[policy] = (middles, [part.p99 for part in parts])
        blocks[policy] = (ages, [tick.held_blocks / SESSIONS for tick in ticks.old])
    panels = {"tick p50, ms": medians, "tick p99, ms": tails, "KV blocks per call": blocks}
    draw(plot, "age of the calls, tokens", panels, log_y=True)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; 1 if it could not run, or with --check a target missed."""
    options = kv_parser("drift", "The cost of a tick by age, for all KV policies.").parse_args(argv)
    report = Report("drift", argv)
    quiet()
    try:
        check_plot(options.plot)
        with TemporaryDirectory(prefix="metronome-bench-") as folder:
            prepare_environment(VllmSettings(folder))
            costs = grow(Path(folder), QUICK_AGE if options.quick else AGE)
    except (EngineUnavailable, CallFailed, NoPlot) as error:
        print(f"bench drift: {error}", file=sys.stderr)
        return 1
    report.add(*figures(costs))
    report.publish(options.json)
    _publish_data(costs, options.csv, options.plot)
    return 1 if options.check and report.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
