"""What clients are told of the caller of a frame-locked model: turns and words, found beside it."""

import asyncio
from collections.abc import Sequence

import pytest
from support.sim_engine import RATE, Caller, duplex, running, silence, stream, tone, until_quiet

from engine.backend import EngineDead
from engine.bystander import NO_TRANSCRIBER, Bystander
from engine.engine import Engine
from engine.frame_session import FrameSession
from engine.models.base import Heard, SessionSetup, TurnDetection
from engine.models.caller_turns import CallerTurns
from engine.models.turn_hearing import TurnHearing
from engine.overhearing import BACKLOG_S
from engine.session import Session
from engine.settings import EngineSettings
from engine.speech.ports import Samples
from engine.speech.sim import DurationTranscriber, EnergyVad
from engine.virtual_time import run_virtual

SETUP = SessionSetup()
PUSH_TO_TALK = SessionSetup(turn_detection=TurnDetection(enabled=False))


class Client(Caller):
    """Commits a turn when told that it is over, as the protocol does."""

    session: Session

    def speech_stopped(self, audio_ms: int) -> None:
        super().speech_stopped(audio_ms)
        assert self.session.commit(f"turn{self.kinds().count('speech_stopped')}")


def bystander(*, detects: bool = True, transcribes: bool = True) -> Bystander:
    return Bystander(TurnHearing(EnergyVad(), DurationTranscriber()), detects, transcribes)


def opened(engine: Engine, setup: SessionSetup = SETUP, name: str = "s1") -> tuple[Client, Session]:
    client = Client()
    client.session = engine.open(name, setup, client)
    return client, client.session


def told(client: Caller) -> list[tuple[object, ...]]:
    """Everything but what the model said."""
    return [fact for fact in client.facts if fact[0] not in ("spoke", "fell_silent")]


def test_turns_are_told_and_transcribed() -> None:
    """Speech started, stopped, and its words; the model speaks on, and nobody is asked for an answer."""

    async def main() -> None:
        async with running(duplex(), bystander=bystander()) as (engine, recorder, _):
            client, session = opened(engine)
            await stream(session, silence(1) + tone(1) + silence(1))
            await client.until("transcribed")
            engine.close("s1")
        assert told(client) == [
            ("speech_started", 692),
            ("speech_stopped", 2016),
            ("transcribed", "turn1", "speech lasting one point zero seconds"),
        ]
        assert recorder.outcomes("frame") == {"on_time": 37}  # of 80 ms, in 3 s

    run_virtual(main(), 60)


def test_each_call_has_its_own_turns() -> None:
    """Three callers, heard in the same batches, out of step: each is told of itself."""

    async def one(engine: Engine, name: str, starts_s: float) -> Client:
        client, session = opened(engine, name=name)
        await stream(session, silence(starts_s) + tone(0.5) + silence(1))
        await client.until("transcribed")
        engine.close(name)
        return client

    async def main() -> None:
        async with running(duplex(), bystander=bystander()) as (engine, _, _):
            jobs = [one(engine, f"s{i}", 0.5 + 0.1 * i) for i in range(3)]
            clients = await asyncio.gather(*jobs)
        starts = [told(client)[0][1] for client in clients]
        assert starts == sorted(starts)  # type: ignore[type-var]
        assert len(set(starts)) == 3

    run_virtual(main(), 60)


def test_push_to_talk_is_transcribed_at_the_commit() -> None:
    """Without turn detection nothing is told by itself; a commit's words are those of all audio since the last."""

    async def main() -> None:
        async with running(duplex(), bystander=bystander()) as (engine, _, _):
            client, session = opened(engine, PUSH_TO_TALK)
            await stream(session, tone(1.05) + silence(1))
            assert session.commit("a")
            await stream(session, tone(0.5))
            session.clear_audio()
            await stream(session, tone(0.3))
            assert session.commit("b")
            await client.until("transcribed", "b")
            engine.close("s1")
        assert told(client) == [
            ("transcribed", "a", "speech lasting one point one seconds"),
            ("transcribed", "b", "speech lasting zero point three seconds"),
        ]

    run_virtual(main(), 60)


def test_a_commit_does_not_cut_the_models_time() -> None:
    """The tick under way when a commit comes is a whole one for the model all the same."""

    async def main() -> None:
        async with running(duplex(), bystander=bystander()) as (engine, recorder, _):
            _, session = opened(engine, PUSH_TO_TALK)
            for _ in range(4):
                await stream(session, tone(0.1))
                session.commit("a")
                session.clear_audio()
            await until_quiet()
            engine.close("s1")
        assert recorder.outcomes("frame") == {"on_time": 5}

    run_virtual(main(), 60)


@pytest.mark.parametrize("beside", [None, bystander(transcribes=False)])
def test_without_a_transcriber_every_item_says_so(beside: Bystander | None) -> None:
    """A commit is never left waiting for words that cannot come."""

    async def main() -> None:
        async with running(duplex(), bystander=beside) as (engine, _, _):
            client, session = opened(engine)
            await stream(session, silence(0.5) + tone(1) + silence(1))
            if beside is None:
                assert session.commit("turn1")
            await client.until("transcription_failed", "turn1")
            engine.close("s1")
        kinds = [fact[0] for fact in told(client)]
        expected = [] if beside is None else ["speech_started", "speech_stopped"]
        assert kinds == [*expected, "transcription_failed"]

    run_virtual(main(), 60)
    assert "model.stt" in NO_TRANSCRIBER


