"""Carries out a calibration on the real engine, before the first call: `admission/calibration.py` says what to try.

Sessions are built straight in the backend, with filler for a context, and every tick cuts the context back to where it
was, so that a probe measures one length however long it lasts.
"""

import asyncio
import logging
from dataclasses import dataclass

from admission.calibration import TICKS_EACH, Calibration, SoakProbe, StepProbe
from admission.cost_model import StepSample
from admission.latency_window import Histogram
from admission.learned import Learned
from admission.settings import AdmissionSettings
from engine.clock import Clock
from engine.executor import Executor
from engine.work import Append, TickBatch

_log = logging.getLogger(__name__)

_FILL_TOKENS = 128  # appended at a time while a context is built
_WORDS = 400  # ids from 10 up that every vocabulary has
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class TickShape:
    """What an ordinary session asks of the backend."""

    header: int  # tokens it begins with
    prefill: int  # tokens appended by a tick
    decode: int  # tokens decoded after them, one per step


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a calibration may take."""

    seconds: float
    soaks: bool  # True: also serve whole fleets for a while


class CalibrationFailed(RuntimeError):
    """The backend refused a probe; the message is its own."""


class Bench:
    """The backend with sessions of known length in it."""

    def __init__(self, executor: Executor, clock: Clock, tick: TickShape) -> None:
        self._executor = executor
        self.clock = clock
        self.tick = tick
        self._tokens: list[int] = []  # of each session, between its ticks

    async def grow(self, sessions: int, tokens: int) -> None:
        """At least so many sessions, the first of which hold so many tokens each."""
        while len(self._tokens) < sessions:
            self._tokens.append(0)
        for number in range(sessions):
            while (missing := tokens - self._tokens[number]) > 0:
                size = min(missing, _FILL_TOKENS)
                await self._serve({number: self._append(number, size, 1)})
                self._tokens[number] += size

    def _append(self, number: int, size: int, decode: int) -> Append:
        # No two sessions alike, or the engine would keep their contexts once.
        filler = tuple(10 + (number + 7 * i) % _WORDS for i in range(size))
        keep = self._tokens[number] or None
        return Append(f"calibration-{number}", 0, filler, decode, 0.0, keep_tokens=keep)

    def _tick_of(self, number: int) -> Append:
        return self._append(number, max(1, self.tick.prefill), self.tick.decode)

    async def _serve(self, appends: dict[int, Append]) -> None:
        """Step until every append is finished."""
        waiting = tuple(appends.values())
        left = len(appends)
        while left:
            left -= len(await self._step(waiting))
            waiting = ()

    async def _step(self, appends: tuple[Append, ...]) -> list[int]:
        """One step; the sessions that it finished a tick of."""
        result = await self._executor.step(TickBatch(appends))
        finished = []
        for chunk in result.chunks:
            if chunk.error is not None:
                raise CalibrationFailed(chunk.error)
            if chunk.finished:
                finished.append(int(chunk.session_id.rpartition("-")[2]))
        return finished

    async def tick_s(self, sessions: int) -> float:
        """Seconds for a tick that so many sessions begin together."""
        appends = {n: self._tick_of(n) for n in range(sessions)}
        started = self.clock.now()
        await self._serve(appends)
        return self.clock.now() - started

    async def soak(
        self, probe: SoakProbe, tick_s: float, tokens: int
    ) -> tuple[Histogram, list[StepSample]]:
        """Serve the sessions at their own phases for a while; their ticks and the steps."""
        clock, ticks, steps = self.clock, Histogram(), []
        start = clock.now()
        due = [start + tick_s * (n * _GOLDEN % 1) for n in range(probe.sessions)]
        busy: set[int] = set()
        while (now := clock.now()) < start + probe.seconds:
            ready = [n for n, at in enumerate(due) if at <= now and n not in busy]
            if not ready and not busy:
                await clock.sleep_until(min(due))
                continue
            busy.update(ready)
            in_step = len(busy)
            for number in await self._step(tuple(map(self._tick_of, ready))):
                share = (clock.now() - due[number]) / tick_s
                ticks.add(share, missed=share > 1)
                busy.discard(number)
                due[number] += tick_s * max(1.0, float(int(share)))
            steps.append(StepSample(in_step, clock.now() - now, in_step * tokens))
        while busy:
            busy.difference_update(await self._step(()))
        return ticks, steps

    async def close(self) -> None:
        """Free every context."""
        closes = tuple(f"calibration-{n}" for n in range(len(self._tokens)))
        await self._executor.step(TickBatch(closes=closes))
        self._tokens.clear()


async def calibrate(bench: Bench, settings: AdmissionSettings, effort: Effort, key: str) -> Learned:
    """Measure a started engine that serves nobody.

    Raises:
        CalibrationFailed: the backend refused a probe.
        EngineDead: the engine did not survive it.
    """
    shape = settings.shape
    usable = int(settings.pool_blocks * (1 - settings.temper.kv_reserve))
    most = min(settings.max_sessions, usable // max(1, shape.plateau_blocks) or 1)
    calibration = Calibration(settings, most, bench.tick.header)
    clock, join_s = bench.clock, 0.0
    over_at = clock.now() + effort.seconds
    try:
        while clock.now() < over_at and (probe := calibration.next()) is not None:
            if isinstance(probe, StepProbe):
                began = clock.now()
                await bench.grow(probe.sessions, probe.tokens)
                join_s = join_s or clock.now() - began  # the first header ever read
                await bench.tick_s(probe.sessions)  # the first of a kind allocates
                seconds = [await bench.tick_s(probe.sessions) for _ in range(TICKS_EACH)]
                calibration.stepped(probe, seconds)
                _log.info("%s: %.4f s a tick", probe, sorted(seconds)[TICKS_EACH // 2])
            elif effort.soaks and settings.paced:
                await bench.grow(probe.sessions, shape.plateau_tokens)
                ticks, steps = await bench.soak(probe, shape.tick_s, shape.plateau_tokens)
                calibration.soaked(probe, ticks, steps)
                _log.info("%s: slowest at %.2f of the budget", probe, ticks.quantile(0.999))
            else:
                break
            await asyncio.sleep(0)
    finally:
        await bench.close()
    return calibration.result(key, join_s)
