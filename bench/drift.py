"""`metronome bench drift`: what a tick costs as calls grow old, under each of the four KV policies.

Four engines with the same tiny model in one process, eight calls each, fed in turns, tick by tick, so that whatever
else the machine does meets all four alike. A tick is 25 tokens in and 5 out, as fast as they go.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.kv_backend import MeteredBackend, quiet
from bench.kv_driver import CallFailed, GrowingCalls, TickCost, random_header
from bench.kv_output import Curve, NoPlot, check_plot, draw, kv_parser, write_csv
from bench.kv_stats import last_over_first, tenths
from bench.report import Figure, Report, at_least, at_most, progress
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


def grow(folder: Path, age: int) -> dict[PolicyName, list[TickCost]]:
    """Let all calls live to `age` tokens; the cost of every tick by policy.

    Raises:
        EngineUnavailable, CallFailed: an engine is missing or broke.
    """
    model = write_tiny_llama(folder, _LAYERS)
    headers = [random_header(SINK, number) for number in range(SESSIONS)]
    backends: dict[PolicyName, MeteredBackend] = {}
    calls: dict[PolicyName, GrowingCalls] = {}
    for policy in POLICIES:
        progress(f"an engine for {policy}")
        backends[policy] = MeteredBackend(settings(model, policy, age))
        calls[policy] = GrowingCalls(backends[policy], KvPolicy(policy, WINDOW, SLACK), headers)
        calls[policy].open(_STAGGER)
    costs: dict[PolicyName, list[TickCost]] = {policy: [] for policy in POLICIES}
    ticks = (age - SINK) // (SPOKEN + DECODED)
    for number in range(ticks):
        for policy in POLICIES:
            costs[policy].append(calls[policy].tick(SPOKEN, DECODED))
        if number % (ticks // 10) == 0:
            progress(_told(costs))
    for backend in backends.values():
        backend.shutdown()
    return costs


def _told(costs: dict[PolicyName, list[TickCost]]) -> str:
    latest = {policy: series[-1] for policy, series in costs.items()}
    shown = ", ".join(f"{policy} {1e3 * tick.wall_s:.0f} ms" for policy, tick in latest.items())
    return f"age {latest['unbounded'].age:,} tokens: {shown}"


def figures(costs: dict[PolicyName, list[TickCost]]) -> list[Figure]:
    """The figures of the report."""
    full_age = SINK + WINDOW + SLACK
    found: list[Figure] = []
    medians: dict[PolicyName, float] = {}  # of the last tenth, ms
    growths: dict[PolicyName, float] = {}
    for policy, series in costs.items():
        ages = [tick.age for tick in series]
        parts = tenths(ages, [1e3 * tick.wall_s for tick in series])
        cpu = tenths(ages, [tick.cpu_s for tick in series])
        first = next((part for part in parts if part.age_from >= full_age), parts[-1])
        medians[policy], growths[policy] = parts[-1].p50, last_over_first(parts, full_age)
        for label, part in (("first full tenth", first), ("last tenth", parts[-1])):
            found.append(Figure(f"{policy}: tick p50, {label}", round(part.p50, 2), "ms"))
            found.append(Figure(f"{policy}: tick p99, {label}", round(part.p99, 2), "ms"))
        name, growth = f"{policy}_p50_last_over_first", round(growths[policy], 3)
        bounded = policy == "anchored"
        found += [
            at_most(name, growth, "x", MAX_GROWTH) if bounded else Figure(name, growth, "x"),
            Figure(
                f"{policy}: the same in CPU time", round(last_over_first(cpu, full_age), 3), "x"
            ),
            Figure(f"{policy}: blocks per session, at the end", series[-1].held_blocks / SESSIONS),
        ]
    # Ticks taken in turns: these two hold however busy the machine was.
    stretch = medians["unbounded"] / medians["anchored"]
    against = growths["anchored"] / growths["sliding"]
    found += [
        Figure("unbounded over anchored: tick p50, last tenth", round(stretch, 2), "x"),
        at_most("anchored_p50_last_over_first against sliding", round(against, 3), "x", MAX_GROWTH),
    ]
    return found + _anchored_figures(costs["anchored"])


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


def _publish_data(
    costs: dict[PolicyName, list[TickCost]], csv_file: Path | None, plot: Path | None
) -> None:
    names = ("policy", "age_tokens", "wall_ms", "cpu_ms", "engine_ms", "shift_ms", "held_blocks")
    rows = [
        (
            policy,
            tick.age,
            *(round(1e3 * s, 3) for s in (tick.wall_s, tick.cpu_s, tick.engine_s, tick.shift_s)),
            tick.held_blocks,
        )
        for policy, series in costs.items()
        for tick in series
    ]
    write_csv(csv_file, names, rows)
    medians: dict[str, Curve] = {}
    tails: dict[str, Curve] = {}
    blocks: dict[str, Curve] = {}
    for policy, series in costs.items():
        ages = [tick.age for tick in series]
        parts = tenths(ages, [1e3 * tick.wall_s for tick in series])
        middles = [(part.age_from + part.age_to) / 2 for part in parts]
        medians[policy] = (middles, [part.p50 for part in parts])
        tails[policy] = (middles, [part.p99 for part in parts])
        blocks[policy] = (ages, [tick.held_blocks / SESSIONS for tick in series])
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
