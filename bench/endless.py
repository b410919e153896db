"""`metronome bench endless`: one call through 200,000 tokens in a context of 4,096.

Nothing may grow with age: resident memory, the host's work per tick, the tick itself. Ten tenths of the call are
compared, and straight lines put through its memory and its host time. A tick is 25 tokens in and 5 out.
"""

import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.kv_backend import MeteredBackend, quiet
from bench.kv_driver import CallFailed, GrowingCalls, TickCost, random_header
from bench.kv_output import NoPlot, check_plot, draw, kv_parser, write_csv
from bench.kv_stats import Tenth, last_over_first, tenths, trend
from bench.report import Figure, Report, at_most, progress
from bench.tiny_model import write_tiny_llama
from engine.backend import EngineUnavailable
from engine.kv_policy import KvPolicy
from engine.vllm_adapter.environment import prepare_environment
from engine.vllm_adapter.settings import VllmSettings

AGE, QUICK_AGE = 200_000, 20_000  # tokens, at the end
MAX_MODEL_LEN = 4096  # tokens
SINK, BLOCK = 64, 32  # tokens
SPOKEN, DECODED = 25, 5  # tokens per tick
MAX_GROWTH = 1.10  # last tenth over first full one
MAX_TAIL_GROWTH = 1.25  # the same, of the 99th percentile
MAX_MEMORY_GROWTH = 1.01
_LAYERS = 2
_PER = 100_000  # tokens that slopes are given per
_PAGE = resource.getpagesize()


@dataclass(frozen=True, slots=True)
class Moment:
    """One tick of the call."""

    cost: TickCost
    host_s: float  # of its CPU time, outside the model's forward passes
    rss: int  # bytes, after it


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE


def live(folder: Path, policy: KvPolicy, age: int) -> list[Moment]:
    """The whole call, tick by tick.

    Raises:
        EngineUnavailable, CallFailed: the engine is missing, or the call ended.
    """
    model = write_tiny_llama(folder, _LAYERS)
    backend = MeteredBackend(
        VllmSettings(
            str(model),
            "bfloat16",
            block_size=BLOCK,
            max_model_len=MAX_MODEL_LEN,
            total_blocks=MAX_MODEL_LEN // BLOCK + 1,
        )
    )
    calls = GrowingCalls(backend, policy, [random_header(SINK, 0)])
    calls.open()
    moments = []
    ticks = (age - SINK) // (SPOKEN + DECODED)
    for number in range(ticks):
        model_s = backend.model_s
        cost = calls.tick(SPOKEN, DECODED)
        moments.append(Moment(cost, cost.cpu_s - (backend.model_s - model_s), resident_bytes()))
        if number % (ticks // 10) == 0:
            progress(f"age {cost.age:,} tokens: tick {1e3 * cost.wall_s:.1f} ms")
    backend.shutdown()
    return moments


def figures(moments: Sequence[Moment], policy: KvPolicy) -> list[Figure]:
    """The figures of the report."""
    full_age = SINK + policy.total_tokens
    ages = [moment.cost.age for moment in moments]
    ticks = tenths(ages, [1e3 * moment.cost.wall_s for moment in moments])
    hosts = tenths(ages, [1e3 * moment.host_s for moment in moments])
    memory = tenths(ages, [moment.rss / 2**20 for moment in moments])
    bound = policy.plateau_blocks(SINK, SPOKEN + DECODED, BLOCK)
    first = next(part for part in ticks if part.age_from >= full_age)
    tail = ticks[-1].p99 / first.p99
    return [
        Figure("tokens lived through", ages[-1], "", f"max_model_len {MAX_MODEL_LEN:,}"),
        Figure("errors", 0),
        at_most("blocks held, at most", max(m.cost.held_blocks for m in moments), "", bound),
        Figure("tick p50, last tenth", round(ticks[-1].p50, 2), "ms"),
        _flat("tick p50, last over first", ticks, full_age, MAX_GROWTH),
        Figure("tick p99, last tenth", round(ticks[-1].p99, 2), "ms"),
        at_most("tick p99, last over first", round(tail, 3), "x", MAX_TAIL_GROWTH),
        Figure("host CPU per tick p50, last tenth", round(hosts[-1].p50, 2), "ms"),
        _flat("host CPU per tick p50, last over first", hosts, full_age, MAX_GROWTH),
        _slope("host CPU per tick, slope", moments, [1e6 * m.host_s for m in moments], "us"),
        Figure("resident memory, last tenth", round(memory[-1].p50, 1), "MiB"),
        _flat("resident memory, last over first", memory, full_age, MAX_MEMORY_GROWTH),
        _slope("resident memory, slope", moments, [m.rss / 2**10 for m in moments], "KiB"),
    ]


def _flat(name: str, parts: Sequence[Tenth], full_age: int, limit: float) -> Figure:
    return at_most(name, round(last_over_first(parts, full_age), 4), "x", limit)


def _slope(name: str, moments: Sequence[Moment], values: Sequence[float], unit: str) -> Figure:
    """The trend since the first tenth, with its standard error."""
    since = len(moments) // 10
    line = trend([m.cost.age for m in moments[since:]], values[since:])
    shown = f"{line.slope * _PER:+.1f} ± {line.error * _PER:.1f}"
    return Figure(name, shown, f"{unit} per {_PER:,} tokens")


def _publish_data(moments: Sequence[Moment], csv_file: Path | None, plot: Path | None) -> None:
    ages = [moment.cost.age for moment in moments]
    walls = [1e3 * moment.cost.wall_s for moment in moments]
    hosts = [1e3 * moment.host_s for moment in moments]
    memory = [moment.rss / 2**20 for moment in moments]
    blocks = [moment.cost.held_blocks for moment in moments]
    rows = zip(
        ages,
        *([round(v, 3) for v in series] for series in (walls, hosts, memory)),
        blocks,
        strict=True,
    )
    write_csv(csv_file, ("age_tokens", "wall_ms", "host_cpu_ms", "rss_mib", "held_blocks"), rows)
    times = {}
    for name, series in (("tick", walls), ("host CPU", hosts)):
        parts = tenths(ages, series)
        middles = [(part.age_from + part.age_to) / 2 for part in parts]
        times[f"{name}, p50"] = (middles, [part.p50 for part in parts])
        times[f"{name}, p99"] = (middles, [part.p99 for part in parts])
    panels = {
        "ms": times,
        "MiB": {"resident memory": (ages, memory)},
        "KV blocks": {"held": (ages, blocks)},
    }
    draw(plot, "age of the call, tokens", panels)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; 1 if it could not run, or with --check a target missed."""
    options = kv_parser("endless", "One call far past max_model_len.").parse_args(argv)
    report = Report("endless", argv)
    policy = KvPolicy()
    quiet()
    try:
        check_plot(options.plot)
        with TemporaryDirectory(prefix="metronome-bench-") as folder:
            prepare_environment(VllmSettings(folder))
            moments = live(Path(folder), policy, QUICK_AGE if options.quick else AGE)
    except (EngineUnavailable, CallFailed, NoPlot) as error:
        print(f"bench endless: {error}", file=sys.stderr)
        return 1
    report.add(*figures(moments, policy))
    report.publish(options.json)
    _publish_data(moments, options.csv, options.plot)
    return 1 if options.check and report.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
