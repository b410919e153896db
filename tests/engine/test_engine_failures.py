"""The engine on its bad days, in virtual time; and on its own thread, in real time that waits for nothing."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from support.sim_engine import Caller as Listener
from support.sim_engine import ask, cascade, duplex, running, silence

from engine.backend import Backend, EngineDead
from engine.clock import LoopClock
from engine.engine import Engine
from engine.executor import SimExecutor, ThreadExecutor
from engine.kv_policy import KvPolicy
from engine.models.base import SessionSetup
from engine.observer import NullObserver
from engine.pool import Pools
from engine.settings import EngineSettings
from engine.sim_backend import SimBackend, SimCost
from engine.virtual_time import run_virtual
from engine.work import StepResult, TickBatch

SETUP = SessionSetup(instructions="be brief")


def test_a_dead_engine_tells_every_session() -> None:
    """A step that raises EngineDead ends every call with an error, and `run` says why."""

    class Dying(SimBackend):
        def step(self, batch: TickBatch) -> StepResult:
            raise EngineDead("out of memory")

    async def main() -> None:
        caller, other = Listener(), Listener()
        async with running(cascade(), backend=Dying()) as (engine, _, _):
            engine.open("s2", SETUP, other)
            engine.open("s1", SETUP, caller).respond(ask("r1", "hello"))
            await caller.until("failed", "engine_unavailable")
            assert other.kinds() == ["failed"]
            assert not engine.alive
            with pytest.raises(EngineDead):
                engine.open("s3", SETUP, caller)

    with pytest.raises(EngineDead, match="out of memory"):
        run_virtual(main(), 300)


def test_a_voice_that_breaks_ends_its_session_only() -> None:
    """Other calls go on."""

    async def main() -> None:
        model = cascade()
        speak = model.speak
        model.speak = lambda text, voice, speed: (
            1 / 0 if voice == "broken" else speak(text, voice, speed)
        )  # type: ignore[method-assign,assignment,return-value]
        async with running(model) as (engine, _, _):
            caller, other = Listener(), Listener()
            engine.open("s1", SETUP, caller).respond(ask("r1", "hello", voice="broken"))
            engine.open("s2", SETUP, other).respond(ask("r2", "hello"))
            await caller.until("failed", "server_error")
            await other.until("ended", "r2", "completed")

    run_virtual(main(), 300)


def test_a_hanging_engine_is_stalled_within_two_ticks_and_ends_who_waits() -> None:
    """Ten seconds in one step: marked at once, misses counted, who waits is told, who does not is spared."""

    class Hanging(SimBackend):
        hung = False

        def step(self, batch: TickBatch) -> StepResult:
            hung = self.hung
            result, self.hung = super().step(batch), True
            return StepResult(result.chunks, 0.05 if hung else 10.0, result.kv)

    async def main() -> None:
        async with running(cascade(), backend=Hanging()) as (engine, recorder, _):
            waiting, idle = Listener(), Listener()
            engine.open("s2", SETUP, idle)
            engine.open("s1", SETUP, waiting).respond(ask("r1", "hello"))
            await asyncio.sleep(3 * 0.16 + 0.01)
            assert engine.stalled
            await asyncio.sleep(6)
            assert waiting.kinds()[-1] == "failed"
            assert idle.facts == []
            assert set(recorder.outcomes("speak")) == {"empty"}
            await asyncio.sleep(6)
            assert not engine.stalled

    run_virtual(main(), 300)


class Failing(SimBackend):
    """A plant whose next steps raise what `errors` holds."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__(SimCost(0.02))
        self.errors = list(errors)

    def step(self, batch: TickBatch) -> StepResult:
        if self.errors:
            raise self.errors.pop(0)
        return super().step(batch)


@pytest.mark.parametrize("error", [EngineDead("lost the GPU"), ValueError("a bug of the backend")])
def test_whatever_a_step_raises_is_the_engine_s_death(error: Exception) -> None:
    """Every call is told, the cause is named, and it is counted."""

    async def main() -> None:
        caller = Listener()
        engine = _engine(cascade(), SimExecutor(Failing(error), LoopClock()))
        await engine.start()
        running = asyncio.create_task(engine.run())
        await asyncio.sleep(0)
        engine.open("s1", SETUP, caller).respond(ask("r1", "hello"))
        with pytest.raises(EngineDead, match=str(error)):
            await running
        assert caller.kinds()[-1] == "failed"
        assert engine.faults.counts["death"] == 1
        await engine.stop()

    run_virtual(main(), 60)


