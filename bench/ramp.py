"""`metronome bench ramp`: twice the calls that this machine holds, against the real server, sockets and engine.

A frame-locked model whose ticks a tiny Llama computes in vLLM on the CPU, with a window that is full within twenty
seconds. In one run: the capacity by fixed fleets behind a door that lets everybody in; then the learning door, first
with half of that, which gives the ratio of missed ticks that this machine has anyway, then with twice of it. Those let
in must keep that ratio, the others must be refused properly and at once, and the fleet it settles at must be the
capacity, nearly.
"""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.frontend import as_toml
from bench.kv_output import NoPlot, check_plot, draw
from bench.ramp_callers import Callers
from bench.ramp_trace import Trace, watch
from bench.report import Figure, Report, at_most, parser, progress
from bench.scoring import percentile
from bench.scrape import Scrape, scrape
from bench.search import most_held
from bench.server_process import (
    ServerFailed,
    ServerProcess,
    exit_on_sigterm,
    free_port,
    metronome,
)
from bench.tiny_model import write_tiny_llama

TICK_S = 0.2
PREFILL, DECODE = 10, 5  # tokens per tick: 75 a second
WINDOW, SLACK, HEADER = 768, 128, 32  # tokens: full after 12 s
FILL_S = 14.0
LAYERS = 4
CEILING = 400
FIXED_MISS = 0.001  # of a fixed fleet's ticks at most, for it to count as held
MAX_EXTRA_MISS = 0.001
MAX_REFUSAL_MS = 100.0
MAX_CAPACITY_ERROR = 0.15


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look, seconds."""

    fixed_s: float = 25.0  # at a fixed fleet, once its windows are full
    half_s: float = 40.0  # at half the capacity
    ramp_s: float = 40.0  # for the offer to grow from half to twice
    settle_s: float = 150.0  # near the top it creeps
    hold_s: float = 20.0  # while the result is read
    precision: float = 0.07


FULL = Effort()
QUICK = Effort(10.0, 10.0, 20.0, 30.0, 10.0, 0.15)


def configuration(folder: Path, model: Path, kind: str) -> Path:
    """A deployment on the tiny model behind a door of this kind."""
    table = {
        "model": {
            "id": "sim-duplex",
            "llm": str(model),
            "name": "tiny",
            "vad": "none",  # what is ramped up is the engine
            "stt": "none",
            "tick_ms": round(TICK_S * 1000),
            "prefill_per_tick": PREFILL,
            "decode_per_tick": DECODE,
        },
        "engine": {
            "max_sessions": CEILING,
            "inbox_s": 2.0,
            "vllm": {"max_model_len": 1024, "kv_cache_gib": 1.0, "max_num_batched_tokens": 2048},
            "kv": {"window_tokens": WINDOW, "slack_tokens": SLACK, "header_tokens": HEADER},
        },
        "admission": {"kind": kind, "calibrate_s": 20.0, "remember": False},
        "log": {"level": "warning"},
    }
    path = folder / f"{kind}.toml"
    path.write_text(as_toml(table) + "\n", encoding="utf-8")
    return path


@contextmanager
def _server(folder: Path, model: Path, kind: str) -> Iterator[ServerProcess]:
    port = free_port()
    config = str(configuration(folder, model, kind))
    command = metronome("serve", "--config", config, "--port", str(port))
    with ServerProcess(command, port, folder / f"{kind}.log") as process:
        process.wait_ready(progress=lambda waited_s, note: None)
        yield process


def miss_ratio(earlier: Scrape, later: Scrape) -> float:
    """Missed ÷ owed between two looks."""
    ticks = later.ticks_since(earlier)
    owed = sum(ticks.values())
    return 1 - ticks["on_time"] / owed if owed else 0.0


async def _looked(port: int) -> Scrape:
    return await asyncio.to_thread(scrape, port)


async def _fixed(port: int, sessions: int, effort: Effort) -> float:
    """Missed ÷ owed of a fleet of this size at full age."""
    crowd = Callers(port, "/v1/realtime", TICK_S)
    crowd.grow(sessions, min(6.0, sessions / 10))
    await asyncio.sleep(min(6.0, sessions / 10) + FILL_S)
    before = await _looked(port)
    await asyncio.sleep(effort.fixed_s)
    missed = miss_ratio(before, await _looked(port))
    lost = crowd.seen.inside < sessions
    await crowd.leave()
    await asyncio.sleep(1.0)
    return 1.0 if lost else missed


def capacity(port: int, effort: Effort, start: int) -> int:
    """The largest fixed fleet that is held. A first one is for the engine to meet every size of batch."""
    asyncio.run(_fixed(port, start, effort))

    def holds(sessions: int) -> bool:
        missed = asyncio.run(_fixed(port, sessions, effort))
        progress(f"{sessions} sessions, all let in: {missed:.2%} of their ticks missed")
        return missed <= FIXED_MISS

    return most_held(holds, start, ceiling=CEILING, precision=effort.precision)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the learning door did."""

    half_miss: float
    full_miss: float
    settled: float  # sessions, mean over the hold
    refusals_ms: list[float]
    reasons: dict[str, int]
    unclean: list[str]
    trace: Trace


