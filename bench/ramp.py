"""`metronome bench ramp`: twice the calls that this machine holds, against the real server, sockets and engine.

A frame-locked model whose ticks a tiny Llama computes in vLLM on the CPU, with a window that is full within twenty
seconds. In one run: what fixed fleets a door holds that lets everybody in, at a glance; then the learning door, with
half of that and, over a ramp, with twice of it; then its fleet and fixed ones of half to 1.18 of it, in turns of some
seconds (`bench/ramp_turns.py`), because shared cores have no one speed. Those let in may miss hardly more than half of
them do in the same minutes, the others must be refused properly and at once, and the largest fixed fleet that is held
must be about as large as the one the door settled at.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.kv_output import NoPlot, check_plot, draw
from bench.ramp_callers import Callers
from bench.ramp_fleets import capacity, looked, miss_ratio
from bench.ramp_server import FILL_S, LAYERS, TICK_S, serving
from bench.ramp_trace import Trace, watch
from bench.ramp_turns import Turns, in_turns
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

    glance_s: float = 25.0  # at a fixed fleet before the ramp, once its windows are full
    rough: float = 0.2  # precision of that search
    ramp_s: float = 40.0  # for the offer to grow from half to twice
    settle_s: float = 240.0  # near the top it creeps
    turn_s: float = 10.0
    rounds: int = 24  # of turns


FULL = Effort()
QUICK = Effort(10.0, 0.4, 20.0, 30.0, 5.0, 4)
FIRST_TRY = 64  # sessions


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the learning door did."""

    turns: Turns
    full_miss: float
    refusals_ms: list[float]
    reasons: dict[str, int]
    unclean: list[str]
    trace: Trace


async def _ramp(port: int, fixed_port: int, held: int, effort: Effort) -> Outcome:
    crowd, trace = Callers(port, "/v1/realtime", TICK_S), Trace()
    watching = asyncio.ensure_future(watch(port, crowd, trace))
    half = max(1, held // 2)
    crowd.grow(half, half / 4)
    await asyncio.sleep(half / 4 + FILL_S)
    progress(f"offered {half}: {crowd.seen.inside} inside")
    ramping = await looked(port)
    crowd.grow(2 * held - half, effort.ramp_s)
    await asyncio.sleep(effort.ramp_s + effort.settle_s)
    progress(f"offered {2 * held}: {crowd.seen.inside} inside")
    turns = await in_turns(port, crowd, fixed_port, rounds=effort.rounds, turn_s=effort.turn_s)
    full_miss = miss_ratio(ramping, await looked(port))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await crowd.leave()
    seen = crowd.seen
    return Outcome(turns, full_miss, seen.refusals_ms, seen.reasons, seen.unclean, trace)


def _figures(glance: int, outcome: Outcome) -> list[Figure]:
    refusals = outcome.refusals_ms or [0.0]
    settled, held = outcome.turns.settled, outcome.turns.capacity
    half_miss = outcome.turns.half.miss
    error = abs(settled - held) / max(1.0, held)
    return [
        Figure("capacity at a glance, before", glance, "sessions"),
        Figure("settled at", round(settled, 1), "sessions"),
        Figure("largest fixed fleet held, in turns", round(held, 1), "sessions"),
        at_most("distance from it", round(error, 4), "x", MAX_CAPACITY_ERROR),
        Figure("missed by half the fleet, in turns", round(100 * half_miss, 4), "%"),
        Figure("missed by all from there to twice", round(100 * outcome.full_miss, 4), "%"),
        at_most(
            "more than by half",
            round(100 * (outcome.full_miss - half_miss), 4),
            "%",
            100 * MAX_EXTRA_MISS,
        ),
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


def _glance(port: int, effort: Effort) -> int:
    """What is held for a moment, roughly."""
    return capacity(port, effort.glance_s, start=FIRST_TRY, precision=effort.rough, stride=1.4)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; with --check 1 if a target was missed."""
    command = parser("ramp", "Twice the calls that this machine holds, on the real server.")
    command.add_argument("--plot", type=Path, metavar="FILE", help="also draw a PNG to FILE")
    command.add_argument(
        "--capacity", type=int, metavar="N", help="skip the first search: offer half and twice of N"
    )
    options = command.parse_args(argv)
    exit_on_sigterm()
    effort = QUICK if options.quick else FULL
    report = Report("ramp", argv)
    try:
        check_plot(options.plot)
        with TemporaryDirectory(prefix="metronome-ramp-") as name:
            folder = Path(name)
            model = write_tiny_llama(folder / "model", LAYERS)
            with serving(folder, model, "static") as fixed:
                glance = options.capacity or _glance(fixed.port, effort)
                with serving(folder, model, "aimd") as learning:
                    outcome = asyncio.run(_ramp(learning.port, fixed.port, glance, effort))
    except (ServerFailed, NoPlot) as error:
        print(f"bench ramp: {error}", file=sys.stderr)
        return 1
    report.add(*_figures(glance, outcome))
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
    whole["turns"] = asdict(outcome.turns)
    whole["unclean"] = outcome.unclean
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