def test_without_a_detector_only_commits_make_turns() -> None:
    """Whatever turn detection the client asks for."""

    async def main() -> None:
        async with running(duplex(), bystander=bystander(detects=False)) as (engine, _, _):
            client, session = opened(engine)
            await stream(session, tone(1) + silence(1))
            session.commit("a")
            await client.until("transcribed", "a")
            engine.close("s1")
        assert [fact[0] for fact in told(client)] == ["transcribed"]

    run_virtual(main(), 60)


def test_settings_may_change_under_way() -> None:
    """Turn detection switched off, and telephone audio instead of 24 kHz."""

    async def main() -> None:
        async with running(duplex(), bystander=bystander()) as (engine, _, _):
            client, session = opened(engine, PUSH_TO_TALK)
            await stream(session, tone(1))
            session.configure(SessionSetup(input_rate=8000))
            await stream(session, silence(1, 8000) + tone(1, 8000) + silence(1, 8000), rate=8000)
            await client.until("transcribed")
            engine.close("s1")
        kinds = [fact[0] for fact in told(client)]
        assert kinds == ["speech_started", "speech_stopped", "transcribed"]

    run_virtual(main(), 60)


class Agrees:
    """Hears "okay", whatever is said."""

    def transcribe(self, samples: Samples) -> str:
        return "Okay."


def test_a_backchannel_is_not_told_where_words_decide() -> None:
    """`semantic_vad`, and the model is speaking: a short "okay" is no turn, a long one is."""

    async def main() -> None:
        setup = SessionSetup(turn_detection=TurnDetection(eagerness="auto"))
        agreeing = Bystander(TurnHearing(EnergyVad(), Agrees()))
        async with running(duplex(), bystander=agreeing) as (engine, _, _):
            client, session = opened(engine, setup)
            await stream(session, silence(1) + tone(0.2) + silence(5))
            assert told(client) == []
            await stream(session, tone(1) + silence(3))
            await client.until("transcribed")
            engine.close("s1")

    run_virtual(main(), 60)


class Stuck(TurnHearing):
    """Hears nothing before it is let go."""

    def __init__(self) -> None:
        super().__init__(EnergyVad(), DurationTranscriber())
        self.heard_bytes = 0

    def hear(self, batch: Sequence[tuple[CallerTurns, bytes]]) -> list[Heard]:
        self.heard_bytes += sum(len(pcm) for _, pcm in batch)
        return super().hear(batch)


def test_what_is_not_heard_in_time_is_heard_as_silence() -> None:
    """However late the detector is, what waits is bounded, positions stay true, and commits are not lost."""

    async def main() -> None:
        hearing = Stuck()
        async with running(duplex(), bystander=Bystander(hearing)) as (engine, _, _):
            client, session = opened(engine)
            assert isinstance(session, FrameSession)
            beside = session._beside
            assert beside is not None
            # All at once: nothing is heard before the loop is given back.
            session.push_audio(tone(10), 0.0)
            session.commit("a")
            session.push_audio(silence(BACKLOG_S - 0.5) + tone(1) + silence(1), 0.0)
            assert beside._inbox.queued_bytes <= BACKLOG_S * RATE * 2
            await client.until("speech_stopped")
            assert hearing.heard_bytes // (2 * RATE) == 10 + BACKLOG_S + 1
            await client.until("transcribed", "a")
            engine.close("s1")
        stopped = next(fact[1] for fact in client.facts if fact[0] == "speech_stopped")
        assert abs(stopped - (10 + BACKLOG_S + 0.5) * 1000) < 100  # type: ignore[operator]

    run_virtual(main(), 60)


class Broken(EnergyVad):
    def probabilities(self, frames: Samples, states: Samples) -> tuple[Samples, Samples]:
        raise RuntimeError("no")


def test_a_detector_that_breaks_ends_the_calls_it_listened_to() -> None:
    """A client would else wait for the end of a turn for ever; who listens to nobody goes on."""

    async def main() -> None:
        broken = Bystander(TurnHearing(Broken(), DurationTranscriber()))
        async with running(duplex(), bystander=broken) as (engine, _, _):
            client, session = opened(engine)
            other, its_session = opened(engine, PUSH_TO_TALK, "s2")
            await stream(session, tone(0.1))
            await client.until("failed", "engine_unavailable")
            await stream(its_session, tone(0.3))
            assert "failed" not in other.kinds()
            engine.close("s2")

    run_virtual(main(), 60)


def test_a_closed_call_tells_nothing() -> None:
    """Not even of words that were being made out."""

    async def main() -> None:
        async with running(duplex(), bystander=bystander()) as (engine, _, _):
            client, session = opened(engine)
            session.push_audio(silence(1) + tone(1) + silence(1), 0.0)
            session.commit("a")
            engine.close("s1")
            await asyncio.sleep(1)
        assert told(client) == []

    run_virtual(main(), 60)


def test_a_detector_that_hangs_makes_no_tick_late_and_is_noticed_in_the_end() -> None:
    """The model goes on; past the hang limit the engine is given up, because no turn would ever end again."""

    async def never(*args: object) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        settings = EngineSettings(hang_limit_s=20)
        async with running(duplex(), bystander=bystander(), settings=settings) as plant:
            engine, recorder, _ = plant
            side_ear = engine._side_ear
            assert side_ear is not None
            side_ear._pool.run = never  # type: ignore[method-assign,assignment]
            client, session = opened(engine)
            await stream(session, silence(8))
            assert not engine.stalled
            assert recorder.outcomes("frame").keys() == {"on_time"}
            assert "failed" not in client.kinds()
            await client.until("failed")

    with pytest.raises(EngineDead, match="nothing has moved for 20 s"):
        run_virtual(main(), 60)
