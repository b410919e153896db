"""A frame-locked call that begins with a prompt, on the simulated plant: before the first frame, and never after."""

import asyncio

from support.sim_engine import Caller, running, silence, stream, until_quiet

from engine.models.base import AudioChunk, SessionSetup
from engine.models.sim import SimDuplex, SimDuplexSettings
from engine.sim_backend import SimBackend, SimCost
from engine.virtual_time import run_virtual
from engine.work import Append, StepResult, TickBatch


class Prompted(SimDuplex):
    """A token per letter of the instructions."""

    def __init__(self) -> None:
        super().__init__(SimDuplexSettings(prefill_per_tick=2))
        spec = self.spec
        self.spec = type(spec)(
            spec.id,
            spec.tick_ms,
            spec.input_rate,
            spec.output_rate,
            1,
            decides_turns=True,
            hears_inline=True,
            prompted=True,
        )
        self.role = ""

    def open(self, setup: SessionSetup) -> SessionSetup:  # type: ignore[override]
        self.role = setup.instructions
        return setup

    def configure(self, state: object, setup: SessionSetup) -> None:  # type: ignore[override]
        self.role = setup.instructions

    def opening(self, state: object) -> AudioChunk | None:
        return AudioChunk(tuple(map(ord, self.role)), 1) if self.role else None


class Plant(SimBackend):
    """Notes what is appended and closed; a step takes 50 ms."""

    def __init__(self, *, full: bool = False) -> None:
        super().__init__(SimCost(0.05, 0.0, 0.0, 0.0), **({"max_context": 4} if full else {}))
        self.appends: list[Append] = []
        self.closes: list[str] = []

    def step(self, batch: TickBatch) -> StepResult:
        self.appends += batch.appends
        self.closes += batch.closes
        return super().step(batch)


def told(plant: Plant) -> list[tuple[str, int]]:
    """(lane, tokens) of every append."""
    return [(append.session_id, len(append.token_ids)) for append in plant.appends]


def test_the_prompt_comes_before_the_first_frame() -> None:
    """It is begun when the call is opened; frames that come meanwhile wait for it, none is lost."""

    async def main() -> None:
        plant = Plant()
        async with running(Prompted(), backend=plant) as (engine, recorder, _):
            session = engine.open("s1", SessionSetup(instructions="be kind"), Caller())
            session.push_audio(silence(0.24), asyncio.get_running_loop().time())
            await until_quiet()
            engine.close("s1")
        assert told(plant) == [("s1", 7), ("s1", 2), ("s1", 2), ("s1", 2)]
        assert sum(recorder.outcomes("frame").values()) == 3

    run_virtual(main(), 60)


def test_new_settings_before_the_first_frame_prompt_anew() -> None:
    """In a fresh context; the old one is freed, also where its prompt was still under way."""

    async def main() -> None:
        plant = Plant()
        async with running(Prompted(), backend=plant) as (engine, _, _):
            session = engine.open("s1", SessionSetup(instructions="be kind"), Caller())
            await asyncio.sleep(0.02)
            session.configure(SessionSetup(instructions="be brief"))
            session.configure(SessionSetup(instructions="be brief"))
            await stream(session, silence(0.16))
            await until_quiet()
            engine.close("s1")
            await until_quiet()
        assert told(plant) == [("s1", 7), ("s1/1", 8), ("s1/1", 2), ("s1/1", 2)]
        assert plant.closes == ["s1", "s1/1"]

    run_virtual(main(), 60)


def test_instructions_that_are_taken_back_leave_no_prompt() -> None:
    """The call begins with its first frame."""

    async def main() -> None:
        plant = Plant()
        async with running(Prompted(), backend=plant) as (engine, _, _):
            session = engine.open("s1", SessionSetup(instructions="be kind"), Caller())
            await until_quiet()
            session.configure(SessionSetup())
            await stream(session, silence(0.08))
            await until_quiet()
            engine.close("s1")
        assert told(plant) == [("s1", 7), ("s1/1", 2)]

    run_virtual(main(), 60)


def test_new_settings_do_not_reach_a_call_in_progress() -> None:
    """Its context is what it is."""

    async def main() -> None:
        plant = Plant()
        async with running(Prompted(), backend=plant) as (engine, _, _):
            session = engine.open("s1", SessionSetup(), Caller())
            await stream(session, silence(0.08))
            await until_quiet()
            session.configure(SessionSetup(instructions="be kind"))
            await stream(session, silence(0.08))
            await until_quiet()
            engine.close("s1")
        assert told(plant) == [("s1", 2), ("s1", 2)]

    run_virtual(main(), 60)


def test_a_prompt_that_is_refused_ends_the_call_with_a_reason() -> None:
    """Too long, or a voice that is not there."""

    async def main() -> None:
        async with running(Prompted(), backend=Plant(full=True)) as (engine, _, _):
            caller = Caller()
            engine.open("s1", SessionSetup(instructions="be kind"), caller)
            assert await caller.until("failed") == ("failed", "prompt_refused")

    run_virtual(main(), 60)
