"""`python -m bench.moshi`: how long a tick of the Moshi engine takes, by sessions in the batch.

With a checkpoint on a GPU this says how many calls the card carries: a tick must stay well under 80 ms, and because a
frame may have to wait for the step under way before its own, under 40 ms is what keeps every frame in time. The tiny
random model only shows that the cost of a tick hardly depends on how many rows it has.
"""

import argparse
import json
import os
import platform
import statistics
from collections.abc import Sequence

import numpy as np

from engine.moshi_adapter.backend import MoshiBackend
from engine.moshi_adapter.settings import TINY_RANDOM, MoshiSettings
from engine.work import Append, TickBatch

_BUDGET_MS = 80.0
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
    """Print the table, and write it to `--json` if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=TINY_RANDOM, help="a folder, a hub id or tiny-random")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--ticks", type=int, default=50)
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args(argv)
    slots = max(args.sessions)
    settings = MoshiSettings(args.model, slots=slots, device=args.device, dtype=args.dtype)
    backend = MoshiBackend(settings)
    rows = []
    print(f"{args.model} on {args.device}, {platform.node()}, {os.cpu_count()} cores")
    print(f"{'sessions':>8} {'p50 ms':>8} {'p95 ms':>8} {'of 80 ms':>9}")
    for sessions in args.sessions:
        took = measure(backend, 3840, sessions, args.ticks)
        p50, p95 = statistics.median(took), float(np.percentile(took, 95))
        rows.append({"sessions": sessions, "p50_ms": p50, "p95_ms": p95})
        print(f"{sessions:>8} {p50:>8.1f} {p95:>8.1f} {p95 / _BUDGET_MS:>9.0%}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"model": args.model, "device": args.device, "ticks": rows}, file, indent=1)
    backend.shutdown()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
