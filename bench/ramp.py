"""`metronome bench ramp`: twice the calls that this machine holds, against the real server, sockets and engine.

A frame-locked model whose ticks a tiny Llama computes in vLLM on the CPU, with a window that is full within twenty
seconds. In one run: what fixed fleets a door holds that lets everybody in, at a glance; then the learning door, first
with half of that, which gives the ratio of missed ticks that this machine has anyway, then with twice of it; then the
capacity, by fixed fleets in the minutes that follow, because shared cores have no one speed. Those let in must keep
that ratio, the others must be refused properly and at once, and the fleet it settles at must be the capacity, nearly.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.kv_output import NoPlot, check_plot, draw
from bench.ramp_callers import Callers
from bench.ramp_fleets import capacity, looked, miss_ratio
from bench.ramp_server import FILL_S, LAYERS, TICK_S, serving
from bench.ramp_trace import Trace, watch
from bench.report import Figure, Report, at_most, parser, progress
from bench.scoring import percentile
from bench.server_process import ServerFailed, exit_on_sigterm
from bench.tiny_model import write_tiny_llama

MAX_EXTRA_MISS = 0.001
MAX_REFUSAL_MS = 100.0
MAX_CAPACITY_ERROR = 0.15


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look, seconds."""

    glance_s: float = 25.0  # at a fixed fleet before the ramp, once its windows are full, …
    look_s: float = 180.0  # … and after it, nearly as long as the door is looked at
    # At half the capacity: as long as the door is judged, or a pause that this machine makes once in minutes could only
    # ever count against the door.
    half_s: float = 300.0
    ramp_s: float = 40.0  # for the offer to grow from half to twice
    settle_s: float = 240.0  # near the top it creeps
    hold_s: float = 20.0  # while the result is read
    rough: float = 0.2  # precision of the first search …
    precision: float = 0.07  # … and of the last


FULL = Effort()
QUICK = Effort(10.0, 30.0, 10.0, 20.0, 30.0, 10.0, 0.4, 0.15)
FIRST_TRY = 64  # sessions


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
    before = await looked(port)
    await asyncio.sleep(effort.half_s)
    half_miss = miss_ratio(before, await looked(port))
    progress(f"half load: {half_miss:.3%} missed")
    crowd.grow(2 * held - half, effort.ramp_s)
    ramping = await looked(port)
    await asyncio.sleep(effort.ramp_s + effort.settle_s)
    seen_from = len(trace.t_s)
    await asyncio.sleep(effort.hold_s)
    full_miss = miss_ratio(ramping, await looked(port))
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


def _figures(glance: int, held: int, outcome: Outcome) -> list[Figure]:
    refusals = outcome.refusals_ms or [0.0]
    error = abs(outcome.settled - held) / max(1, held)
    extra = outcome.full_miss - outcome.half_miss
    return [
        Figure("capacity at a glance, before", glance, "sessions"),
        Figure("settled at", round(outcome.settled, 1), "sessions"),
        Figure("capacity by fixed fleets, after", held, "sessions"),
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


def _glance(folder: Path, model: Path, effort: Effort) -> int:
    """What is held for a moment, roughly."""
    with serving(folder, model, "static") as server:
        return capacity(
            server.port, effort.glance_s, start=FIRST_TRY, precision=effort.rough, stride=1.4
        )


def _capacity(folder: Path, model: Path, effort: Effort, start: int) -> int:
    """What is held for longer."""
    with serving(folder, model, "static") as server:
        return capacity(
            server.port, effort.look_s, start=start, precision=effort.precision, stride=1.1
        )


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; with --check 1 if a target was missed."""
    command = parser("ramp", "Twice the calls that this machine holds, on the real server.")
    command.add_argument("--plot", type=Path, metavar="FILE", help="also draw a PNG to FILE")
    command.add_argument("--capacity", type=int, metavar="N", help="skip both searches: it is N")
    options = command.parse_args(argv)
    exit_on_sigterm()
    effort = QUICK if options.quick else FULL
    report = Report("ramp", argv)
    try:
        check_plot(options.plot)
        with TemporaryDirectory(prefix="metronome-ramp-") as name:
            folder = Path(name)
            model = write_tiny_llama(folder / "model", LAYERS)
            glance = options.capacity or _glance(folder, model, effort)
            with serving(folder, model, "aimd") as server:
                outcome = asyncio.run(_ramp(server.port, glance, effort))
            _write(options.json, report, outcome)  # the search takes long, and may fail
            start = max(1, round(outcome.settled))
            held = options.capacity or _capacity(folder, model, effort, start)
    except (ServerFailed, NoPlot) as error:
        print(f"bench ramp: {error}", file=sys.stderr)
        return 1
    report.add(*_figures(glance, held, outcome))
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
    whole["door"] = {
        "settled": outcome.settled,
        "half_miss": outcome.half_miss,
        "full_miss": outcome.full_miss,
        "refused": len(outcome.refusals_ms),
        "unclean": outcome.unclean,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
