"""`metronome bench sim`: minutes of many calls in seconds, through the engine's own code.

Every session pushes one frame per tick to a frame-locked model on the simulated engine, whose steps
cost what configs/sim.toml says; a quarter of the sessions in each 20 ms of the tick, as callers send.
Only time is pretended.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence

from bench.report import Figure, Report, at_most, parser, progress
from engine.clock import LoopClock
from engine.engine import Engine
from engine.executor import SimExecutor
from engine.kv_policy import KvPolicy
from engine.listener import CallPart, EndReason, Usage
from engine.models.base import SessionSetup
from engine.models.sim import SimDuplex, SimDuplexSettings
from engine.observer import StepStats, TickStats, TurnStats
from engine.settings import EngineSettings
from engine.sim_backend import SimBackend, SimCost
from engine.speech.ports import ScoredToken
from engine.virtual_time import run_virtual
from server.config import default_config_path, load_config

SESSIONS = 50
TICK_MS = 80
SIMULATED_S = 300.0
QUICK_S = 60.0
_PHASES = 4
MAX_WALL_S = 5.0  # for SIMULATED_S


class Tally:
    """Counts ticks by outcome; an observer of the engine."""

    def __init__(self) -> None:
        self.ticks: Counter[str] = Counter()
        self.steps = 0

    def tick(self, stats: TickStats) -> None:
        self.ticks[stats.outcome] += 1

    def served(self, stats: TickStats) -> None:
        """Its verdict has been counted."""

    def step(self, stats: StepStats) -> None:
        self.steps += 1

    def turn(self, stats: TurnStats) -> None:
        """A frame-locked model has no turns."""


class Listener:
    """Counts the frames that came back to one caller."""

    def __init__(self) -> None:
        self.frames = 0
        self.failures: list[str] = []

    def spoke(self, pcm: bytes, text: str) -> None:
        self.frames += 1

    def failed(self, code: str, message: str) -> None:
        self.failures.append(f"{code}: {message}")

    def fell_silent(self) -> None: ...
    def speech_started(self, audio_ms: int) -> None: ...
    def speech_stopped(self, audio_ms: int) -> None: ...
    def idle_timeout(self, start_ms: int, end_ms: int) -> None: ...
    def transcribed(
        self, item_id: str, text: str, seconds: float, tokens: Sequence[ScoredToken] = ()
    ) -> None: ...
    def transcription_failed(self, item_id: str, message: str) -> None: ...
    def image_failed(self, item_id: str, message: str) -> None: ...
    def response_text(self, response_id: str, text: str) -> None: ...
    def response_audio(self, response_id: str, pcm: bytes) -> None: ...
    def function_call(self, response_id: str, part: CallPart) -> None: ...
    def response_ended(
        self, response_id: str, reason: EndReason, usage: Usage, error: str | None
    ) -> None: ...


async def simulate(seconds: float) -> tuple[Tally, list[Listener]]:
    """Run SESSIONS calls for `seconds` on the running loop's clock."""
    sim = load_config(default_config_path("sim")).engine.sim
    cost = SimCost(sim.fixed_s, sim.session_s, sim.token_s, sim.resident_s)
    backend = SimBackend(cost, block_size=sim.block_size, total_blocks=sim.total_blocks)
    clock, tally = LoopClock(), Tally()
    model = SimDuplex(SimDuplexSettings(tick_ms=TICK_MS))
    executor = SimExecutor(backend, clock)
    engine = Engine(model, executor, clock, tally, EngineSettings(), KvPolicy())
    await engine.start()
    listeners = [Listener() for _ in range(SESSIONS)]
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(engine.run())
        await asyncio.sleep(0)  # `run` opens the group that sessions live in
        await _call_all(engine, listeners, seconds)
        for number in range(len(listeners)):
            engine.close(f"call-{number}")
        engine.request_stop()
        await running
    await engine.stop()
    return tally, listeners


async def _call_all(engine: Engine, listeners: Sequence[Listener], seconds: float) -> None:
    """Open every session and push frames in the order of time; then let the last answers arrive."""
    clock, tick_s = LoopClock(), TICK_MS / 1000
    frame = bytes(engine.model.spec.input_rate * TICK_MS // 1000 * 2)
    sessions = [
        engine.open(f"call-{number}", SessionSetup(), listener)
        for number, listener in enumerate(listeners)
    ]
    origin = clock.now()
    for slot in range(round(seconds / tick_s) * _PHASES):
        await clock.sleep_until(origin + slot * tick_s / _PHASES)
        now = clock.now()
        for session in sessions[slot % _PHASES :: _PHASES]:
            session.push_audio(frame, now)
    await clock.sleep_until(clock.now() + 2 * tick_s)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; 1 if a frame was lost, or with --check a target missed."""
    options = parser("sim", "Many simulated calls in virtual time.").parse_args(argv)
    seconds = QUICK_S if options.quick else SIMULATED_S
    report = Report("sim", argv)
    progress(f"{SESSIONS} sessions, {TICK_MS} ms ticks, {seconds:.0f} s of virtual time")
    started, cpu = time.perf_counter(), time.process_time()
    tally, listeners = run_virtual(simulate(seconds))
    wall_s = time.perf_counter() - started
    owed = SESSIONS * round(seconds / TICK_MS * 1000)
    answered = sum(listener.frames for listener in listeners)
    failures = [failure for listener in listeners for failure in listener.failures]
    report.add(
        Figure("simulated", seconds, "s"),
        Figure("sessions", SESSIONS),
        at_most("wall", round(wall_s, 3), "s", MAX_WALL_S * seconds / SIMULATED_S),
        Figure("CPU", round(time.process_time() - cpu, 3), "s"),
        Figure("faster than real time", round(seconds / wall_s, 1), "x"),
        Figure("engine steps", tally.steps),
        Figure("frames answered", answered, "", f"{owed:,}", answered == owed),
        Figure("ticks on time", tally.ticks["on_time"]),
        Figure("ticks late", tally.ticks["late"]),
        Figure("ticks empty or dropped", tally.ticks["empty"] + tally.ticks["dropped"]),
    )
    report.publish(options.json)
    for failure in failures[:5]:
        print(f"problem: {failure}", file=sys.stderr)
    lost = answered != owed or bool(failures)
    return 1 if lost or (options.check and report.missed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
