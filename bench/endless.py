"""`metronome bench endless`: one call through 200,000 tokens in a context of 4,096.

Nothing may grow with age: resident memory, the host's work per tick, the tick itself. Beside it, on an engine of its
own, a young call takes its ticks in turns with the old one and begins anew every 4,000 tokens: whatever else the
machine does meets both alike. Compared are ticks with both windows full. A tick is 25 tokens in and 5 out.
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
from bench.kv_output import Curve, NoPlot, check_plot, draw, kv_parser, write_csv
from bench.kv_stats import last_over_first, tenths, trend
from bench.report import Figure, Report, at_most, progress
from bench.scoring import percentile
from bench.tiny_model import write_tiny_llama
from engine.backend import EngineUnavailable
from engine.kv_policy import KvPolicy
from engine.vllm_adapter.environment import prepare_environment
from engine.vllm_adapter.settings import VllmSettings

AGE, QUICK_AGE = 200_000, 20_000  # tokens, at the end
YOUNG_AGE = 4_000  # tokens, at which the young call begins anew
MAX_MODEL_LEN = 4096  # tokens
SINK, BLOCK = 64, 32  # tokens
SPOKEN, DECODED = 25, 5  # tokens per tick
MAX_RATIO = 1.10  # of the old call's median over the young one's
MAX_TAIL_RATIO = 1.25  # the same, of the 99th percentile
MAX_MEMORY_GROWTH = 1.01  # last tenth over first full one
_LAYERS = 2
_PER = 100_000  # tokens that slopes are given per
_PAGE = resource.getpagesize()

Column = NDArray[np.float64]  # one element per tick


@dataclass(frozen=True, slots=True)
class Times:
    """What the ticks of one call took, ms."""

    wall: Column
    cpu: Column  # of the engine's thread
    host: Column  # of that, outside the model's forward passes

    @classmethod
    def of(cls, ticks: int) -> "Times":
        return cls(*(np.full(ticks, -1.0) for _ in range(3)))

    def where(self, ticks: NDArray[np.bool_]) -> "Times":
        return Times(self.wall[ticks], self.cpu[ticks], self.host[ticks])


@dataclass(frozen=True, slots=True)
class Life:
    """The whole call, allocated before it begins, so that the benchmark itself does not grow."""

    ages: Column  # tokens
    old: Times
    young: Times
    young_ages: Column  # tokens
    rss_mib: Column  # resident memory of the process, after the tick
    blocks: Column  # held by the old call, after the tick

    @classmethod
    def of(cls, ticks: int) -> "Life":
        ages, young_ages, rss, blocks = (np.full(ticks, -1.0) for _ in range(4))
        return cls(ages, Times.of(ticks), Times.of(ticks), young_ages, rss, blocks)


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE


class Caller:
    """A call on an engine of its own."""

    def __init__(self, model: Path, policy: KvPolicy, times: Times) -> None:
        self.age = 0  # tokens
        self.held_blocks = 0
        self._backend = MeteredBackend(
            VllmSettings(
                str(model),
                "bfloat16",
                block_size=BLOCK,
                max_model_len=MAX_MODEL_LEN,
                total_blocks=MAX_MODEL_LEN // BLOCK + 1,
            )
        )
        self._policy, self._times = policy, times
        self._calls = self._begin()

    def _begin(self) -> GrowingCalls:
        calls = GrowingCalls(self._backend, self._policy, [random_header(SINK, 0)])
        calls.open()
        return calls

    def begin_anew(self) -> None:
        self._calls.close()
        self._calls = self._begin()

    def tick(self, number: int) -> None:
        """One tick; what it took is entered under `number`."""
        model_s = self._backend.model_cpu_s
        cost = self._calls.tick(SPOKEN, DECODED)
        self.age, self.held_blocks = cost.age, cost.held_blocks
        self._times.wall[number] = 1e3 * cost.wall_s
        self._times.cpu[number] = 1e3 * cost.cpu_s
        self._times.host[number] = 1e3 * (cost.cpu_s - (self._backend.model_cpu_s - model_s))

    def shutdown(self) -> None:
        self._backend.shutdown()


def live(folder: Path, policy: KvPolicy, age: int) -> Life:
    """The whole call, tick by tick, and young ones beside it.

    Raises:
        EngineUnavailable, CallFailed: the engine is missing, or a call ended.
    """
    model = write_tiny_llama(folder, _LAYERS)
    ticks = (age - SINK) // (SPOKEN + DECODED)
    life = Life.of(ticks)
    old, young = Caller(model, policy, life.old), Caller(model, policy, life.young)
    for number in range(ticks):
        for caller in (old, young) if number % 2 else (young, old):
            caller.tick(number)
        life.ages[number], life.blocks[number] = old.age, old.held_blocks
        life.young_ages[number] = young.age
        life.rss_mib[number] = resident_bytes() / 2**20
        if young.age >= YOUNG_AGE:
            young.begin_anew()
        if number % (ticks // 10) == 0:
            progress(f"age {old.age:,} tokens: tick {life.old.wall[number]:.1f} ms")
    old.shutdown()
    young.shutdown()
    return life


def figures(life: Life, policy: KvPolicy) -> list[Figure]:
    """The figures of the report."""
    full_age = SINK + policy.total_tokens
    ages = [int(age) for age in life.ages]
    comparable = (life.ages >= full_age) & (life.young_ages >= full_age)
    last = comparable.copy()
    last[: len(last) * 9 // 10] = False
    old, young = life.old.where(last), life.young.where(last)
    memory = tenths(ages, life.rss_mib.tolist())
    bound = policy.plateau_blocks(SINK, SPOKEN + DECODED, BLOCK)
    growth = round(last_over_first(memory, full_age), 4)
    extra = 1e3 * (life.old.host - life.young.host)
    return [
        Figure("tokens lived through", ages[-1], "", f"max_model_len {MAX_MODEL_LEN:,}"),
        Figure("errors", 0),
        at_most("blocks held, at most", int(life.blocks.max()), "", bound),
        Figure("tick p50, last tenth", _p(old.wall, 0.5), "ms"),
        _ratio("tick p50", old.wall, young.wall, 0.5, MAX_RATIO),
        Figure("tick p99, last tenth", _p(old.wall, 0.99), "ms"),
        Figure("tick p99, over the young call's", _p(old.wall, 0.99) / _p(young.wall, 0.99), "x"),
        _ratio("tick p99 in CPU time", old.cpu, young.cpu, 0.99, MAX_TAIL_RATIO),
        Figure("host time per tick p50, last tenth", _p(old.host, 0.5), "ms of CPU"),
        _ratio("host time per tick p50", old.host, young.host, 0.5, MAX_RATIO),
        _slope(
            "host time per tick less the young call's, slope",
            life.ages[comparable],
            extra[comparable],
            "us",
        ),
        Figure("resident memory, last tenth", round(memory[-1].p50, 1), "MiB"),
        at_most("resident memory, last over first full tenth", growth, "x", MAX_MEMORY_GROWTH),
        _slope("resident memory, slope of the second half", *_second_half(life), "KiB"),
    ]


def _second_half(life: Life) -> tuple[Column, Column]:
    """Ages, and resident memory in KiB, once the allocator has settled."""
    half = len(life.ages) // 2
    return life.ages[half:], 2**10 * life.rss_mib[half:]


def _p(values: Column, share: float) -> float:
    return round(percentile(values.tolist(), share), 3)


def _ratio(name: str, old: Column, young: Column, share: float, limit: float) -> Figure:
    ratio = percentile(old.tolist(), share) / percentile(young.tolist(), share)
    return at_most(f"{name}, over the young call's", round(ratio, 3), "x", limit)


def _slope(name: str, ages: Column, values: Column, unit: str) -> Figure:
    """The trend with its standard error."""
    line = trend(ages.tolist(), values.tolist())
    shown = f"{line.slope * _PER:+.1f} ± {line.error * _PER:.1f}"
    return Figure(name, shown, f"{unit} per {_PER:,} tokens")


def _publish_data(life: Life, csv_file: Path | None, plot: Path | None) -> None:
    columns = {
        "age_tokens": life.ages,
        "wall_ms": life.old.wall,
        "cpu_ms": life.old.cpu,
        "host_cpu_ms": life.old.host,
        "young_age_tokens": life.young_ages,
        "young_wall_ms": life.young.wall,
        "young_cpu_ms": life.young.cpu,
        "young_host_cpu_ms": life.young.host,
        "rss_mib": life.rss_mib,
        "held_blocks": life.blocks,
    }
    rows = np.round(np.stack(list(columns.values()), axis=1), 3).tolist()
    write_csv(csv_file, list(columns), rows)
    ages = [int(age) for age in life.ages]
    curves = {
        "tick, old call": life.old.wall,
        "tick, young call": life.young.wall,
        "host CPU, old call": life.old.host,
        "host CPU, young call": life.young.host,
    }
    times = {name: _medians(ages, values.tolist()) for name, values in curves.items()}
    memory: dict[str, Curve] = {"resident memory": (ages, life.rss_mib.tolist())}
    blocks: dict[str, Curve] = {"held": (ages, life.blocks.tolist())}
    panels = {"p50, ms": times, "MiB": memory, "KV blocks": blocks}
    draw(plot, "age of the call, tokens", panels)


def _medians(ages: Sequence[int], values: Sequence[float]) -> Curve:
    parts = tenths(ages, values)
    return [(part.age_from + part.age_to) / 2 for part in parts], [part.p50 for part in parts]


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
