"""What the engine says of time is true: a frozen engine cannot look healthy, and no tick is lost from the books."""

import asyncio
from math import inf

import pytest
from support.sim_engine import RATE, Caller, Recorder, ask, cascade, duplex, running, silence

from engine.engine import Engine
from engine.kv_policy import KvPolicy
from engine.models.base import SessionSetup
from engine.session import Session
from engine.sim_backend import SimBackend, SimCost
from engine.virtual_time import run_virtual
from engine.wall import WallForecast
from engine.work import KvSnapshot, StepResult, TickBatch
from server.metrics import Metrics

SETUP = SessionSetup(instructions="be brief")
TICK_S = 0.08
FRAME = bytes(int(TICK_S * RATE) * 2)


class Freezing(SimBackend):
    """A plant whose steps take `freeze_s` from the moment that is set."""

    freeze_s = 0.0

    def step(self, batch: TickBatch) -> StepResult:
        result = super().step(batch)
        return StepResult(result.chunks, self.freeze_s or result.engine_s, result.kv)


class Emptying(SimBackend):
    """A plant that, once `empty` is set, answers at once and with nothing: the silent collapse."""

    empty = False

    def step(self, batch: TickBatch) -> StepResult:
        if self.empty:
            return StepResult((), 0.001, self.snapshot())
        return super().step(batch)

    @property
    def busy(self) -> bool:
        return self.empty or super().busy


