"""`metronome bench barge-in`: is the assistant quiet once the caller speaks?

Eight callers on the simulated engine, through the real server and real sockets. Each asks, listens for a random while
and speaks over the answer, which is then the next question. Noted by the client's clock: when the first loud chunk was
sent, when the server said that speech began, and when the last audio of the interrupted answer came. Afterwards every
call hangs up and the engine must hold nothing.
"""

import asyncio
import base64
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import websockets
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from bench.audio import WIRE_RATE
from bench.microphone import Microphone
from bench.report import Figure, Report, at_least, at_most, parser, progress
from bench.scoring import percentile
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
from engine.clock import Clock, LoopClock
from server.config import default_config_path

CALLS = 8
INTERRUPTIONS = 64
QUICK_INTERRUPTIONS = 16
ALLOWED_MS = 50.0  # over one tick
OUT = Path("out/bench-barge-in")  # the server's log
LEAD_S = 1.0  # the server stays so far ahead of playback: less than usual, so that audio flows when it is cut off
_SPEECH_S, _SILENCE_S = 0.9, 0.8
_LISTENS_S = (0.5, 3.0)  # to an answer before speaking over it
_ANSWER_S = 15.0  # how long an answer or an interruption may take to come
_SETTLE_S = 5.0


@dataclass(slots=True)
class Interruption:
    """One answer that was spoken over. Instants in seconds on the client's clock."""

    response_id: str
    onset_at: float  # the first loud chunk was sent
    told_at: float | None = None  # speech_started
    last_audio_at: float | None = None  # of this answer; None: none came after the onset
    reason: str = ""  # why the answer ended

    @property
    def after_told_ms(self) -> float:
        """By how much audio outlived the server's own word that speech had begun; 0 if it did not."""
        return self._outlived_ms(self.told_at)

    @property
    def after_onset_ms(self) -> float:
        """The same from the first loud chunk: hearing it takes a part of that."""
        return self._outlived_ms(self.onset_at)

    def _outlived_ms(self, since: float | None) -> float:
        if since is None or self.last_audio_at is None:
            return 0.0
        return max(0.0, 1000 * (self.last_audio_at - since))


@dataclass(slots=True)
class Ledger:
    """What one caller's events say. Pure: instants are passed in."""

    interruptions: list[Interruption] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    answer: str | None = None  # the answer under way that has been heard
    begun: int = 0  # answers whose first audio has come
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def interrupts(self, now: float) -> None:
        """The caller begins to speak, over the answer if one is under way."""
        if self.answer is not None:
            self.interruptions.append(Interruption(self.answer, now))

    def take(self, event: dict[str, Any], now: float) -> None:
        """Note a server event."""
        kind = event["type"]
        if kind == "response.output_audio.delta":
            self._audio(event["response_id"], now)
        elif kind == "input_audio_buffer.speech_started":
            if self.interruptions and self.interruptions[-1].told_at is None:
                self.interruptions[-1].told_at = now
        elif kind == "response.done":
            self._done(event["response"])
        elif kind == "error":
            self.problems.append(event["error"]["message"])
        self.news.set()

    def _audio(self, response_id: str, now: float) -> None:
        for interruption in self.interruptions:
            if interruption.response_id == response_id:
                interruption.last_audio_at = now
                return
        if self.answer != response_id:
            self.answer = response_id
            self.begun += 1

    def _done(self, response: dict[str, Any]) -> None:
        if response["id"] == self.answer:
            self.answer = None
        for interruption in self.interruptions:
            if interruption.response_id == response["id"]:
                details = response["status_details"] or {}
                interruption.reason = details.get("reason") or response["status"]


class Interrupter:
    """One caller."""

    def __init__(self, socket: ClientConnection, clock: Clock, seed: int) -> None:
        self.ledger = Ledger()
        self._socket = socket
        self._clock = clock
        self._random = random.Random(seed)
        self._microphone = Microphone(clock, self._append)

    async def run(self, interruptions: int) -> None:
        """Speak over so many answers."""
        async with asyncio.TaskGroup() as tasks:
            helpers = [
                tasks.create_task(self._microphone.run()),
                tasks.create_task(self._listen()),
            ]
            await self._clock.sleep_until(self._clock.now() + self._random.uniform(0.0, 1.0))
            try:
                while len(self.ledger.interruptions) < interruptions:
                    await self._speak()
            except TimeoutError:
                self.ledger.problems.append(f"nothing happened for {_ANSWER_S:g} s")
            for helper in helpers:
                helper.cancel()

    async def _speak(self) -> None:
        """Speak, over an answer if there is one; wait for the answer to that, and listen to some of it."""
        begun = self.ledger.begun
        self.ledger.interrupts(self._clock.now())
        await self._microphone.say(_SPEECH)
        await self._until(lambda: self.ledger.begun > begun)
        await self._clock.sleep_until(self._clock.now() + self._random.uniform(*_LISTENS_S))

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(_ANSWER_S):
            while not holds():
                self.ledger.news.clear()
                await self.ledger.news.wait()

    async def _append(self, chunk: bytes) -> None:
        audio = base64.b64encode(chunk).decode("ascii")
        await self._socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))

    async def _listen(self) -> None:
        async for text in self._socket:
            self.ledger.take(json.loads(text), self._clock.now())


