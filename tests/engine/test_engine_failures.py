"""The engine on its bad days, in virtual time."""

import asyncio

import pytest
from support.sim_engine import Caller as Listener
from support.sim_engine import ask, cascade, running

from engine.backend import EngineDead
from engine.models.base import SessionSetup
from engine.sim_backend import SimBackend
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
