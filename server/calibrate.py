"""Carries out a calibration on the real engine, before the first call: `admission/calibration.py` says what to try.

Sessions are built straight in the backend, with filler for a context. Young ones are cut back after every tick, so that
a probe measures one length however long it lasts; at full window they grow and are cut back as calls are. Beside it the
event loop works as it would for callers: the engine's thread shares the interpreter with it, and where the engine is
this machine's CPU a tenth of the loop makes steps a quarter longer.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from admission.calibration import TICKS_EACH, Calibration, Soak, SoakProbe, StepProbe
from admission.cost_model import StepSample
from admission.learned import Learned
from admission.settings import AdmissionSettings
from engine.clock import Clock
from engine.executor import Executor
from engine.work import Append, Drop, TickBatch

_log = logging.getLogger(__name__)

_FILL_TOKENS = 128  # appended at a time while a context is built
_WORDS = 400  # ids from 10 up that every vocabulary has
_GOLDEN = 0.6180339887498949
# Turns of an empty loop that take as long as a call keeps the event loop: per tick, beside the steps, and per step,
# while what it brought is delivered. 75 and 19 µs where both were measured (`metronome bench ramp`, 115 calls, ticks of
# 0.2 s: CPU time of the loop's thread, and `metronome_host_tick_seconds`).
_FRONT_WORK, _DELIVERY_WORK = 9_000, 2_300


@dataclass(frozen=True, slots=True)
class TickShape:
    """What an ordinary session asks of the backend."""

    header: int  # tokens it begins with
    prefill: int  # tokens appended by a tick
    decode: int  # tokens decoded after them, one per step
    slack: int = 0  # tokens a session grows by before so many are dropped; 0: never
    block: int = 1  # tokens; drops are of whole ones


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a calibration may take."""

    seconds: float
    soaks: bool  # True: also serve whole fleets for a while


class CalibrationFailed(RuntimeError):
    """The backend refused a probe; the message is its own."""