def _engine(model: object, executor: object, **settings: float) -> Engine:
    return Engine(
        model,  # type: ignore[arg-type]
        executor,  # type: ignore[arg-type]
        LoopClock(),
        NullObserver(),
        EngineSettings(**settings),  # type: ignore[arg-type]
        KvPolicy(),
        Pools.inline(),
    )


def test_a_dead_engine_can_be_started_again() -> None:
    """The same Engine with a new backend: nothing of the old calls is left, and new ones are served."""

    async def main() -> None:
        backend = Failing(EngineDead("once"), EngineDead("twice"))
        engine = _engine(cascade(), SimExecutor(backend, LoopClock()))
        await engine.start()
        for name in ("s1", "s2"):
            running = asyncio.create_task(engine.run())
            await asyncio.sleep(0)
            caller = Listener()
            engine.open(name, SETUP, caller).respond(ask("r1", "hello"))
            with pytest.raises(EngineDead):
                await running
            assert caller.kinds()[-1] == "failed"
            kv = await engine.restart()
            assert kv.held_blocks == 0
            assert engine.alive
            assert engine.snapshot().sessions == 0
        running = asyncio.create_task(engine.run())
        await asyncio.sleep(0)
        caller = Listener()
        engine.open("s3", SETUP, caller).respond(ask("r1", "hello"))
        await caller.until("ended", "r1", "completed")
        assert engine.faults.counts["death"] == 2
        engine.request_stop()
        await running
        await engine.stop()

    run_virtual(main(), 60)


def test_an_engine_that_cannot_be_started_again_says_why() -> None:
    """Whatever building a backend raises."""

    async def main() -> None:
        class Broken(SimExecutor):
            async def shutdown(self) -> None:
                raise RuntimeError("the driver is gone")

        engine = _engine(cascade(), Broken(SimBackend(), LoopClock()))
        await engine.start()
        with pytest.raises(EngineDead, match="the driver is gone"):
            await engine.restart()

    run_virtual(main(), 60)


def test_an_engine_that_never_moves_again_is_dead() -> None:
    """Past the hang limit nobody waits for it any more."""

    class Hanging(SimBackend):
        def step(self, batch: TickBatch) -> StepResult:
            result = super().step(batch)
            return StepResult(result.chunks, 1e6, result.kv)

    async def main() -> None:
        engine = _engine(cascade(), SimExecutor(Hanging(), LoopClock()))
        await engine.start()
        running = asyncio.create_task(engine.run())
        await asyncio.sleep(0)
        idle = Listener()
        engine.open("s1", SETUP, Listener()).respond(ask("r1", "hello"))
        engine.open("s2", SETUP, idle)
        with pytest.raises(EngineDead, match="nothing has moved for 120 s"):
            await running
        assert 120 < asyncio.get_running_loop().time() < 121
        assert idle.kinds() == ["failed"]
        assert engine.is_hung
        await engine.stop()

    run_virtual(main(), 300)


def _breaking_decode(model: object, voice: Callable[[], bool]) -> None:
    decode = model.decode  # type: ignore[attr-defined]
    model.decode = lambda *args: 1 / 0 if voice() else decode(*args)  # type: ignore[attr-defined]


def test_tokens_that_cannot_be_taken_end_their_session_only() -> None:
    """The step loop goes on for the others."""

    async def main() -> None:
        model = cascade()
        broken = True
        _breaking_decode(model, lambda: broken)
        async with running(model) as (engine, _, plant):
            caller, other = Listener(), Listener()
            engine.open("s1", SETUP, caller).respond(ask("r1", "hello"))
            await caller.until("failed", "server_error")
            broken = False
            engine.open("s2", SETUP, other).respond(ask("r2", "hello"))
            await other.until("ended", "r2", "completed")
            assert engine.faults.counts["session"] == 1
            engine.close("s1")
            engine.close("s2")
            await asyncio.sleep(1)
            assert plant.snapshot().held_blocks == 0

    run_virtual(main(), 60)


@pytest.mark.parametrize("method", ["heard", "next_frame", "beat"])
def test_a_session_that_breaks_on_the_loop_ends_alone(method: str) -> None:
    """Whether it is heard, asked for its next frame, or judged by the beat."""

    async def main() -> None:
        async with running(cascade()) as (engine, _, _):
            caller, other = Listener(), Listener()
            session = engine.open("s1", SETUP, caller)
            engine.open("s2", SETUP, other)
            setattr(session, method, lambda *args: 1 / 0)
            session.push_audio(silence(0.16), asyncio.get_running_loop().time())
            await caller.until("failed", "server_error")
            await asyncio.sleep(1)
            assert other.facts == []
            assert engine.alive

    run_virtual(main(), 60)


