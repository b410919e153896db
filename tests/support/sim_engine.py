"""A whole engine on the simulated plant, in virtual time: real sessions, real loops, simulated cost."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from engine.bystander import Bystander
from engine.clock import LoopClock
from engine.engine import Engine
from engine.executor import SimExecutor
from engine.kv_policy import KvPolicy
from engine.listener import CallPart, EndReason, Usage
from engine.models.base import InteractionModel, Message, ModelSpec
from engine.models.cascade import Cascade, CascadeParts
from engine.models.sim import SimChat, SimDuplex, SimDuplexSettings
from engine.observer import StepStats, TickStats, TurnStats
from engine.pool import Pools
from engine.response import ResponseRequest
from engine.settings import EngineSettings
from engine.sim_backend import SimBackend, SimCost
from engine.speech.ports import ScoredToken
from engine.speech.sim import DurationTranscriber, EnergyVad, ToneVoice

RATE = 24_000
TICK_MS = 160


@dataclass
class Recorder:
    """An observer that keeps everything."""

    ticks: list[TickStats] = field(default_factory=list)
    served_late: list[TickStats] = field(default_factory=list)
    steps: list[StepStats] = field(default_factory=list)
    turns: list[TurnStats] = field(default_factory=list)

    def tick(self, stats: TickStats) -> None:
        self.ticks.append(stats)

    def served(self, stats: TickStats) -> None:
        self.served_late.append(stats)

    def step(self, stats: StepStats) -> None:
        self.steps.append(stats)

    def turn(self, stats: TurnStats) -> None:
        self.turns.append(stats)

    def outcomes(self, kind: str) -> dict[str, int]:
        counts: dict[str, int] = {}
        for tick in self.ticks:
            if tick.kind == kind:
                counts[tick.outcome] = counts.get(tick.outcome, 0) + 1
        return counts


class Caller:
    """A listener that keeps every fact as a tuple, with the instant it came."""

    def __init__(self) -> None:
        self.facts: list[tuple[object, ...]] = []
        self.audio: dict[str, bytes] = {}
        self.text: dict[str, str] = {}
        self.tokens: dict[str, tuple[ScoredToken, ...]] = {}  # of transcripts, by item
        self.changed = asyncio.Event()

    def _note(self, *fact: object) -> None:
        self.facts.append(fact)
        self.changed.set()

    def speech_started(self, audio_ms: int) -> None:
        self._note("speech_started", audio_ms)

    def speech_stopped(self, audio_ms: int) -> None:
        self._note("speech_stopped", audio_ms)

    def idle_timeout(self, start_ms: int, end_ms: int) -> None:
        self._note("idle_timeout", start_ms, end_ms)

    def transcribed(
        self, item_id: str, text: str, seconds: float, tokens: Sequence[ScoredToken] = ()
    ) -> None:
        self._note("transcribed", item_id, text)
        self.tokens[item_id] = tuple(tokens)

    def transcription_failed(self, item_id: str, message: str) -> None:
        self._note("transcription_failed", item_id, message)

    def image_failed(self, item_id: str, message: str) -> None:
        self._note("image_failed", item_id, message)

    def response_text(self, response_id: str, text: str) -> None:
        self.text[response_id] = self.text.get(response_id, "") + text
        self._note("text", response_id)

    def response_audio(self, response_id: str, pcm: bytes) -> None:
        self.audio[response_id] = self.audio.get(response_id, b"") + pcm
        self._note("audio", response_id)

    def function_call(self, response_id: str, part: CallPart) -> None:
        self._note("call", response_id, part)

    def response_ended(
        self, response_id: str, reason: EndReason, usage: Usage, error: str | None
    ) -> None:
        self._note("ended", response_id, reason, usage, error)

    def spoke(self, pcm: bytes, text: str) -> None:
        self._note("spoke", len(pcm))

    def fell_silent(self) -> None:
        self._note("fell_silent")

    def failed(self, code: str, message: str) -> None:
        self._note("failed", code)

    def kinds(self) -> list[object]:
        return [fact[0] for fact in self.facts]

    def ended(self, response_id: str) -> tuple[object, ...] | None:
        return next((f for f in self.facts if f[:2] == ("ended", response_id)), None)

    async def until(self, *prefix: object) -> tuple[object, ...]:
        """The first fact that starts like this, once it is there."""
        while True:
            for fact in self.facts:
                if fact[: len(prefix)] == prefix:
                    return fact
            self.changed.clear()
            await self.changed.wait()


def cascade(decode_per_tick: int = 3) -> Cascade:
    """The turn-based model on simulated parts."""
    chat = SimChat()
    spec = ModelSpec(
        "sim", TICK_MS, RATE, RATE, decode_per_tick, False, stop_token_ids=chat.stop_token_ids
    )
    return Cascade(spec, CascadeParts(EnergyVad(), DurationTranscriber(), chat, ToneVoice()))


def duplex(tick_ms: int = 80) -> SimDuplex:
    """The frame-locked model."""
    return SimDuplex(SimDuplexSettings(tick_ms=tick_ms))


@asynccontextmanager
async def running(
    model: InteractionModel,
    cost: SimCost | None = None,
    *,
    backend: SimBackend | None = None,
    settings: EngineSettings | None = None,
    policy: KvPolicy | None = None,
    bystander: Bystander | None = None,
) -> AsyncIterator[tuple[Engine, Recorder, SimBackend]]:
    """An engine that runs; on leaving it stops, and the pool must be empty again."""
    clock, recorder = LoopClock(), Recorder()
    plant = backend or SimBackend(cost or SimCost(0.02, 0.001, 0.0005, 0.0))
    engine = Engine(
        model,
        SimExecutor(plant, clock),
        clock,
        recorder,
        settings or EngineSettings(),
        policy or KvPolicy(),
        Pools.inline(),
        bystander,
    )
    await engine.start()
    task = asyncio.create_task(engine.run())
    await asyncio.sleep(0)
    try:
        yield engine, recorder, plant
    finally:
        engine.request_stop()
        await task
        await engine.stop()


def tone(seconds: float, rate: int = RATE) -> bytes:
    """Loud enough for every detector."""
    phase = np.arange(int(seconds * rate)) * (2 * np.pi * 220 / rate)
    return (12_000 * np.sin(phase)).astype("<i2").tobytes()


def silence(seconds: float, rate: int = RATE) -> bytes:
    return bytes(int(seconds * rate) * 2)


async def until_quiet() -> None:
    """A little virtual time."""
    await asyncio.sleep(1)


async def stream(session: object, pcm: bytes, chunk_s: float = 0.02, rate: int = RATE) -> None:
    """Push audio in real time, on the virtual clock."""
    loop = asyncio.get_running_loop()
    size, start = int(chunk_s * rate) * 2, loop.time()
    for index, offset in enumerate(range(0, len(pcm), size)):
        await asyncio.sleep(max(0.0, start + (index + 1) * chunk_s - loop.time()))
        session.push_audio(pcm[offset : offset + size], loop.time())  # type: ignore[attr-defined]


def ask(response_id: str, *texts: str, audio: bool = True, **more: object) -> ResponseRequest:
    """A request whose messages alternate user and assistant, ending with the user."""
    roles = ["user", "assistant"]
    start = (len(texts) + 1) % 2
    messages = tuple(
        Message(roles[(start + i) % 2], text, f"item_{i}")  # type: ignore[arg-type]
        for i, text in enumerate(texts)
    )
    return ResponseRequest(response_id, "be brief", messages, audio=audio, **more)  # type: ignore[arg-type]
