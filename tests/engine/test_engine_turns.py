"""The whole engine with a turn-based model, in virtual time."""

import asyncio

from support.sim_engine import Caller as Listener
from support.sim_engine import ask, cascade, running, silence, stream, tone

from engine.kv_policy import KvPolicy
from engine.models.base import Message, SessionSetup, TurnDetection
from engine.response import ResponseRequest
from engine.sim_backend import SimCost
from engine.virtual_time import run_virtual

SETUP = SessionSetup(instructions="be brief")


def test_a_typed_turn_is_answered_in_text_and_audio() -> None:
    """Text precedes the audio that speaks it, the end comes once, and the KV goes when the call ends."""

    async def main() -> None:
        async with running(cascade()) as (engine, recorder, plant):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            session.respond(ask("r1", "hello there"))
            ended = await caller.until("ended", "r1")
            assert ended[2] == "completed"
            assert caller.kinds().count("ended") == 1
            assert caller.facts.index(("text", "r1")) < caller.facts.index(("audio", "r1"))
            assert caller.text["r1"].strip()
            assert len(caller.audio["r1"]) > 24_000
            assert plant.snapshot().held_blocks > 0
            assert recorder.turns[0].outcome == "completed"
            engine.close("s1")
            await asyncio.sleep(1)
            assert plant.snapshot().held_blocks == 0

    run_virtual(main(), 300)


def test_a_spoken_turn_is_heard_transcribed_and_answered() -> None:
    """Speech starts and stops once; the words are known before the answer starts; no listening tick is late."""

    async def main() -> None:
        async with running(cascade()) as (engine, recorder, _):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)

            async def decide() -> None:
                await caller.until("speech_stopped")
                session.commit("u1")
                message = Message("user", "", "u1")
                session.respond(
                    ResponseRequest("r1", "be brief", (message,), pending_items=frozenset({"u1"}))
                )

            await asyncio.gather(stream(session, silence(0.5) + tone(1.2) + silence(1.5)), decide())
            await caller.until("ended", "r1")
            assert caller.kinds().count("speech_started") == 1
            assert caller.kinds().count("speech_stopped") == 1
            words = await caller.until("transcribed", "u1")
            assert str(words[2]).startswith("speech lasting one point")
            assert set(recorder.outcomes("listen")) == {"on_time"}
            turn = recorder.turns[0]
            assert turn.first_output_at is not None
            assert turn.first_output_at - turn.decided_at < 1.0

    run_virtual(main(), 300)


def test_the_words_are_ready_when_the_turn_is_decided() -> None:
    """Transcription runs in the pause on speculation and is not run again."""

    async def main() -> None:
        model = cascade()
        calls = []
        transcribe = model.transcribe
        model.transcribe = lambda u: calls.append(u.voiced_ms) or transcribe(u)  # type: ignore[method-assign,func-returns-value]
        async with running(model) as (engine, _, _):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)

            async def decide() -> None:
                await caller.until("speech_stopped")
                assert len(calls) == 1
                session.commit("u1")
                await caller.until("transcribed", "u1")

            await asyncio.gather(stream(session, tone(1.0) + silence(1.0)), decide())
            assert len(calls) == 1

    run_virtual(main(), 300)


def test_cancelling_costs_one_quota_and_nothing_follows() -> None:
    """After cancel no fact of that answer comes, and at most k more tokens are decoded."""

    async def main() -> None:
        async with running(cascade()) as (engine, recorder, plant):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            session.respond(ask("r1", "tell me a long story"))
            await caller.until("audio", "r1")
            session.cancel("r1")
            facts, tokens = len(caller.facts), plant.snapshot().resident_tokens
            await asyncio.sleep(5)
            assert len(caller.facts) == facts
            assert plant.snapshot().resident_tokens - tokens <= 3
            assert recorder.turns[-1].outcome == "cancelled"

    run_virtual(main(), 300)


def test_the_next_turn_keeps_what_is_resident() -> None:
    """The second answer's input is almost all cached, and the context is the conversation."""

    async def main() -> None:
        async with running(cascade()) as (engine, _, _):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            session.respond(ask("r1", "first question", audio=False))
            first = await caller.until("ended", "r1")
            session.respond(
                ask("r2", "first question", caller.text["r1"], "second one", audio=False)
            )
            second = await caller.until("ended", "r2")
            before, after = first[3], second[3]
            assert after.cached_tokens >= before.input_tokens + before.output_tokens  # type: ignore[attr-defined]
            assert after.input_tokens - after.cached_tokens <= 8  # type: ignore[attr-defined]

    run_virtual(main(), 300)


def test_out_of_band_answers_leave_the_conversation_alone() -> None:
    """Two answers run side by side; the out-of-band one's context is freed at its end."""

    async def main() -> None:
        async with running(cascade()) as (engine, _, plant):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            session.respond(ask("r1", "one", audio=False))
            session.respond(ask("r2", "classify this", audio=False, out_of_band=True))
            await caller.until("ended", "r1")
            await caller.until("ended", "r2")
            await asyncio.sleep(1)
            assert plant.snapshot().sessions == 1

    run_virtual(main(), 300)


