"""`metronome bench turn`: how long a caller waits for an answer, alone and with three others.

The embedded stack through the real server, questions spoken in real time. The wait runs from the
server's decision that the turn is over to the first audio of the answer, by the client's clock. Alone,
the server has one core and the client another; four calls at once share all cores.
"""

import asyncio
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.audio import Utterance
from bench.conversation import call
from bench.report import Figure, Report, at_most, parser, progress
from bench.scoring import percentile
from bench.scrape import scrape
from bench.server_process import (
    ServerFailed,
    ServerProcess,
    Waiting,
    exit_on_sigterm,
    free_port,
    get,
    metronome,
)
from bench.turns import Turn
from bench.voices import questions
from engine.speech.ports import SpeechUnavailable
from server.config import default_config_path

QUESTIONS = (
    "Hello, how are you today?",
    "What is the capital of France?",
    "How many legs does a spider have?",
    "What color is the sky?",
    "How many months are in a year?",
    "What is two plus two?",
    "Tell me a short joke.",
    "What do bees make?",
)
OUT = Path("out/bench-turn")  # the server's log
CALLS = 4
MAX_MEDIAN_S = 1.0
MAX_STRETCH = 2.0  # of four calls over one
_STAGGER_S = 0.5  # between the beginnings of the calls


@dataclass(frozen=True, slots=True)
class Phase:
    """What one or several calls came to."""

    turns: list[Turn]
    ticks: dict[str, int]  # by outcome
    load: float  # of the machine, at the end

    @property
    def waits(self) -> list[float]:
        """Seconds from decision to first audio, of the turns that were answered."""
        return [wait for turn in self.turns if (wait := turn.decision_to_audio_s) is not None]

    @property
    def problems(self) -> list[str]:
        found = [problem for turn in self.turns for problem in turn.problems]
        silent = sum(1 for turn in self.turns if turn.decision_to_audio_s is None)
        return found + ([f"{silent} turns without an answer"] if silent else [])


async def _one_call(
    port: int, model: str, utterances: Sequence[Utterance], delay_s: float
) -> list[Turn]:
    await asyncio.sleep(delay_s)
    turns = []
    async with call(port, model) as conversation:
        for utterance in utterances:
            turn = await conversation.say(utterance)
            wait = turn.decision_to_audio_s
            shown = "no answer" if wait is None else f"{wait:.2f} s"
            progress(f"{shown}: {turn.heard!r} -> {turn.answer.strip()!r}")
            turns.append(turn)
    return turns


async def _calls(port: int, spoken: Sequence[Utterance], calls: int, turns: int) -> Phase:
    """`calls` calls of `turns` turns each, no two asking the same at the same time."""
    model = json.loads(get(port, "/v1/models")[1])["data"][0]["id"]
    before = await asyncio.to_thread(scrape, port)
    shift = max(1, len(spoken) // calls)
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(
                _one_call(
                    port,
                    model,
                    [spoken[(number * shift + k) % len(spoken)] for k in range(turns)],
                    number * _STAGGER_S,
                )
            )
            for number in range(calls)
        ]
    after = await asyncio.to_thread(scrape, port)
    held = [turn for task in running for turn in task.result()]
    return Phase(held, after.ticks_since(before), os.getloadavg()[0])


def _figures(alone: Phase, together: Phase) -> list[Figure]:
    one, four = statistics.median(alone.waits), statistics.median(together.waits)
    missed = {
        phase: sum(count for outcome, count in ticks.items() if outcome != "on_time")
        for phase, ticks in (("alone", alone.ticks), ("together", together.ticks))
    }
    return [
        Figure("alone: turns", len(alone.turns)),
        at_most("alone: decision to first audio, median", round(one, 3), "s", MAX_MEDIAN_S),
        Figure("alone: decision to first audio, p90", round(percentile(alone.waits, 0.9), 3), "s"),
        Figure("alone: speech to first audio, median", _speech_median(alone), "s"),
        Figure("alone: ticks on time", alone.ticks["on_time"]),
        Figure("alone: ticks missed", missed["alone"]),
        Figure("alone: load", round(alone.load, 2), "", "< 2"),
        Figure(f"{CALLS} calls: turns", len(together.turns)),
        Figure(f"{CALLS} calls: decision to first audio, median", round(four, 3), "s"),
        Figure(
            f"{CALLS} calls: decision to first audio, p90",
            round(percentile(together.waits, 0.9), 3),
            "s",
        ),
        at_most(f"{CALLS} calls: median against alone", round(four / one, 2), "x", MAX_STRETCH),
        Figure(f"{CALLS} calls: ticks on time", together.ticks["on_time"]),
        at_most(f"{CALLS} calls: ticks missed", missed["together"], "", 0),
        Figure(f"{CALLS} calls: load", round(together.load, 2)),
    ]


def _speech_median(phase: Phase) -> float:
    waits = [wait for turn in phase.turns if (wait := turn.speech_to_audio_s) is not None]
    return round(statistics.median(waits), 3)


def _measure(config: Path, folder: Path, *, quick: bool) -> tuple[Phase, Phase]:
    """One call on one core, then four on all.

    Raises:
        ServerFailed, SpeechUnavailable, OSError, ExceptionGroup: it could not be measured.
    """
    cores = sorted(os.sched_getaffinity(0))
    spoken = questions(QUESTIONS)  # before the server runs, so that it costs it nothing
    port = free_port()
    command = metronome("serve", "--config", str(config), "--port", str(port))
    with ServerProcess(command, port, folder / "server.log", core=cores[0]) as server:
        server.wait_ready(progress=Waiting(progress))
        progress("one call, server on one core")
        os.sched_setaffinity(0, {cores[-1]})
        try:
            alone = asyncio.run(_calls(port, spoken, 1, 5 if quick else 16))
        finally:
            os.sched_setaffinity(0, cores)
        progress(f"{CALLS} calls at once, server on all cores")
        server.spread(cores)
        together = asyncio.run(_calls(port, spoken, CALLS, 2 if quick else 6))
    return alone, together


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; 1 if a turn was not answered, or with --check a target missed."""
    command = parser("turn", "End of turn to first audio, one call and four at once.")
    command.add_argument("--config", type=Path, help="TOML file (default: the embedded stack)")
    options = command.parse_args(argv)
    exit_on_sigterm()
    report = Report("turn", argv)
    config = options.config or default_config_path()
    try:
        alone, together = _measure(config, OUT, quick=options.quick)
    except (ServerFailed, SpeechUnavailable, OSError) as error:
        print(f"bench turn: {error}", file=sys.stderr)
        return 1
    problems = alone.problems + together.problems
    if alone.waits and together.waits:
        report.add(*_figures(alone, together))
    report.publish(options.json)
    for problem in problems[:5]:
        print(f"problem: {problem}", file=sys.stderr)
    return 1 if problems or (options.check and report.missed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
