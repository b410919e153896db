"""`metronome bench frontend`: what one audio frame costs the front end, and how many calls a core holds.

The real server with the free simulated engine (configs/sim-duplex.toml, one delta per frame, keys
required) beside a bare echo of the same bytes (bench/echo_app.py), in turns, in one run: on a busy
machine only the ratio of the two means anything. Server and echo share one core and are loaded one
at a time; the load generator has another core to itself, and its own CPU is printed.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import Any

from bench.loadgen import Result
from bench.report import Figure, Report, at_least, at_most, parser, progress
from bench.search import most_held
from bench.server_process import (
    ServerFailed,
    ServerProcess,
    exit_on_sigterm,
    free_port,
    metronome,
)
from server.config import default_config_path

OUT = Path("out/bench-frontend")  # configurations and logs of the servers
KEY = "bench-frontend-key"
CONNECTIONS = 64
MAX_RATIO = 1.5  # of the echo's CPU
WANTED = {20: 250, 80: 1000}  # sessions that a core should hold, by frame length in ms
ON_TIME = 0.99
_CEILING = 4000  # sessions; the shipped configuration's door is a little above


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure."""

    repetitions: int
    closed_s: float
    paced_s: float
    precision: float  # of the number of sessions, as a share


FULL = Effort(repetitions=5, closed_s=2.0, paced_s=3.0, precision=0.1)
QUICK = Effort(repetitions=3, closed_s=1.0, paced_s=1.5, precision=0.5)


@dataclass(slots=True)
class Peer:
    """One of the two servers compared."""

    name: str
    process: ServerProcess
    results: list[Result] = field(default_factory=list)  # closed loop, in order

    @property
    def frame_us(self) -> float:
        """Median CPU per frame, microseconds."""
        return statistics.median(result.server_us for result in self.results)