async def speak(session: Session, frames: int) -> int:
    """Push whole frames, one per tick, until the call is lost; how many."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    for index in range(frames):
        await asyncio.sleep(max(0.0, start + index * TICK_S - loop.time()))
        if session.closed:
            return index
        session.push_audio(FRAME, loop.time())
    return frames


def missed(recorder: Recorder, since: float, kind: str) -> float:
    """Share of the ticks judged after `since` that were missed."""
    judged = [t for t in recorder.ticks if t.kind == kind and t.done_at > since]
    return sum(t.outcome != "on_time" for t in judged) / len(judged)


@pytest.mark.parametrize("plant", [Freezing, Emptying])
def test_a_frozen_frame_locked_engine_misses_everything_within_two_ticks(
    plant: type[SimBackend],
) -> None:
    """Hanging or answering with nothing: all misses, stalled, stale and starved, while latency stays green."""

    async def main() -> None:
        backend = plant(SimCost(fixed_s=0.01))
        async with running(duplex(), backend=backend) as (engine, recorder, _):
            loop = asyncio.get_running_loop()
            session = engine.open("s1", SETUP, Caller())
            talking = asyncio.create_task(speak(session, 60))
            await asyncio.sleep(20 * TICK_S + 0.04)
            assert set(recorder.outcomes("frame")) == {"on_time"}
            assert engine.lag().starved == 0
            assert engine.lag().staleness_s == 0
            frozen_at = loop.time()
            if isinstance(backend, Freezing):
                backend.freeze_s = 1.0
            else:
                backend.empty = True  # type: ignore[attr-defined]
            await asyncio.sleep(
                3.5 * TICK_S
            )  # until the tick after the freeze is due, and two more
            assert missed(recorder, frozen_at + TICK_S, "frame") == 1.0
            assert engine.stalled
            first = engine.lag().staleness_s
            assert first > 2 * TICK_S
            assert all(t.latency_s < TICK_S for t in recorder.ticks if t.measured)
            await asyncio.sleep(4 * TICK_S)
            assert engine.lag().starved == 1
            assert engine.lag().staleness_s == pytest.approx(first + 4 * TICK_S)
            assert missed(recorder, frozen_at + TICK_S, "frame") == 1.0
            talking.cancel()
            backend.freeze_s = 0.0  # type: ignore[attr-defined]
            backend.empty = False  # type: ignore[attr-defined]
            engine.close("s1")
            await asyncio.sleep(3)
            assert engine.lag().starved == 0

    run_virtual(main(), 60)


def test_a_frozen_engine_leaves_no_tick_of_an_answer_green() -> None:
    """Text that stopped coming is missed from the next tick on."""

    async def main() -> None:
        backend = Freezing(SimCost(fixed_s=0.03))
        async with running(cascade(), backend=backend) as (engine, recorder, _):
            caller = Caller()
            session = engine.open("s1", SETUP, caller)
            session.respond(ask("r1", "a long story", audio=False))
            await caller.until("text", "r1")
            frozen_at = asyncio.get_running_loop().time()
            backend.freeze_s = 1.6
            await asyncio.sleep(5 * 0.16)
            assert missed(recorder, frozen_at + 2 * 0.16, "speak") == 1.0
            assert engine.lag().starved == 1
            assert engine.stalled
            backend.freeze_s = 0.0
            await caller.until("ended", "r1")
            assert engine.lag().starved == 0

    run_virtual(main(), 60)


def test_a_late_frame_is_counted_once_and_its_true_latency_is_kept() -> None:
    """It is a miss from the moment it is overdue; how late it was is known when it comes."""

    async def main() -> None:
        backend = Freezing(SimCost(fixed_s=0.01))
        metrics = Metrics("m", TICK_S)
        async with running(duplex(), backend=backend) as (engine, recorder, _):
            session = engine.open("s1", SETUP, Caller())
            backend.freeze_s = 0.5
            session.push_audio(FRAME, asyncio.get_running_loop().time())
            await asyncio.sleep(1)
            assert recorder.outcomes("frame") == {"late": 1}
            (late,) = recorder.served_late
            assert late.latency_s == pytest.approx(0.5)
            for tick in recorder.ticks:
                metrics.tick(tick)
            metrics.served(late)
            rendered = metrics.render().decode()
            assert 'metronome_ticks_total{model="m",outcome="late"} 1.0' in rendered
            assert 'metronome_frame_latency_seconds_sum{model="m"} 0.5' in rendered

    run_virtual(main(), 60)


def _settled(recorder: Recorder) -> int:
    counts = recorder.outcomes("frame")
    assert not set(counts) - {"on_time", "late", "dropped"}, counts
    return sum(counts.values())


def test_every_frame_is_accounted_for_exactly() -> None:
    """on_time + late + dropped is what the client sent: served, overloaded, and when the engine fails."""

    async def main() -> None:
        backend = Freezing(SimCost(fixed_s=0.02, session_s=0.02))
        async with running(duplex(), backend=backend) as (engine, recorder, _):
            sent = 0
            sessions = []
            for index in range(6):  # more than 80 ms per tick can serve
                sessions.append(engine.open(f"s{index}", SETUP, Caller()))
            sent += sum(
                await asyncio.gather(*(speak(s, 25 + 3 * i) for i, s in enumerate(sessions)))
            )
            await asyncio.sleep(10)
            assert _settled(recorder) == sent
            assert recorder.outcomes("frame")["late"] > 0
            backend.freeze_s = 8.0
            sent += sum(await asyncio.gather(*(speak(s, 100) for s in sessions)))
            assert engine.snapshot().sessions == 0  # the watchdog has ended them
            assert _settled(recorder) == sent
            assert recorder.outcomes("frame")["dropped"] > 0

    run_virtual(main(), 120)


def test_a_frame_s_time_is_told_by_stage_and_adds_up() -> None:
    """audio complete → heard → sent → first token → delivered, with nothing left over."""

    async def main() -> None:
        backend = SimBackend(SimCost(fixed_s=0.02))
        async with running(duplex(), backend=backend) as (engine, recorder, _):
            sessions = [engine.open(f"s{i}", SETUP, Caller()) for i in range(2)]
            sessions[0].push_audio(FRAME, asyncio.get_running_loop().time())
            await asyncio.sleep(0.01)
            sessions[1].push_audio(FRAME, asyncio.get_running_loop().time())  # a step is under way
            await asyncio.sleep(1)
            first, second = recorder.ticks
            assert first.stages == pytest.approx((0.0, 0.0, 0.02, 0.0))
            assert second.stages == pytest.approx((0.0, 0.01, 0.02, 0.0))
            for tick in (first, second):
                assert sum(tick.stages) == pytest.approx(tick.latency_s)

    run_virtual(main(), 60)


def test_an_answer_knows_when_its_tokens_were_asked_for_and_sent() -> None:
    """The turn's queue, engine and egress stages."""

    async def main() -> None:
        async with running(cascade(), SimCost(fixed_s=0.05)) as (engine, recorder, _):
            caller = Caller()
            engine.open("s1", SETUP, caller).respond(ask("r1", "hello"))
            await caller.until("ended", "r1")
            turn = recorder.turns[0]
            assert turn.asked_at is not None
            assert turn.sent_at is not None
            assert turn.first_token_at is not None
            assert turn.decided_at <= turn.asked_at <= turn.sent_at
            assert turn.first_token_at - turn.sent_at == pytest.approx(0.05)

    run_virtual(main(), 60)


