"""A frame-locked model that writes, in virtual time: its words are spoken off the beat."""

import asyncio

from support.sim_engine import RATE, running, silence, stream
from support.sim_engine import Caller as Listener

from engine.models.base import SessionSetup, TickOutput
from engine.models.sim import SimDuplex, SimDuplexSettings
from engine.speech.sim import ToneVoice
from engine.virtual_time import run_virtual

SETUP = SessionSetup()
TICK_MS = 200


class Writer(SimDuplex):
    """Says what a script has for each tick, then listens."""

    def __init__(self, *script: TickOutput) -> None:
        super().__init__(SimDuplexSettings(tick_ms=TICK_MS))
        spec = self.spec
        self.spec = type(spec)(
            spec.id, spec.tick_ms, RATE, ToneVoice().rate, 1, decides_turns=True, writes=True
        )
        self.script = list(script)
        self.spoken: list[str] = []

    def decode(self, state: object, token_ids: object, pcm: bytes = b"") -> TickOutput:  # type: ignore[override]
        return self.script.pop(0) if self.script else TickOutput(speaking=False)

    def speak(self, text: str, voice: str, speed: float) -> bytes:
        self.spoken.append(text)
        return ToneVoice().speak(text, voice, speed)


async def hear_out(model: Writer, caller: Listener, ticks: int) -> None:
    async with running(model) as (engine, _, _):
        session = engine.open("s1", SETUP, caller)
        await stream(session, silence(ticks * TICK_MS / 1000))
        await asyncio.sleep(1)
        engine.close("s1")


def test_what_it_writes_is_heard_and_the_turn_ends_after_it() -> None:
    """Clauses are cut across ticks, and the end is told after the last of them was spoken."""
    caller = Listener()
    model = Writer(
        TickOutput(speaking=False),
        TickOutput("Good mor"),
        TickOutput("ning to you all. And"),
        TickOutput(" good night.", turn_over=True),
    )
    run_virtual(hear_out(model, caller, 8), 60)
    assert " ".join(text.strip() for text in model.spoken) == (
        "Good morning to you all. And good night."
    )
    assert len(model.spoken) > 1
    kinds = caller.kinds()
    assert kinds.count("fell_silent") == 1
    assert kinds[-1] == "fell_silent"
    assert all(size > 0 for kind, *sizes in caller.facts if kind == "spoke" for size in sizes)


def test_a_turn_that_just_stops_ends_too() -> None:
    """The model listens again without having said that it was done."""
    caller = Listener()
    run_virtual(hear_out(Writer(TickOutput("Well then")), caller, 4), 60)
    assert caller.kinds()[-1] == "fell_silent"


def test_a_tick_without_words_makes_no_sound() -> None:
    """Nor does it end anything."""
    caller = Listener()
    model = Writer(
        TickOutput("One moment, please. "), TickOutput(""), TickOutput("Here.", turn_over=True)
    )
    run_virtual(hear_out(model, caller, 6), 60)
    assert "".join(model.spoken) == "One moment, please. Here."
    assert caller.kinds().count("fell_silent") == 1


def test_what_was_cancelled_is_not_spoken() -> None:
    """The clause being made is thrown away; silence is still told when the turn is over."""
    caller = Listener()
    model = Writer(
        TickOutput("This is the first sentence. And more "), TickOutput("to come.", turn_over=True)
    )

    async def main() -> None:
        async with running(model) as (engine, _, _):
            session = engine.open("s1", SETUP, caller)
            made = model.speak

            def cancelled_meanwhile(text: str, voice: str, speed: float) -> bytes:
                session.cancel("r1")
                return made(text, voice, speed)

            model.speak = cancelled_meanwhile  # type: ignore[method-assign]
            await stream(session, silence(1.0))
            await caller.until("fell_silent")
            engine.close("s1")

    run_virtual(main(), 60)
    assert "spoke" not in caller.kinds()
