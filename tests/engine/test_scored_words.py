"""Transcripts with probabilities: worked out for sessions that want them, and for no other."""

from support.sim_engine import Caller, cascade, running, silence, stream, tone

from engine.models.base import SessionSetup
from engine.models.cascade import Cascade, CascadeParts
from engine.models.sim import SimChat
from engine.speech.ports import Samples, ScoredToken, Transcript
from engine.speech.sim import EnergyVad, ToneVoice
from engine.virtual_time import run_virtual

TOKENS = (ScoredToken("Good", b"Good", -0.1), ScoredToken(" day", b" day", -1.5))


class Ears:
    """A transcriber that notes how it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def transcribe(self, samples: Samples) -> str:
        self.asked.append("plain")
        return "Good day"

    def scored(self, samples: Samples) -> Transcript:
        self.asked.append("scored")
        return Transcript("Good day", TOKENS)


async def _one_turn(setup: SessionSetup, ears: Ears) -> Caller:
    model = Cascade(cascade().spec, CascadeParts(EnergyVad(), ears, SimChat(), ToneVoice()))
    async with running(model) as (engine, _, _):
        caller = Caller()
        session = engine.open("s1", setup, caller)
        await stream(session, silence(0.48) + tone(0.96) + silence(1.5))
        session.commit("item_1")
        await caller.until("transcribed", "item_1", "Good day")
        engine.close("s1")
    return caller


def test_a_session_that_wants_probabilities_is_told_them() -> None:
    """With the transcript, for each of its tokens; speculation in the pause asks the same way."""

    async def main() -> None:
        ears = Ears()
        caller = await _one_turn(SessionSetup(scores_words=True), ears)
        assert caller.tokens == {"item_1": TOKENS}
        assert set(ears.asked) == {"scored"}

    run_virtual(main(), 60)


def test_nobody_pays_for_probabilities_that_nobody_wants() -> None:
    """By default the transcriber is asked for words alone."""

    async def main() -> None:
        ears = Ears()
        caller = await _one_turn(SessionSetup(), ears)
        assert caller.tokens == {"item_1": ()}
        assert set(ears.asked) == {"plain"}

    run_virtual(main(), 60)


def test_a_transcriber_without_probabilities_gives_words_alone() -> None:
    """Asking for them where there are none is no mistake."""

    async def main() -> None:
        async with running(cascade()) as (engine, _, _):
            caller = Caller()
            session = engine.open("s1", SessionSetup(scores_words=True), caller)
            await stream(session, silence(0.48) + tone(0.96) + silence(1.5))
            session.commit("item_1")
            await caller.until("transcribed", "item_1", "speech lasting one point zero seconds")
            assert caller.tokens == {"item_1": ()}
            engine.close("s1")

    run_virtual(main(), 60)