def test_max_output_tokens_ends_an_answer() -> None:
    """The reason says so, and exactly that many tokens were decoded."""

    async def main() -> None:
        async with running(cascade()) as (engine, recorder, _):
            caller = Listener()
            engine.open("s1", SETUP, caller).respond(
                ask("r1", "tell me everything", audio=False, max_output_tokens=1)
            )
            ended = await caller.until("ended", "r1")
            assert ended[2] == "max_output_tokens"
            assert recorder.turns[0].tokens == 1

    run_virtual(main(), 300)


def test_push_to_talk_commits_what_was_pushed_before_it() -> None:
    """With turn detection off nothing is decided here; a commit cuts exactly the audio before it."""

    async def main() -> None:
        async with running(cascade()) as (engine, _, _):
            caller = Listener()
            setup = SessionSetup(turn_detection=TurnDetection(enabled=False))
            session = engine.open("s1", setup, caller)
            session.push_audio(tone(1.0), asyncio.get_running_loop().time())
            assert session.commit("u1")
            session.push_audio(tone(2.0), asyncio.get_running_loop().time())
            assert session.commit("u2")
            assert "one point zero" in str((await caller.until("transcribed", "u1"))[2])
            assert "two point zero" in str((await caller.until("transcribed", "u2"))[2])
            assert "speech_started" not in caller.kinds()

    run_virtual(main(), 300)


def test_an_answer_asked_for_right_after_a_commit_waits_for_its_words() -> None:
    """Push to talk: `response.create` follows the commit at once, long before the audio has been heard."""

    async def main() -> None:
        async with running(cascade()) as (engine, _, _):
            caller = Listener()
            setup = SessionSetup(turn_detection=TurnDetection(enabled=False))
            session = engine.open("s1", setup, caller)
            session.push_audio(tone(1.0), asyncio.get_running_loop().time())
            session.commit("u1")
            message = Message("user", "", "u1")
            session.respond(ResponseRequest("r1", "", (message,), pending_items=frozenset({"u1"})))
            await caller.until("ended", "r1", "completed")
            assert len(caller.audio["r1"]) > 24_000

    run_virtual(main(), 300)


def test_past_the_inbox_bound_an_append_is_refused_whole() -> None:
    """The refusal names the bound, and what was taken before is still heard."""

    async def main() -> None:
        async with running(cascade()) as (engine, _, _):
            caller = Listener()
            setup = SessionSetup(turn_detection=TurnDetection(enabled=False))
            session = engine.open("s1", setup, caller)
            assert session.push_audio(tone(1.0), 0.0) is None
            refused = session.push_audio(silence(331.0), 0.0)
            assert refused is not None
            assert refused.limit_s == 330
            session.commit("u1")
            assert "one point zero" in str((await caller.until("transcribed", "u1"))[2])

    run_virtual(main(), 300)


def test_a_slow_engine_shows_as_missed_ticks() -> None:
    """When decoding cannot keep up, the ticks of a speaking session are late or empty, not green."""

    async def main() -> None:
        async with running(cascade(), SimCost(fixed_s=3.0)) as (engine, recorder, _):
            caller = Listener()
            engine.open("s1", SETUP, caller).respond(ask("r1", "hello", audio=False))
            await caller.until("ended", "r1")
            outcomes = recorder.outcomes("speak")
            assert outcomes.get("empty", 0) > 10 * outcomes.get("on_time", 0)

    run_virtual(main(), 300)


def test_a_window_bounds_the_call() -> None:
    """Fifty turns: the context never passes sink + window + slack, and every turn is answered."""

    async def main() -> None:
        policy = KvPolicy("anchored", window_tokens=96, slack_tokens=64)
        async with running(cascade(), policy=policy) as (engine, recorder, _):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            texts: list[str] = []
            for turn in range(50):
                texts.append(f"question number {turn} of many")
                request = ask(f"r{turn}", *texts, audio=False, max_output_tokens=12)
                session.respond(request)
                await caller.until("ended", f"r{turn}")
                texts.append(caller.text.get(f"r{turn}", ""))
            assert max(s.kv.resident_tokens for s in recorder.steps) <= 4 + 32 + 96 + 64 + 32
            assert [t.outcome for t in recorder.turns].count("failed") == 0

    run_virtual(main(), 300)


def test_churn_returns_the_pool_to_its_baseline() -> None:
    """A hundred calls that hang up at any moment leave no block, no session and no job behind."""

    async def main() -> None:
        async with running(cascade()) as (engine, _, plant):
            for index in range(100):
                session = engine.open(f"s{index}", SETUP, Listener())
                session.push_audio(tone(0.4), asyncio.get_running_loop().time())
                session.respond(ask("r1", "hello", audio=index % 2 == 0))
                await asyncio.sleep(0.013 * (index % 17))
                engine.close(f"s{index}")
            await asyncio.sleep(2)
            assert plant.snapshot().held_blocks == 0
            assert plant.snapshot().sessions == 0
            assert engine.snapshot().sessions == 0

    run_virtual(main(), 300)