def test_young_calls_and_headers_are_counted() -> None:
    """A call is young until its window is full."""

    async def main() -> None:
        policy = KvPolicy("anchored", window_tokens=64, slack_tokens=32)
        async with running(duplex(), SimCost(), policy=policy) as (engine, _, _):
            session = engine.open("s1", SETUP, Caller())
            assert engine.lag().young == 1
            await speak(session, 40)  # three tokens each
            await asyncio.sleep(1)
            assert engine.lag().young == 0
            assert engine.lag().sink_blocks == 0  # this model has no header

        async with running(cascade(), SimCost()) as (engine, _, _):
            caller = Caller()
            engine.open("s1", SETUP, caller).respond(ask("r1", "hello", audio=False))
            await caller.until("ended", "r1")
            assert engine.lag().sink_blocks == 1

    run_virtual(main(), 60)


def _pool(free: int, tokens: int, sessions: int) -> KvSnapshot:
    return KvSnapshot(32, 1000, free, tokens, sessions)


def test_the_wall_is_where_the_measured_growth_leads() -> None:
    """Free tokens over sessions times growth; joins and leaves do not count as growth."""
    wall = WallForecast()
    assert wall.seconds == inf
    for second in range(100):
        wall.observe(second, _pool(1000 - 10 * second // 32, 10 * second, 2))
    assert wall.seconds == pytest.approx((1000 - 990 // 32) * 32 / 10, rel=0.02)
    wall.observe(100, _pool(700, 6000, 4))  # two more came, with what they brought
    assert wall.seconds == pytest.approx(700 * 32 / 20, rel=0.02)
    for second in range(101, 1000):
        wall.observe(second, _pool(700, 6000, 4))
    assert wall.seconds > 1e6


def test_the_forecast_is_right_on_a_running_engine() -> None:
    """An unbounded call meets the wall when it was said it would, within 5 %; a bounded one never."""

    async def when_full(engine: Engine, caller: Caller, session: Session) -> float:
        talking = asyncio.create_task(speak(session, 5000))
        await caller.until("failed")
        talking.cancel()
        return asyncio.get_running_loop().time()

    async def main() -> None:
        backend = SimBackend(SimCost(fixed_s=0.01), total_blocks=40)
        policy = KvPolicy("unbounded")
        async with running(duplex(), backend=backend, policy=policy) as (engine, _, _):
            caller = Caller()
            full = asyncio.create_task(when_full(engine, caller, engine.open("s", SETUP, caller)))
            await asyncio.sleep(10)
            predicted = engine.wall_s
            assert await full - 10 == pytest.approx(predicted, rel=0.05)
            assert engine.faults.counts["append"] == 1
        async with running(duplex(), SimCost(fixed_s=0.01)) as (engine, _, _):
            await speak(engine.open("s", SETUP, Caller()), 100)
            assert engine.wall_s == inf

    run_virtual(main(), 600)


def test_silence_of_the_caller_is_not_staleness() -> None:
    """Whoever sends nothing waits for nothing."""

    async def main() -> None:
        async with running(cascade(), SimCost()) as (engine, _, _):
            session = engine.open("s1", SETUP, Caller())
            session.push_audio(silence(0.5), asyncio.get_running_loop().time())
            await asyncio.sleep(30)
            assert engine.lag().staleness_s == 0
            assert engine.lag().starved == 0

    run_virtual(main(), 60)
