"""`metronome demo`: the whole machine on real input, judged.

Starts the real server, talks to it as any client would, and listens to what it answers: recordings
of people first, then questions in the embedded voice. Fails if a person was misheard, or if an
answer is missing, inaudible, unintelligible or late.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.audio import Utterance, clip, write_wav
from bench.report import commit, machine, versions
from bench.scoring import word_error_rate
from bench.scrape import Scrape, scrape
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
from bench.verdict import faults, loudness
from bench.voices import listen_again, questions, transcriber
from engine.speech.ports import SpeechUnavailable, Transcriber
from server.config import default_config_path

RECORDINGS = ("librivox-0870", "goforward")
QUESTIONS = ("What is the capital of France?", "How many legs does a spider have?")
_DOT_S = 1.0  # nothing is silent for longer than two seconds


@dataclass(frozen=True, slots=True)
class Judged:
    """A turn, the server's numbers around it, and what is wrong with it."""

    turn: Turn
    ticks: dict[str, int]  # by outcome
    kv_held: int  # blocks, at the end of the turn
    reheard: str
    faults: list[str]


def _tell(text: str) -> None:
    print(text, flush=True)


def prepare() -> tuple[Transcriber, list[Utterance]]:
    """A transcriber to listen again with, and everything that will be said.

    Raises:
        SpeechUnavailable: weights or packages are missing; the message says what to do.
    """
    return transcriber(), [*map(clip, RECORDINGS), *questions(QUESTIONS)]


async def converse(
    port: int,
    utterances: Sequence[Utterance],
    judge: Callable[[Turn, Scrape, Scrape], Judged],
) -> list[Judged]:
    """Say all `utterances` in one call; each turn is judged, and told, as soon as it is over."""
    from bench.conversation import (
        call,
    )  # the client takes a second to import: the server is up first

    model = json.loads(get(port, "/v1/models")[1])["data"][0]["id"]
    judged = []
    async with call(port, model) as conversation:
        before = await asyncio.to_thread(scrape, port)
        for utterance in utterances:
            who = "a person" if utterance.human else "embedded voice"
            _tell(f"\n  says     {utterance.words!r} ({who}, {utterance.duration_s:.1f} s)")
            turn = await _with_dots(conversation.say(utterance))
            after = await asyncio.to_thread(scrape, port)
            judged.append(await asyncio.to_thread(judge, turn, before, after))
            _tell(_told(judged[-1]))
            before = after
    return judged


async def _with_dots(job: Coroutine[Any, Any, Turn]) -> Turn:
    """Run `job`; a dot a second shows that it goes on."""
    async with asyncio.TaskGroup() as tasks:
        dots = tasks.create_task(_dots())
        turn = await job
        dots.cancel()
    return turn


async def _dots() -> None:
    print("  ", end="", flush=True)
    try:
        while True:
            await asyncio.sleep(_DOT_S)
            print(".", end="", flush=True)
    finally:
        print(flush=True)


def _told(judged: Judged) -> str:
    """One turn, for people."""
    turn, ticks = judged.turn, judged.ticks
    answered = f"{turn.answer.strip()!r} ({turn.answer_s:.1f} s, {loudness(turn):.0f} dBFS)"
    lines = [
        f"heard    {turn.heard!r}",
        f"answered {answered}",
        f"again    {judged.reheard!r}",
        f"first audio {_seconds(turn.speech_to_audio_s)} after the end of speech, "
        f"{_seconds(turn.decision_to_audio_s)} after the end of the turn",
        f"ticks {ticks['on_time']} on time, {ticks['late']} late, {ticks['empty']} empty; "
        f"{judged.kv_held} KV blocks held",
        *(f"FAULT: {fault}" for fault in judged.faults),
    ]
    return "\n".join(f"  {line}" for line in lines)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"


def _summary(judged: Sequence[Judged], started_s: float) -> dict[str, Any]:
    """Everything as one JSON object."""
    return {
        "name": "demo",
        "passed": not any(entry.faults for entry in judged),
        "seconds": round(time.monotonic() - started_s, 1),
        "turns": [_turn_json(entry) for entry in judged],
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
    }


def _turn_json(judged: Judged) -> dict[str, Any]:
    turn = judged.turn
    return {
        "name": turn.said.name,
        "human": turn.said.human,
        "said": turn.said.words,
        "heard": turn.heard,
        "heard_wer": round(word_error_rate(turn.said.words, turn.heard), 3),
        "answer": turn.answer,
        "answer_s": round(turn.answer_s, 2),
        "answer_dbfs": round(loudness(turn), 1) if turn.pcm else None,
        "answer_heard_again": judged.reheard,
        "speech_to_audio_s": turn.speech_to_audio_s,
        "decision_to_audio_s": turn.decision_to_audio_s,
        "ticks": judged.ticks,
        "kv_blocks_held": judged.kv_held,
        "faults": judged.faults,
    }


def _judge_with(transcriber: Transcriber, out: Path) -> Callable[[Turn, Scrape, Scrape], Judged]:
    """A judge that also stores each answer as `out/<name>.wav`."""

    def judge(turn: Turn, before: Scrape, after: Scrape) -> Judged:
        pcm = bytes(turn.pcm)
        write_wav(out / f"{turn.said.name}-answer.wav", pcm)
        reheard = listen_again(transcriber, pcm) if pcm else ""
        ticks = after.ticks_since(before)
        return Judged(turn, ticks, after.kv_held, reheard, faults(turn, reheard))

    return judge


def _hold(config: Path, out: Path) -> list[Judged]:
    """Start the server, hold the conversation, stop the server.

    Raises:
        ServerFailed, SpeechUnavailable, OSError, ExceptionGroup: it could not be held.
    """
    port, log = free_port(), out / "server.log"
    command = metronome("serve", "--config", str(config), "--port", str(port))
    _tell(f"starting the server on http://127.0.0.1:{port} (log: {log})")
    with ServerProcess(command, port, log) as server, ThreadPoolExecutor(1) as helper:
        prepared: Future[tuple[Transcriber, list[Utterance]]] = helper.submit(prepare)
        server.wait_ready(progress=Waiting(_tell))
        _tell("  server: ready")
        transcriber, utterances = prepared.result()
        return asyncio.run(converse(port, utterances, _judge_with(transcriber, out)))


def main(argv: Sequence[str]) -> int:
    """Hold the conversation; 0 if every turn was good."""
    parser = argparse.ArgumentParser(
        prog="metronome demo", description="Hold a spoken conversation with the real server."
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/demo"),
        help="folder for answers (default: %(default)s)",
    )
    parser.add_argument("--config", type=Path, help="TOML file (default: the embedded stack)")
    options = parser.parse_args(argv)
    exit_on_sigterm()
    started_s = time.monotonic()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    try:
        judged = _hold(options.config or default_config_path(), out)
    except (ServerFailed, SpeechUnavailable, OSError) as error:
        return _failed(str(error))
    except ExceptionGroup as group:
        lost = "; ".join(str(error) or repr(error) for error in group.exceptions)
        return _failed(f"the call was lost: {lost} (server log: {out / 'server.log'})")
    summary = _summary(judged, started_s)
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    _tell(f"\nanswers and summary.json are in {out}, {summary['seconds']} s in all")
    bad = [f"{entry.turn.said.name}: {fault}" for entry in judged for fault in entry.faults]
    if bad:
        return _failed(*bad, f"server log: {out / 'server.log'}")
    _tell("demo: every turn was heard, answered aloud and on time")
    return 0


def _failed(*lines: str) -> int:
    for line in lines:
        print(f"demo FAILED: {line}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