def _speech() -> bytes:
    """Loud enough for every detector, and a silence that ends the turn."""
    phase = np.arange(int(_SPEECH_S * WIRE_RATE)) * (2 * np.pi * 220 / WIRE_RATE)
    loud: bytes = (12_000 * np.sin(phase)).astype("<i2").tobytes()
    return loud + bytes(2 * int(_SILENCE_S * WIRE_RATE))


_SPEECH = _speech()


async def _calls(port: int, interruptions: int) -> list[Ledger]:
    """`CALLS` callers at once, who together interrupt at least so often."""
    each = -(-interruptions // CALLS)
    ledgers = []

    async def one(number: int) -> None:
        url = f"ws://127.0.0.1:{port}/v1/realtime?model=sim"
        async with websockets.connect(url, compression=None, max_size=None) as socket:
            caller = Interrupter(socket, LoopClock(), number)
            ledgers.append(caller.ledger)
            try:
                await caller.run(each)
            except* ConnectionClosed as lost:
                caller.ledger.problems.append(f"a call was lost: {lost.exceptions[0]}")

    async with asyncio.TaskGroup() as tasks:
        for number in range(CALLS):
            tasks.create_task(one(number))
    return ledgers


async def _left(port: int) -> Scrape:
    """What the server holds once every call has ended, or still does after some seconds."""
    clock = LoopClock()
    give_up_at = clock.now() + _SETTLE_S
    while True:
        found = await asyncio.to_thread(scrape, port)
        if not (found.kv_held or found.sessions) or clock.now() > give_up_at:
            return found
        await clock.sleep_until(clock.now() + 0.1)


def figures(ledgers: Sequence[Ledger], left: Scrape, tick_ms: int, wanted: int) -> list[Figure]:
    """What the benchmark says."""
    every = [i for ledger in ledgers for i in ledger.interruptions]
    cut = [i for i in every if i.reason == "turn_detected"]
    return [
        Figure("calls", len(ledgers)),
        at_least("answers cut off by speech", len(cut), "", wanted),
        Figure("answers that ended before they were cut off", len(every) - len(cut)),
        Figure("tick", tick_ms, "ms"),
        *(_latencies(cut, tick_ms + ALLOWED_MS) if cut else ()),
        at_most("KV blocks left behind", left.kv_held, "", 0),
        at_most("sessions left behind", left.sessions, "", 0),
    ]


def _latencies(cut: Sequence[Interruption], limit_ms: float) -> list[Figure]:
    told = [i.after_told_ms for i in cut]
    onset = [i.after_onset_ms for i in cut]
    noticed = [1000 * (i.told_at - i.onset_at) for i in cut if i.told_at is not None]
    since_told, since_onset = (
        "last audio after speech_started",
        "last audio after the first loud chunk",
    )
    figures = [
        at_most(f"{since_told}, p95", round(percentile(told, 0.95), 1), "ms", limit_ms),
        at_most(f"{since_told}, most", round(max(told), 1), "ms", limit_ms),
        at_most(f"{since_onset}, p95", round(percentile(onset, 0.95), 1), "ms", limit_ms),
        Figure(f"{since_onset}, most", round(max(onset), 1), "ms"),
    ]
    for name, share in (("median", 0.5), ("p95", 0.95)):
        took = round(percentile(noticed, share)) if noticed else "never"
        figures.append(Figure(f"speech_started after the first loud chunk, {name}", took, "ms"))
    return figures


def _config(folder: Path) -> Path:
    """The simulated engine as it ships, but for `LEAD_S`."""
    folder.mkdir(parents=True, exist_ok=True)
    shipped = default_config_path("sim").read_text(encoding="utf-8")
    changed = folder / "sim.toml"
    changed.write_text(
        shipped.replace("[engine]\n", f"[engine]\nlead_s = {LEAD_S}\n", 1), encoding="utf-8"
    )
    return changed


async def _measure(port: int, interruptions: int) -> tuple[list[Ledger], Scrape]:
    ledgers = await _calls(port, interruptions)
    return ledgers, await _left(port)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; 1 if a call failed or, with --check, a target was missed."""
    command = parser("barge-in", "How soon an answer is silent once the caller speaks over it.")
    options = command.parse_args(argv)
    exit_on_sigterm()
    report = Report("barge-in", argv)
    wanted = QUICK_INTERRUPTIONS if options.quick else INTERRUPTIONS
    port = free_port()
    serve = metronome("serve", "--config", str(_config(OUT)), "--port", str(port))
    try:
        with ServerProcess(serve, port, OUT / "server.log") as server:
            server.wait_ready(progress=Waiting(progress))
            progress(f"{CALLS} calls, {wanted} interruptions, in real time")
            about = json.loads(get(port, "/v1/models")[1])["data"][0]["metronome"]
            # A few more: an answer may end by itself just when the caller begins.
            ledgers, left = asyncio.run(_measure(port, wanted + CALLS))
    except (ServerFailed, OSError) as error:
        print(f"bench barge-in: {error}", file=sys.stderr)
        return 1
    report.add(*figures(ledgers, left, about["tick_ms"], wanted))
    report.publish(options.json)
    problems = [problem for ledger in ledgers for problem in ledger.problems]
    for problem in problems[:5]:
        print(f"problem: {problem}", file=sys.stderr)
    return 1 if problems or (options.check and report.missed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
