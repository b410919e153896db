"""The whole engine with a frame-locked transcriber, in virtual time: every item gets the words of its own turn."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from support.sim_engine import Caller as Listener
from support.sim_engine import running, silence, stream, tone

from engine.bystander import Bystander
from engine.models.base import Heard, SessionSetup, TickOutput, TurnDetection
from engine.models.tekken import StreamingAudio
from engine.models.turn_hearing import TurnHearing
from engine.models.voxtral import KvSpace, VoxtralRealtime
from engine.response import ResponseRequest
from engine.sim_backend import SimCost
from engine.speech.sim import DurationTranscriber, EnergyVad
from engine.transcribing_session import LONGEST_WORD_MS, TranscribingSession
from engine.virtual_time import run_virtual

SETUP = SessionSetup()
PUSH_TO_TALK = SessionSetup(turn_detection=TurnDetection(enabled=False))
BEHIND_S = 0.48


class Tokens:
    """As much of a tokenizer as there is to know."""

    audio = StreamingAudio(1280, 840, 40, left_pad=32, delay=6)

    def special(self, name: str) -> int:
        return {"<s>": 1, "[STREAMING_PAD]": 2}[name]

    def __getitem__(self, token: int) -> bytes:
        return b""


class Scribe(VoxtralRealtime):
    """Writes one word for every sound, when its first 80 ms are six ticks ago: " w1", " w2" …"""

    def __init__(self) -> None:
        super().__init__("scribe", Tokens(), (0,), KvSpace(400))  # type: ignore[arg-type]

    def open(self, setup: SessionSetup) -> Any:
        state: Any = super().open(setup)
        state.loud, state.written, state.words = [False], 0, 0
        return state

    def hear(self, batch: Sequence[tuple[Any, bytes]]) -> list[Heard]:
        for state, pcm in batch:
            loud = np.abs(np.frombuffer(pcm, "<i2").astype(int)).mean() > 1000
            state.loud.append(bool(loud))
        return super().hear(batch)

    def decode(self, state: Any, token_ids: Sequence[int], pcm: bytes = b"") -> TickOutput:
        super().decode(state, token_ids)
        state.written += 1
        begins = state.loud[state.written] and not state.loud[state.written - 1]
        state.words += begins
        return TickOutput(
            f" w{state.words}" if begins else "", begins, turn_over=not state.loud[state.written]
        )


def beside(*, detects: bool = True) -> Bystander:
    return Bystander(TurnHearing(EnergyVad(), DurationTranscriber()), detects, False)


class Client(Listener):
    """Commits what is found to be a turn, as the protocol does."""

    def __init__(self) -> None:
        super().__init__()
        self.session: Any = None
        self.times: dict[str, float] = {}

    def speech_stopped(self, audio_ms: int) -> None:
        super().speech_stopped(audio_ms)
        self.session.commit(f"u{self.kinds().count('speech_stopped')}")

    def transcribed(self, item_id: str, text: str, seconds: float, tokens: Any = ()) -> None:
        super().transcribed(item_id, text, seconds, tokens)
        self.times[item_id] = asyncio.get_running_loop().time()


def opened(engine: Any, setup: SessionSetup = SETUP) -> tuple[Client, TranscribingSession]:
    client = Client()
    session = client.session = engine.open("s1", setup, client)
    assert isinstance(session, TranscribingSession)
    return client, session


def test_each_turn_has_its_own_words() -> None:
    """They are told once the turn is over, with nothing of the next."""

    async def main() -> None:
        async with running(Scribe(), bystander=beside()) as (engine, _, _):
            client, session = opened(engine)
            turn = tone(0.5) + silence(0.2) + tone(0.5) + silence(1.5)
            await stream(session, silence(0.4) + turn + tone(0.6) + silence(2.0))
            assert ("transcribed", "u1", "w1 w2") in client.facts
            assert ("transcribed", "u2", "w3") in client.facts

    run_virtual(main(), 300)


def test_no_word_is_left_out_however_late() -> None:
    """Ticks take longer than their period: a model that converses would skip some, a transcriber hears them all."""

    async def main() -> None:
        async with running(Scribe(), SimCost(fixed_s=0.1), bystander=beside()) as (
            engine,
            recorder,
            _,
        ):
            client, session = opened(engine)
            await stream(session, silence(0.4) + tone(0.5) + silence(2.0))
            await client.until("transcribed", "u1")
            assert ("transcribed", "u1", "w1") in client.facts
            assert set(recorder.outcomes("frame")) <= {"on_time", "late"}
            assert recorder.outcomes("frame")["late"] > 0

    run_virtual(main(), 300)


def test_words_come_as_soon_as_they_are_there() -> None:
    """The turn's end is decided half a second after the sound, and meanwhile most of the words' delay has passed."""

    async def main() -> None:
        async with running(Scribe(), bystander=beside()) as (engine, _, _):
            client, session = opened(engine)
            loop = asyncio.get_running_loop()
            await stream(session, silence(0.4) + tone(0.5))
            spoken_at = loop.time()
            await stream(session, silence(2.0))
            assert client.times["u1"] - spoken_at < 0.5 + BEHIND_S

    run_virtual(main(), 300)


def test_a_commit_brings_the_words_of_all_that_was_said() -> None:
    """Though the client sends nothing after it: silence is heard instead, faster than it would pass."""

    async def main() -> None:
        async with running(Scribe(), bystander=beside()) as (engine, _, _):
            client, session = opened(engine, PUSH_TO_TALK)
            await stream(session, tone(0.5) + silence(0.3) + tone(0.5))
            loop = asyncio.get_running_loop()
            committed_at = loop.time()
            session.commit("u1")
            await client.until("transcribed", "u1")
            assert ("transcribed", "u1", "w1 w2") in client.facts
            assert client.times["u1"] - committed_at < BEHIND_S + LONGEST_WORD_MS / 1000
            await stream(session, tone(0.5))
            session.commit("u2")
            assert (await client.until("transcribed", "u2"))[2] == "w3"

    run_virtual(main(), 300)


def test_a_client_that_sends_no_more_gets_the_words_too() -> None:
    """A recording, sent at once, whose end is hardly longer than what ends a turn."""

    async def main() -> None:
        async with running(Scribe(), bystander=beside()) as (engine, _, _):
            client, session = opened(engine)
            now = asyncio.get_running_loop().time()
            session.push_audio(silence(0.4) + tone(0.8) + silence(0.56), now)
            assert (await client.until("transcribed", "u1"))[2] == "w1"
            await stream(session, tone(0.5) + silence(1.5))
            assert ("transcribed", "u2", "w2") in client.facts

    run_virtual(main(), 300)


def test_without_anybody_beside_commits_make_items() -> None:
    """A deployment with no voice activity detection."""

    async def main() -> None:
        async with running(Scribe()) as (engine, _, _):
            client, session = opened(engine)
            await stream(session, silence(0.3) + tone(0.5))
            session.commit("u1")
            assert (await client.until("transcribed", "u1"))[2] == "w1"

    run_virtual(main(), 300)


def test_cleared_audio_has_no_words() -> None:
    """Neither those that were written nor those that were still to come."""

    async def main() -> None:
        async with running(Scribe(), bystander=beside()) as (engine, _, _):
            client, session = opened(engine, PUSH_TO_TALK)
            await stream(session, tone(0.5) + silence(0.5) + tone(0.3) + silence(0.1))
            session.clear_audio()
            await stream(session, silence(0.4) + tone(0.5))
            session.commit("u1")
            assert (await client.until("transcribed", "u1"))[2] == "w3"

    run_virtual(main(), 300)


def test_a_call_goes_on_past_what_its_context_holds() -> None:
    """A word said where the context ends is written once."""

    async def main() -> None:
        async with running(Scribe(), bystander=beside()) as (engine, _, plant):
            client, session = opened(engine)
            sound = (tone(0.5) + silence(1.5)) * 20  # 500 ticks; the context holds 361
            await stream(session, silence(0.4) + sound)
            words = [fact[2] for fact in client.facts if fact[0] == "transcribed"]
            assert words == [f"w{n}" for n in range(1, 21)]
            assert plant.snapshot().resident_tokens < 400

    run_virtual(main(), 300)


def test_it_answers_nothing() -> None:
    """A response that is asked for ends at once, and says why."""

    async def main() -> None:
        async with running(Scribe(), bystander=beside()) as (engine, _, _):
            client, session = opened(engine)
            session.respond(ResponseRequest("r1", "", ()))
            ended = await client.until("ended", "r1")
            assert ended[2] == "failed"
            assert ended[4] == "This model transcribes; it gives no answers."

    run_virtual(main(), 300)