async def _ramp(port: int, held: int, effort: Effort) -> Outcome:
    crowd, trace = Callers(port, "/v1/realtime", TICK_S), Trace()
    watching = asyncio.ensure_future(watch(port, crowd, trace))
    half = max(1, held // 2)
    crowd.grow(half, half / 4)
    await asyncio.sleep(half / 4 + FILL_S)
    progress(f"offered {half}: {crowd.seen.inside} inside")
    before = await _looked(port)
    await asyncio.sleep(effort.half_s)
    half_miss = miss_ratio(before, await _looked(port))
    progress(f"half load: {half_miss:.3%} missed")
    crowd.grow(2 * held - half, effort.ramp_s)
    ramping = await _looked(port)
    await asyncio.sleep(effort.ramp_s + effort.settle_s)
    seen_from = len(trace.t_s)
    await asyncio.sleep(effort.hold_s)
    full_miss = miss_ratio(ramping, await _looked(port))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    held_at = trace.admitted[seen_from:] or [0.0]
    await crowd.leave()
    return Outcome(
        half_miss,
        full_miss,
        sum(held_at) / len(held_at),
        crowd.seen.refusals_ms,
        crowd.seen.reasons,
        crowd.seen.unclean,
        trace,
    )


def _figures(held: int, outcome: Outcome) -> list[Figure]:
    refusals = outcome.refusals_ms or [0.0]
    error = abs(outcome.settled - held) / max(1, held)
    extra = outcome.full_miss - outcome.half_miss
    return [
        Figure("capacity by fixed fleets", held, "sessions"),
        Figure("settled at", round(outcome.settled, 1), "sessions"),
        at_most("distance from the capacity", round(error, 3), "x", MAX_CAPACITY_ERROR),
        Figure("missed at half load", round(100 * outcome.half_miss, 4), "%"),
        Figure("missed from there to twice", round(100 * outcome.full_miss, 4), "%"),
        at_most("more missed than at half load", round(100 * extra, 4), "%", 100 * MAX_EXTRA_MISS),
        Figure("refused", len(outcome.refusals_ms)),
        at_most(
            "refusal, slowest of a hundred",
            round(percentile(refusals, 0.99), 1),
            "ms",
            MAX_REFUSAL_MS,
        ),
        Figure("refusal, median", round(percentile(refusals, 0.5), 1), "ms"),
        Figure("unclean ends", len(outcome.unclean), "", "0", not outcome.unclean),
    ]


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; with --check 1 if a target was missed."""
    command = parser("ramp", "Twice the calls that this machine holds, on the real server.")
    command.add_argument("--plot", type=Path, metavar="FILE", help="also draw a PNG to FILE")
    command.add_argument("--capacity", type=int, metavar="N", help="skip the search: it is N")
    options = command.parse_args(argv)
    exit_on_sigterm()
    effort = QUICK if options.quick else FULL
    report = Report("ramp", argv)
    try:
        check_plot(options.plot)
        with TemporaryDirectory(prefix="metronome-ramp-") as name:
            folder = Path(name)
            model = write_tiny_llama(folder / "model", LAYERS)
            held = options.capacity
            if held is None:
                with _server(folder, model, "static") as server:
                    held = capacity(server.port, effort, 64)
            with _server(folder, model, "aimd") as server:
                outcome = asyncio.run(_ramp(server.port, held, effort))
    except (ServerFailed, NoPlot) as error:
        print(f"bench ramp: {error}", file=sys.stderr)
        return 1
    report.add(*_figures(held, outcome))
    report.publish(None)
    _write(options.json, report, outcome)
    draw(options.plot, "seconds", outcome.trace.panels())
    for problem in outcome.unclean[:5]:
        print(f"problem: {problem}", file=sys.stderr)
    return 1 if options.check and report.missed else 0


def _write(path: Path | None, report: Report, outcome: Outcome) -> None:
    if path is None:
        return
    whole: dict[str, Any] = report.as_json()
    whole["trace"] = outcome.trace.as_json()
    whole["reasons"] = outcome.reasons
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