# -- on its own thread ------------------------------------------------------------------


class Gated(SimBackend):
    """A plant that, once `gate` is cleared, hangs in its next step until it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def step(self, batch: TickBatch) -> StepResult:
        assert self.gate.wait(10)
        return super().step(batch)


def _threaded(backends: list[Backend], **settings: float) -> Engine:
    return _engine(duplex(tick_ms=20), ThreadExecutor(lambda: backends.pop(0)), **settings)


FRAME = bytes(2 * 480)


def test_a_thread_that_raises_is_a_death_and_a_new_one_serves() -> None:
    """`restart` builds a new backend on a new thread."""

    async def main() -> None:
        engine = _threaded([Failing(RuntimeError("illegal memory access")), SimBackend()])
        await engine.start()
        for outcome in ("failed", "spoke"):
            life = asyncio.create_task(engine.run())
            await asyncio.sleep(0)
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            session.push_audio(FRAME, asyncio.get_running_loop().time())
            await caller.until(outcome)
            if outcome == "failed":
                with pytest.raises(EngineDead, match="illegal memory access"):
                    await life
                await engine.restart()
        engine.request_stop()
        await life
        await engine.stop()

    asyncio.run(main())


def test_a_thread_that_hangs_is_seen_by_the_loop_and_may_recover() -> None:
    """Stalled at once, the waiting call ended; when the step returns after all, the next call is served."""

    async def main() -> None:
        backend = Gated()
        engine = _threaded([backend], stall_limit_s=0.06)
        await engine.start()
        life = asyncio.create_task(engine.run())
        await asyncio.sleep(0)
        waiting, idle = Listener(), Listener()
        engine.open("idle", SETUP, idle)
        session = engine.open("s1", SETUP, waiting)
        backend.gate.clear()
        session.push_audio(FRAME, asyncio.get_running_loop().time())
        await waiting.until("failed", "engine_stalled")
        assert engine.stalled
        assert idle.facts == []
        backend.gate.set()
        session = engine.open("s2", SETUP, waiting)
        session.push_audio(FRAME, asyncio.get_running_loop().time())
        await waiting.until("spoke")
        engine.request_stop()
        await life
        await engine.stop()
        assert not engine.is_hung

    asyncio.run(main())


def test_a_thread_that_hangs_for_good_is_left_behind() -> None:
    """Neither a restart nor the end waits for it."""

    async def main() -> None:
        hanging = Gated()
        engine = _threaded([hanging, SimBackend()], stall_limit_s=0.03, hang_limit_s=0.06)
        await engine.start()
        hanging.gate.clear()
        life = asyncio.create_task(engine.run())
        await asyncio.sleep(0)
        caller = Listener()
        engine.open("s1", SETUP, caller).push_audio(FRAME, asyncio.get_running_loop().time())
        with pytest.raises(EngineDead, match="nothing has moved"):
            await life
        assert engine.is_hung
        await engine.restart()
        life = asyncio.create_task(engine.run())
        await asyncio.sleep(0)
        engine.open("s2", SETUP, caller).push_audio(FRAME, asyncio.get_running_loop().time())
        await caller.until("spoke")
        engine.request_stop()
        await life
        await engine.stop()
        hanging.gate.set()  # lets the thread end

    asyncio.run(main())


def test_an_ear_that_hangs_is_a_stall_as_well() -> None:
    """Nobody is heard: stalled, and the call whose audio waits is ended."""

    async def main() -> None:
        engine = _engine(duplex(), SimExecutor(SimBackend(), LoopClock()))
        await engine.start()
        life = asyncio.create_task(engine.run())
        await asyncio.sleep(0)

        async def never(*args: object) -> None:
            await asyncio.Event().wait()

        engine._ear._pool.run = never  # type: ignore[method-assign,assignment]
        caller = Listener()
        engine.open("s1", SETUP, caller).push_audio(bytes(3840), 0.0)
        await asyncio.sleep(0.3)
        assert engine.stalled
        await caller.until("failed", "engine_stalled")
        with pytest.raises(EngineDead):
            await life
        await engine.stop()

    run_virtual(main(), 300)