class Bench:
    """The backend with sessions of known length in it."""

    def __init__(self, executor: Executor, clock: Clock, tick: TickShape, tick_s: float) -> None:
        self._executor = executor
        self.clock = clock
        self.tick = tick
        self._tick_s = tick_s
        self._tokens: list[int] = []  # of each session, between its ticks
        self._longest = 0  # tokens a session grows to; 0: it does not grow

    async def grow(self, sessions: int, tokens: int) -> None:
        """At least so many sessions, the first of which hold so many tokens each, where they grow in the mean."""
        while len(self._tokens) < sessions:
            self._tokens.append(0)
        slack = self.tick.slack if tokens > 2 * self.tick.slack else 0
        self._longest = tokens + slack // 2 if slack else 0
        for number in range(sessions):
            wanted = tokens + int(slack * (number * _GOLDEN % 1 - 0.5))
            while (missing := wanted - self._tokens[number]) > 0:
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

    def _drops_of(self, numbers: Iterable[int]) -> tuple[Drop, ...]:
        """What those of these who have grown so far forget before their next tick."""
        block, drops = self.tick.block, list[Drop]()
        for number in numbers if self._longest else ():
            if self._tokens[number] >= self._longest:
                size = max(1, self.tick.slack // block) * block
                drops.append(Drop(f"calibration-{number}", block, block + size))
                self._tokens[number] -= size
        return tuple(drops)

    async def _ticked(self, ready: Sequence[int]) -> list[int]:
        """A step in which these begin a tick; those that finished one."""
        drops = self._drops_of(ready)
        finished = await self._step(tuple(map(self._tick_of, ready)), drops)
        if self._longest:
            for number in finished:
                self._tokens[number] += max(1, self.tick.prefill) + self.tick.decode
        return finished

    async def _step(self, appends: tuple[Append, ...], drops: tuple[Drop, ...] = ()) -> list[int]:
        """One step; the sessions that it finished a tick of."""
        result = await self._executor.step(TickBatch(appends, drops))
        _spin(_DELIVERY_WORK * len(result.chunks))
        finished = []
        for chunk in result.chunks:
            if chunk.error is not None:
                raise CalibrationFailed(chunk.error)
            if chunk.finished:
                finished.append(int(chunk.session_id.rpartition("-")[2]))
        return finished

    async def crowded_s(self, sessions: int, rounds: int) -> list[float]:
        """Seconds of so many rounds, each as many steps as a tick takes, with every session in every step.

        They begin one group per step, as calls do that know nothing of each other: a step that reads for some while it
        decodes for others may take half as long again as one that does one thing.
        """
        steps, ready, times = self.tick.decode, list[int](), list[float]()
        began = self.clock.now()
        async with self._callers(sessions):
            for step in range(steps * (1 + rounds)):
                if step < steps:
                    ready += range(step, sessions, steps)
                ready = await self._ticked(ready)
                if (step + 1) % steps == 0:
                    times.append(self.clock.now() - began)
                    began = self.clock.now()
        left = sessions - len(ready)
        while left:
            left -= len(await self._ticked(()))
        return times[1:]  # in the first one the house fills, and the first of a kind allocates

    @asynccontextmanager
    async def _callers(self, sessions: int) -> AsyncIterator[None]:
        """What so many callers keep the event loop busy with, spread over time as theirs is."""

        async def talk() -> None:
            due = self.clock.now()
            while True:
                _spin(_FRONT_WORK)
                due += self._tick_s / sessions
                await self.clock.sleep_until(due)

        talking = asyncio.ensure_future(talk())
        try:
            yield
        finally:
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)

    async def soak(self, probe: SoakProbe, tokens: int) -> Soak:
        """Serve the sessions at their own phases for a while."""
        async with self._callers(probe.sessions):
            return await self._soak(probe, tokens)

    async def _soak(self, probe: SoakProbe, tokens: int) -> Soak:
        clock, tick_s, soak = self.clock, self._tick_s, Soak()
        start = clock.now()
        due = [start + tick_s * (n * _GOLDEN % 1) for n in range(probe.sessions)]
        busy: set[int] = set()
        while (now := clock.now()) < start + probe.seconds:
            ready = [n for n, at in enumerate(due) if at <= now and n not in busy]
            if not ready and not busy:
                await clock.sleep_until(min(due))
                continue
            busy.update(ready)
            in_step, part = len(busy), soak.part(now - start)
            for number in await self._ticked(ready):
                share = (clock.now() - due[number]) / tick_s
                part.ticks.add(share, missed=share > 1)
                busy.discard(number)
                due[number] += tick_s * max(1.0, float(int(share)))
            part.steps.append(StepSample(in_step, clock.now() - now, in_step * tokens))
        while busy:
            busy.difference_update(await self._ticked(()))
        return soak

    async def close(self) -> None:
        """Free every context."""
        closes = tuple(f"calibration-{n}" for n in range(len(self._tokens)))
        await self._executor.step(TickBatch(closes=closes))
        self._tokens.clear()


def _spin(turns: int) -> None:
    """Keep the interpreter busy."""
    for _ in range(turns):
        pass


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
                seconds = await bench.crowded_s(probe.sessions, TICKS_EACH)
                calibration.stepped(probe, seconds)
                _log.info("%s: %.4f s a tick", probe, sorted(seconds)[TICKS_EACH // 2])
            elif effort.soaks and settings.paced:
                await bench.grow(probe.sessions, shape.plateau_tokens)
                soak = await bench.soak(probe, shape.plateau_tokens)
                calibration.soaked(probe, soak)
                _log.info("%s: slowest at %.2f of the budget", probe, soak.ticks.quantile(0.999))
            else:
                break
            await asyncio.sleep(0)
    finally:
        await bench.close()
    return calibration.result(key, join_s)