def generate(peer: Peer, frame_ms: int, sessions: int, mode: str, seconds: float) -> Result:
    """One run of the load generator against `peer`, on the last core."""
    command = [
        *(sys.executable, "-m", "bench.loadgen", "--core", str(_cores()[-1])),
        *("--port", str(peer.process.port), "--server-pid", str(peer.process.pid)),
        *("--key", KEY, "--mode", mode, "--sessions", str(sessions)),
        *("--frame-ms", str(frame_ms), "--seconds", str(seconds)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        return Result(problems=[f"the load generator failed: {done.stderr.strip()[-300:]}"])
    return Result(**json.loads(done.stdout))


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def as_toml(table: Mapping[str, Any], prefix: str = "") -> str:
    """`table` as TOML; values are tables, strings, numbers, booleans and lists of them."""
    own = [f"{k} = {json.dumps(v)}" for k, v in table.items() if not isinstance(v, dict)]
    inner = [
        f"\n[{prefix}{k}]\n{as_toml(v, f'{prefix}{k}.')}"
        for k, v in table.items()
        if isinstance(v, dict)
    ]
    return "\n".join(own + inner)


def _configuration(folder: Path, frame_ms: int) -> Path:
    """The shipped configuration with ticks of `frame_ms` and with a key at the door."""
    table = tomllib.loads(default_config_path("sim-duplex").read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    keys = folder.resolve() / "keys"
    keys.write_text(f"{KEY}\n", encoding="utf-8")
    table.setdefault("server", {})["api_keys_file"] = str(keys)
    table.setdefault("model", {})["tick_ms"] = frame_ms
    path = folder / f"frames-{frame_ms}.toml"
    path.write_text(as_toml(table) + "\n", encoding="utf-8")
    return path


@contextmanager
def _peers(folder: Path, frame_ms: int) -> Iterator[tuple[Peer, Peer]]:
    """The real server and the echo, both ready, on the first core."""
    core = _cores()[0]
    server_port, echo_port = free_port(), free_port()
    config = str(_configuration(folder, frame_ms))
    serve = metronome("serve", "--config", config, "--port", str(server_port))
    echo = [sys.executable, "-m", "bench.echo_app", "--port", str(echo_port)]
    with (
        ServerProcess(serve, server_port, folder / "server.log", core=core) as server,
        ServerProcess(echo, echo_port, folder / "echo.log", core=core) as bare,
    ):
        server.wait_ready(timeout_s=60)
        bare.wait_ready(timeout_s=60)
        yield Peer("server", server), Peer("echo", bare)


def _compare(server: Peer, echo: Peer, frame_ms: int, effort: Effort) -> list[Figure]:
    """CPU per frame of both, measured in turns."""
    for repetition in range(effort.repetitions):
        pair = (server, echo) if repetition % 2 == 0 else (echo, server)
        for peer in pair:
            result = generate(peer, frame_ms, CONNECTIONS, "closed", effort.closed_s)
            peer.results.append(result)
            progress(f"{frame_ms} ms, {peer.name}: {result.server_us:.1f} us of CPU per frame")
    ratios = [
        # Where the echo answered nothing there is nothing to compare with, and no target is met.
        ours.server_us / theirs.server_us if isfinite(theirs.server_us) else inf
        for ours, theirs in zip(server.results, echo.results, strict=True)
    ]
    busiest = max(r.own_cpu_s / max(r.wall_s, 1e-9) for r in server.results + echo.results)
    label = f"{frame_ms} ms frame"
    return [
        Figure(f"{label}: server CPU", round(server.frame_us, 2), "us"),
        Figure(f"{label}: echo CPU", round(echo.frame_us, 2), "us"),
        at_most(f"{label}: ratio", round(statistics.median(ratios), 3), "x echo", MAX_RATIO),
        Figure(f"{label}: ratio, least", round(min(ratios), 3), "x echo"),
        Figure(f"{label}: ratio, greatest", round(max(ratios), 3), "x echo"),
        Figure(f"{label}: generator at most", round(busiest, 2), "cores"),
    ]


def _hold(server: Peer, frame_ms: int, effort: Effort) -> list[Figure]:
    """How many sessions at real-time pace the server answers on time."""
    runs: dict[int, Result] = {}

    def holds(sessions: int) -> bool:
        result = generate(server, frame_ms, sessions, "paced", effort.paced_s)
        good = result.on_time_share >= ON_TIME and not result.problems
        if good:
            runs[sessions] = result
        progress(
            f"{frame_ms} ms, {sessions} sessions: {result.on_time_share:.2%} on time, "
            f"p99 {result.p99_ms:.1f} ms {'; '.join(result.problems[:1])}"
        )
        return good

    wanted = WANTED[frame_ms]
    most = most_held(holds, wanted, ceiling=_CEILING, precision=effort.precision)
    best = runs.get(most, Result())
    label = f"{frame_ms} ms paced"
    wall_s = max(best.wall_s, 1e-9)
    return [
        at_least(f"{label}: sessions held", most, f"at {1000 / frame_ms:g}/s", wanted),
        Figure(f"{label}: replies on time", round(best.on_time_share * 100, 2), "%"),
        Figure(f"{label}: reply p99", round(best.p99_ms, 2), "ms"),
        Figure(f"{label}: server", round(best.server_cpu_s / wall_s, 2), "cores"),
        Figure(f"{label}: generator", round(best.own_cpu_s / wall_s, 2), "cores"),
        Figure(f"{label}: generator lag", round(best.lag_ms, 2), "ms"),
    ]


def _allow_many_sockets() -> None:
    """Raise this process's limit of open files, which its children inherit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; 1 if a frame was lost, or with --check a target missed."""
    command = parser("frontend", "CPU per audio frame, beside a bare echo; sessions per core.")
    options = command.parse_args(argv)
    exit_on_sigterm()
    _allow_many_sockets()
    effort = QUICK if options.quick else FULL
    report = Report("frontend", argv)
    problems: list[str] = []
    try:
        for frame_ms in WANTED:
            with _peers(OUT, frame_ms) as (server, echo):
                report.add(*_compare(server, echo, frame_ms, effort))
                for result in server.results + echo.results:
                    problems += result.problems
                report.add(*_hold(server, frame_ms, effort))
    except ServerFailed as error:
        print(f"bench frontend: {error}", file=sys.stderr)
        return 1
    report.add(Figure("frames lost or refused", len(problems), "", "0", not problems))
    report.publish(options.json)
    for problem in problems[:5]:
        print(f"problem: {problem}", file=sys.stderr)
    return 1 if problems or (options.check and report.missed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
