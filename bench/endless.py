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

import numpy as np
from numpy.typing import NDArray

from bench.kv_backend import MeteredBackend, quiet
from bench.kv_driver import CallFailed, GrowingCalls, random_header
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

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Life:
    """The whole call, one element per tick; allocated before it begins, so that the benchmark itself does not grow."""

    ages: Column  # tokens
    wall_ms: Column
    cpu_ms: Column  # of the engine's thread: the same on a busy machine
    host_ms: Column  # of those, outside the model's forward passes
    rss_mib: Column  # resident memory of the process, after the tick
    blocks: Column  # held, after the tick

    @classmethod
    def of(cls, ticks: int) -> "Life":
        return cls(*(np.full(ticks, -1.0) for _ in range(6)))


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE


def live(folder: Path, policy: KvPolicy, age: int) -> Life:
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
    ticks = (age - SINK) // (SPOKEN + DECODED)
    life = Life.of(ticks)
    for number in range(ticks):
        model_s = backend.model_cpu_s
        cost = calls.tick(SPOKEN, DECODED)
        life.ages[number] = cost.age
        life.wall_ms[number] = 1e3 * cost.wall_s
        life.cpu_ms[number] = 1e3 * cost.cpu_s
        life.host_ms[number] = 1e3 * (cost.cpu_s - (backend.model_cpu_s - model_s))
        life.rss_mib[number] = resident_bytes() / 2**20
        life.blocks[number] = cost.held_blocks
        if number % (ticks // 10) == 0:
            progress(f"age {cost.age:,} tokens: tick {1e3 * cost.wall_s:.1f} ms")
    backend.shutdown()
    return life


def figures(life: Life, policy: KvPolicy) -> list[Figure]:
    """The figures of the report."""
    full_age = SINK + policy.total_tokens
    ages = [int(age) for age in life.ages]
    walls, cpus, hosts, memory = (
        tenths(ages, column.tolist())
        for column in (life.wall_ms, life.cpu_ms, life.host_ms, life.rss_mib)
    )
    bound = policy.plateau_blocks(SINK, SPOKEN + DECODED, BLOCK)
    return [
        Figure("tokens lived through", ages[-1], "", f"max_model_len {MAX_MODEL_LEN:,}"),
        Figure("errors", 0),
        at_most("blocks held, at most", int(life.blocks.max()), "", bound),
        Figure("tick p50, last tenth", round(walls[-1].p50, 2), "ms"),
        _flat("tick p50, last over first", walls, full_age, MAX_GROWTH),
        Figure("tick p99, last tenth", round(walls[-1].p99, 2), "ms"),
        Figure("tick p99, last over first", _tail(walls, full_age), "x"),
        at_most(
            "tick p99 in CPU time, last over first", _tail(cpus, full_age), "x", MAX_TAIL_GROWTH
        ),
        Figure("host time per tick p50, last tenth", round(hosts[-1].p50, 2), "ms of CPU"),
        _flat("host time per tick p50, last over first", hosts, full_age, MAX_GROWTH),
        _slope("host time per tick, slope", life, 1e3 * life.host_ms, "us"),
        Figure("resident memory, last tenth", round(memory[-1].p50, 1), "MiB"),
        _flat("resident memory, last over first", memory, full_age, MAX_MEMORY_GROWTH),
        _slope("resident memory, slope", life, 2**10 * life.rss_mib, "KiB"),
    ]


def _flat(name: str, parts: Sequence[Tenth], full_age: int, limit: float) -> Figure:
    return at_most(name, round(last_over_first(parts, full_age), 4), "x", limit)


def _tail(parts: Sequence[Tenth], full_age: int) -> float:
    """99th percentile of the last tenth over that of the first full one."""
    first = next(part for part in parts if part.age_from >= full_age)
    return round(parts[-1].p99 / first.p99, 3)


def _slope(name: str, life: Life, values: Column, unit: str) -> Figure:
    """The trend since the first tenth, with its standard error."""
    since = len(life.ages) // 10
    line = trend(life.ages[since:].tolist(), values[since:].tolist())
    shown = f"{line.slope * _PER:+.1f} ± {line.error * _PER:.1f}"
    return Figure(name, shown, f"{unit} per {_PER:,} tokens")


def _publish_data(life: Life, csv_file: Path | None, plot: Path | None) -> None:
    names = ("age_tokens", "wall_ms", "cpu_ms", "host_cpu_ms", "rss_mib", "held_blocks")
    columns = (life.ages, life.wall_ms, life.cpu_ms, life.host_ms, life.rss_mib, life.blocks)
    write_csv(csv_file, names, (np.round(row, 3).tolist() for row in np.stack(columns, axis=1)))
    ages = [int(age) for age in life.ages]
    times = {}
    for name, series in (("tick", life.wall_ms), ("host CPU", life.host_ms)):
        parts = tenths(ages, series.tolist())
        middles = [(part.age_from + part.age_to) / 2 for part in parts]
        times[f"{name}, p50"] = (middles, [part.p50 for part in parts])
        times[f"{name}, p99"] = (middles, [part.p99 for part in parts])
    memory = {"resident memory": (ages, life.rss_mib.tolist())}
    blocks = {"held": (ages, life.blocks.tolist())}
    draw(plot, "age of the call, tokens", {"ms": times, "MiB": memory, "KV blocks": blocks})


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
            life = live(Path(folder), policy, QUICK_AGE if options.quick else AGE)
    except (EngineUnavailable, CallFailed, NoPlot) as error:
        print(f"bench endless: {error}", file=sys.stderr)
        return 1
    report.add(*figures(life, policy))
    report.publish(options.json)
    _publish_data(life, options.csv, options.plot)
    return 1 if options.check and report.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
