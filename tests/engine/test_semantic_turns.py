"""Turns that end by their words, and sounds that are no turns: the whole engine in virtual time."""

import asyncio

from support.sim_engine import Caller, ask, cascade, running, silence, stream, tone

from engine.models.base import SessionSetup, TurnDetection, Utterance
from engine.models.cascade import Cascade
from engine.virtual_time import run_virtual

SETUP = SessionSetup(turn_detection=TurnDetection(eagerness="auto"))


def _understanding(*words: str) -> Cascade:
    """A cascade whose transcriber hears these, one after the other."""
    model, heard = cascade(), list(words)

    def transcribe(utterance: Utterance) -> str:
        return heard.pop(0) if len(heard) > 1 else heard[0]

    model.transcribe = transcribe  # type: ignore[method-assign]
    return model


async def _waited(words: str) -> float:
    """Seconds from the end of speech to the decision that the turn is over."""
    async with running(_understanding(words)) as (engine, _, _):
        caller, loop = Caller(), asyncio.get_running_loop()
        session = engine.open("s1", SETUP, caller)
        began = loop.time()

        async def decision() -> float:
            await caller.until("speech_stopped")
            return loop.time()

        _, decided = await asyncio.gather(
            stream(session, silence(0.48) + tone(0.96) + silence(3.0)), decision()
        )
        engine.close("s1")
        return decided - began - 1.44


def test_a_whole_sentence_is_answered_sooner_than_one_that_broke_off() -> None:
    """By their words alone: the sound is the same."""

    async def main() -> None:
        assert await _waited("What time is it?") < 0.9
        assert 1.9 < await _waited("I would like to book a") < 2.4

    run_virtual(main(), 60)


def test_a_caller_who_goes_on_after_an_unfinished_sentence_says_one_turn() -> None:
    """A second's pause for thought does not end it."""

    async def main() -> None:
        model = _understanding("I would like to book a", "I would like to book a table.")
        async with running(model) as (engine, _, _):
            caller = Caller()
            session = engine.open("s1", SETUP, caller)
            pcm = tone(0.8) + silence(1.0) + tone(0.8) + silence(1.5)
            await stream(session, silence(0.5) + pcm)
            await caller.until("speech_stopped")
            assert caller.kinds().count("speech_started") == 1
            assert caller.kinds().count("speech_stopped") == 1
            engine.close("s1")

    run_virtual(main(), 60)


def _spoken_over(seconds: float, words: str) -> list[object]:
    """What is told of speech while a long answer is being given."""
    told: list[object] = []

    async def main() -> None:
        async with running(_understanding(words)) as (engine, _, _):
            caller = Caller()
            session = engine.open("s1", SETUP, caller)
            session.respond(ask("r1", "tell me everything about the harbour and the sea"))
            await caller.until("audio", "r1")
            await stream(session, silence(0.3) + tone(seconds) + silence(1.0))
            told.extend(kind for kind in caller.kinds() if str(kind).startswith("speech"))
            engine.close("s1")

    run_virtual(main(), 300)
    return told


def test_a_backchannel_does_not_interrupt() -> None:
    """Neither its start nor its end is told."""
    assert _spoken_over(0.4, "Yeah.") == []


def test_a_short_word_that_wants_the_floor_does() -> None:
    """It is told late, when it is known, and is a turn like any other."""
    assert _spoken_over(0.4, "Stop.") == ["speech_started", "speech_stopped"]


def test_long_speech_does_whatever_it_says() -> None:
    """Nobody waits for its words."""
    assert _spoken_over(1.5, "Yeah.") == ["speech_started", "speech_stopped"]
