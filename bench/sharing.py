"""`metronome bench sharing`: sixteen calls with the same instructions hold about one copy of them.

The prefix cache finds the blocks of the header by their content, and a drop leaves them alone: measured right
after the calls came in, and again when every window has moved.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.kv_backend import MeteredBackend, quiet
from bench.kv_driver import CallFailed, GrowingCalls, random_header
from bench.report import Figure, Report, at_most, parser, progress
from bench.tiny_model import write_tiny_llama
from engine.backend import EngineUnavailable
from engine.kv_policy import KvPolicy
from engine.vllm_adapter.environment import prepare_environment
from engine.vllm_adapter.settings import VllmSettings

SESSIONS = 16
INSTRUCTIONS = 1000  # tokens
WINDOW, SLACK, BLOCK = 256, 128, 32  # tokens
SPOKEN, DECODED = 25, 5  # tokens per tick
CUTS, QUICK_CUTS = 20, 3  # times each window is cut back
MAX_COPIES = 1.5


@dataclass(frozen=True, slots=True)
class Holdings:
    """Blocks held by all calls together."""

    shared: int  # with one header for all
    apart: int  # with a header of its own for each

    @property
    def copies(self) -> float:
        """Copies of the header in `shared`; without sharing there is one for each call."""
        return SESSIONS - (self.apart - self.shared) / (INSTRUCTIONS // BLOCK)


def hold(folder: Path, cuts: int) -> tuple[Holdings, Holdings]:
    """What the calls hold when they have come in, and after every window was cut back `cuts` times.

    Raises:
        EngineUnavailable, CallFailed: the engine is missing or broke.
    """
    model = write_tiny_llama(folder)
    one = random_header(INSTRUCTIONS, 0)
    own = [random_header(INSTRUCTIONS, number) for number in range(SESSIONS)]
    (young, old), (young_apart, old_apart) = (
        _blocks(model, headers, cuts) for headers in ([one] * SESSIONS, own)
    )
    return Holdings(young, young_apart), Holdings(old, old_apart)


def _blocks(model: Path, headers: Sequence[Sequence[int]], cuts: int) -> tuple[int, int]:
    policy = KvPolicy("anchored", WINDOW, SLACK)
    plateau = policy.plateau_blocks(INSTRUCTIONS, SPOKEN + DECODED, BLOCK)
    backend = MeteredBackend(
        VllmSettings(
            str(model),
            "bfloat16",
            block_size=BLOCK,
            max_num_seqs=SESSIONS,
            total_blocks=SESSIONS * plateau,
        )
    )
    calls = GrowingCalls(backend, policy, headers)
    calls.open()
    young = backend.snapshot().held_blocks
    ticks = (WINDOW + SLACK * (cuts + 1)) // (SPOKEN + DECODED) + 1
    dropped = sum(calls.tick(SPOKEN, DECODED).dropped for _ in range(ticks))
    old = backend.snapshot().held_blocks
    progress(f"{young} blocks, and {old} after {dropped:,} tokens were dropped")
    backend.shutdown()
    return young, old


def figures(young: Holdings, old: Holdings) -> list[Figure]:
    """The figures of the report."""
    return [
        Figure("sessions", SESSIONS),
        Figure("instructions", INSTRUCTIONS, "tokens"),
        Figure("just opened: blocks, own instructions each", young.apart),
        Figure("just opened: blocks, the same instructions", young.shared),
        at_most("just opened: copies of the instructions", round(young.copies, 2), "", MAX_COPIES),
        Figure("windows moved: blocks, own instructions each", old.apart),
        Figure("windows moved: blocks, the same instructions", old.shared),
        at_most("windows moved: copies of the instructions", round(old.copies, 2), "", MAX_COPIES),
    ]


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; 1 if it could not run, or with --check a target missed."""
    options = parser("sharing", "Blocks held by calls with the same instructions.").parse_args(argv)
    report = Report("sharing", argv)
    quiet()
    try:
        with TemporaryDirectory(prefix="metronome-bench-") as folder:
            prepare_environment(VllmSettings(folder))
            found = hold(Path(folder), QUICK_CUTS if options.quick else CUTS)
    except (EngineUnavailable, CallFailed) as error:
        print(f"bench sharing: {error}", file=sys.stderr)
        return 1
    report.add(*figures(*found))
    report.publish(options.json)
    return 1 if options.check and report.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
