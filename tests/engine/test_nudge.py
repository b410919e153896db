"""An answer asked of a frame-locked model: it speaks when it decides to, and the answer is over either way."""

import asyncio

from support.sim_engine import Caller, ask, running, silence, stream

from engine.models.base import SessionSetup, TickOutput
from engine.models.sim import SimDuplex, SimDuplexSettings
from engine.settings import EngineSettings
from engine.virtual_time import run_virtual

SETUP = SessionSetup()
WAIT_S = EngineSettings().nudge_s


class Scripted(SimDuplex):
    """Speaks in the ticks that its script has a "#" for."""

    def __init__(self, script: str) -> None:
        super().__init__(SimDuplexSettings(tick_ms=80))
        self._script = list(script)
        self.nudged = 0

    def begin(self, state: object) -> None:  # type: ignore[override]
        self.nudged += 1

    def decode(self, state: object, token_ids: object, pcm: bytes = b"") -> TickOutput:  # type: ignore[override]
        speaks = bool(self._script) and self._script.pop(0) == "#"
        return self._output if speaks else TickOutput(speaking=False)


def test_an_answer_that_never_comes_is_over_after_a_while() -> None:
    """With nothing said; also where the caller's audio has stopped, and with it the model's time."""

    async def main() -> None:
        model, caller = Scripted(""), Caller()
        async with running(model) as (engine, _, _):
            session = engine.open("s1", SETUP, caller)
            session.respond(ask("r1", "hello"))
            await asyncio.sleep(WAIT_S - 0.1)
            assert caller.facts == []
            assert (await caller.until("ended", "r1"))[2] == "completed"
            assert model.nudged == 1
            engine.close("s1")

    run_virtual(main(), 60)


def test_an_answer_that_comes_is_ended_by_silence_alone() -> None:
    """The model has spoken in it: the protocol closes it when it falls silent, and nothing else does."""

    async def main() -> None:
        caller = Caller()
        async with running(Scripted("...###...")) as (engine, _, _):
            session = engine.open("s1", SETUP, caller)
            session.respond(ask("r1", "hello"))
            await stream(session, silence(WAIT_S + 1))
            assert caller.kinds() == [*["spoke"] * 3, "fell_silent"]
            engine.close("s1")

    run_virtual(main(), 60)


def test_what_was_cancelled_is_no_answer() -> None:
    """The model goes on with what the client has cancelled; the answer asked for meanwhile still waits, and ends."""

    async def main() -> None:
        caller = Caller()
        async with running(Scripted("#" * 20)) as (engine, _, _):
            session = engine.open("s1", SETUP, caller)
            await stream(session, silence(0.4))
            session.cancel("r0")
            session.respond(ask("r1", "hello"))
            await stream(session, silence(WAIT_S + 1))
            assert caller.ended("r1") is not None
            engine.close("s1")

    run_virtual(main(), 60)


def test_a_cancelled_answer_is_not_ended_again() -> None:
    """Nothing of it follows."""

    async def main() -> None:
        caller = Caller()
        async with running(Scripted("")) as (engine, _, _):
            session = engine.open("s1", SETUP, caller)
            session.respond(ask("r1", "hello"))
            session.cancel("r1")
            await asyncio.sleep(WAIT_S + 1)
            assert caller.facts == []
            engine.close("s1")

    run_virtual(main(), 60)


def test_there_is_no_answer_beside_the_conversation() -> None:
    """An out-of-band response fails at once, with a reason."""

    async def main() -> None:
        caller = Caller()
        async with running(Scripted("")) as (engine, _, _):
            session = engine.open("s1", SETUP, caller)
            session.respond(ask("r1", "hello", out_of_band=True))
            assert caller.facts[0][:3] == ("ended", "r1", "failed")
            engine.close("s1")

    run_virtual(main(), 60)
