"""`metronome bench moshi`: how long a tick of the Moshi engine takes, by sessions in the batch.

With a checkpoint on a GPU this says how many calls the card carries: a tick must stay well under 80 ms, and because a
frame may have to wait for the step under way before its own, under 40 ms is what keeps every frame in time. The tiny
random model only shows that the cost of a tick hardly depends on how many rows it has.
"""

import statistics
import sys
from collections.abc import Sequence

import numpy as np

from bench.report import Figure, Report, at_most, parser
from engine.moshi_adapter.backend import MoshiBackend
from engine.moshi_adapter.settings import TINY_RANDOM, MoshiSettings
from engine.work import Append, TickBatch

LIMIT_MS = 40.0  # half a frame: one may wait for the step under way before its own
_WARM_UP = 5  # ticks not counted


def measure(backend: MoshiBackend, frame_bytes: int, sessions: int, ticks: int) -> list[float]:
    """Milliseconds of each of `ticks` steps in which `sessions` sessions hear noise. Leaves the house empty."""
    rng = np.random.default_rng(0)
    names = [f"s{i}" for i in range(sessions)]
    took = []
    for _ in range(ticks + _WARM_UP):
        sound = rng.integers(-3000, 3000, (sessions, frame_bytes // 2), np.int16)
        appends = tuple(
            Append(name, 0, (), 1, 0.0, pcm=row.tobytes())
            for name, row in zip(names, sound, strict=True)
        )
        took.append(1000 * backend.step(TickBatch(appends)).engine_s)
    backend.step(TickBatch(closes=tuple(names)))
    return took[_WARM_UP:]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each batch size; print the table, and write it to `--json` if asked to."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    command = parser("moshi", "How long a tick of the Moshi engine takes, by calls in the batch.")
    command.add_argument("--model", default=TINY_RANDOM, help="a folder, a hub id or tiny-random")
    command.add_argument("--device", default="cpu")
    command.add_argument("--dtype", default="bfloat16")
    command.add_argument("--sessions", type=int, nargs="+", default=[1, 4, 8])
    args = command.parse_args(arguments)
    report = Report("moshi", arguments)
    settings = MoshiSettings(
        args.model, slots=max(args.sessions), device=args.device, dtype=args.dtype
    )
    backend = MoshiBackend(settings)
    for sessions in args.sessions:
        took = measure(backend, 3840, sessions, 20 if args.quick else 100)
        tick = f"{sessions} sessions, tick"
        report.add(
            Figure(f"{tick} p50", round(statistics.median(took), 2), "ms"),
            at_most(f"{tick} p95", round(float(np.percentile(took, 95)), 2), "ms", LIMIT_MS),
        )
    backend.shutdown()
    report.publish(args.json)
    return 1 if args.check and report.missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
