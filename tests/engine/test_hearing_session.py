"""The whole engine with a turn-based model that hears for itself, in virtual time."""

import asyncio

from support.sim_engine import Caller as Listener
from support.sim_engine import ask, running, silence, stream, tone
from support.sim_hearing import (
    AFTER,
    BEFORE,
    ENDS,
    OPENS,
    PLACEHOLDER,
    RecordingBackend,
    check_features,
    hearing,
)

from engine.kv_policy import KvPolicy
from engine.models.base import Message, SessionSetup, TurnDetection
from engine.response import ResponseRequest
from engine.settings import EngineSettings
from engine.virtual_time import run_virtual

SETUP = SessionSetup(instructions="be brief")
PUSH_TO_TALK = SessionSetup(instructions="be brief", turn_detection=TurnDetection(enabled=False))


def spoken(response_id: str, *messages: Message) -> ResponseRequest:
    pending = frozenset(m.item_id for m in messages if m.role == "user" and not m.text)
    return ResponseRequest(response_id, "be brief", messages, pending_items=pending)


async def say(
    session: object, caller: Listener, pcm: bytes, item_id: str, *earlier: Message
) -> str:
    """Speak a turn and let it be answered; what was answered."""
    response_id = f"r-{item_id}"
    known = caller.kinds().count("speech_stopped")

    async def decide() -> None:
        while caller.kinds().count("speech_stopped") == known:
            caller.changed.clear()
            await caller.changed.wait()
        session.commit(item_id)  # type: ignore[attr-defined]
        session.respond(spoken(response_id, *earlier, Message("user", "", item_id)))  # type: ignore[attr-defined]

    await asyncio.gather(stream(session, pcm), decide())
    await caller.until("ended", response_id)
    return caller.text[response_id]


def test_audio_is_in_the_context_before_the_turn_is_over() -> None:
    """The header goes first, each second as it is spoken, and the answer only appends the turn's end and its cue."""

    async def main() -> None:
        plant = RecordingBackend()
        async with running(hearing(), backend=plant) as (engine, _, _):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            answer = await say(session, caller, silence(0.5) + tone(2.0) + silence(1.0), "u1")
            header, first, second, rest, cue, *_ = plant.appends
            assert answer.strip()
            assert not header.features
            assert first.token_ids == (*OPENS, BEFORE, *[PLACEHOLDER] * 12, AFTER)
            assert second.token_ids == (BEFORE, *[PLACEHOLDER] * 12, AFTER)
            assert rest.token_ids[0] == BEFORE
            assert cue.token_ids == (*ENDS, *hearing()._parts.chat.cue)
            for append in plant.appends:
                check_features(append)
            assert sum(f.tensors["mel"].shape[1] for f in plant.features) in range(240, 290)

    run_virtual(main(), 300)


def test_tokens_nobody_asked_for_leave_no_trace() -> None:
    """Each chunk that is only fed samples a token; the context is what it would be without."""

    async def main() -> None:
        plant = RecordingBackend()
        async with running(hearing(), backend=plant) as (engine, _, _):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            await say(session, caller, silence(0.3) + tone(1.5) + silence(1.0), "u1")
            fed = [t for a in plant.appends[:4] for t in a.token_ids]
            assert plant.context("s1")[: len(fed)] == fed
            lane = session._lane  # type: ignore[attr-defined]
            marked = lane.context.tokens
            assert [PLACEHOLDER if t < 0 else t for t in marked] == plant.context("s1")
            assert len({t for t in marked if t < 0}) == len(plant.features)

    run_virtual(main(), 300)


def test_the_next_turn_goes_on_where_the_answer_ended() -> None:
    """Nothing of the first turn is fed again."""

    async def main() -> None:
        plant = RecordingBackend()
        async with running(hearing(), backend=plant) as (engine, _, _):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            said = await say(session, caller, silence(0.3) + tone(1.5) + silence(1.0), "u1")
            heard = len(plant.features)
            earlier = Message("user", "", "u1"), Message("assistant", said, "a1")
            await say(session, caller, silence(0.3) + tone(1.5) + silence(1.0), "u2", *earlier)
            assert len(plant.features) == 2 * heard

    run_virtual(main(), 300)


def test_a_turn_after_an_answer_that_ran_out_of_tokens_is_not_fed_twice() -> None:
    """The end that the answer lacks is put between them, as the conversation has it."""

    async def main() -> None:
        plant = RecordingBackend()
        settings = EngineSettings(max_response_tokens=6)
        async with running(hearing(), backend=plant, settings=settings) as (engine, _, _):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            turn = silence(0.3) + tone(1.5) + silence(1.0)
            said = await say(session, caller, turn, "u1")
            assert (caller.ended("r-u1") or ())[2] == "max_output_tokens"
            heard = len(plant.features)
            earlier = Message("user", "", "u1"), Message("assistant", said, "a1")
            await say(session, caller, turn, "u2", *earlier)
            assert len(plant.features) == 2 * heard

    run_virtual(main(), 300)


def test_no_answer_waits_for_a_transcript() -> None:
    """The model has heard; the words are for the client."""

    async def main() -> None:
        async with running(hearing(), backend=RecordingBackend()) as (engine, _, _):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            slow = asyncio.Event()
            words = session._words  # type: ignore[attr-defined]

            async def slowly(utterance: object) -> object:
                await slow.wait()
                return await words(utterance)

            session._words = slowly  # type: ignore[attr-defined]
            assert await say(session, caller, tone(1.5) + silence(1.0), "u1")
            assert "transcribed" not in caller.kinds()
            slow.set()
            await caller.until("transcribed", "u1")

    run_virtual(main(), 300)


def test_a_deleted_item_has_what_follows_fed_again() -> None:
    """Its audio is gone from the context, though its placeholders look like those of the next item."""

    async def main() -> None:
        plant = RecordingBackend()
        async with running(hearing(), backend=plant) as (engine, _, _):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            turn = silence(0.3) + tone(1.5) + silence(1.0)
            await say(session, caller, turn, "u1")
            before = len(plant.features)
            await say(session, caller, turn, "u2")  # u1 and its answer are no part of it
            second = plant.features[before:]
            assert len(second) > before  # live, and once more without the first turn
            assert plant.context("s1").count(PLACEHOLDER) == sum(f.length for f in second) // 2

    run_virtual(main(), 300)


def test_push_to_talk_is_heard_whole() -> None:
    """A commit takes what was said up to it, voice or not; what had no chunk yet comes with the answer."""

    async def main() -> None:
        plant = RecordingBackend()
        async with running(hearing(), backend=plant) as (engine, _, _):
            caller = Listener()
            session = engine.open("s1", PUSH_TO_TALK, caller)
            await stream(session, tone(1.3))
            session.commit("u1")
            session.respond(spoken("r1", Message("user", "", "u1")))
            assert (await caller.until("ended", "r1"))[2] == "completed"
            frames = sum(f.tensors["mel"].shape[1] for f in plant.features)
            assert frames == 130
            assert (await caller.until("transcribed", "u1"))[2]

    run_virtual(main(), 300)


def test_cleared_audio_is_not_part_of_the_next_turn() -> None:
    """Though some of it has been fed."""

    async def main() -> None:
        plant = RecordingBackend()
        async with running(hearing(), backend=plant) as (engine, _, _):
            caller = Listener()
            session = engine.open("s1", PUSH_TO_TALK, caller)
            await stream(session, tone(1.3))
            session.clear_audio()
            await stream(session, tone(0.5))
            session.commit("u1")
            session.respond(spoken("r1", Message("user", "", "u1")))
            await caller.until("ended", "r1")
            assert plant.context("s1").count(PLACEHOLDER) == 6

    run_virtual(main(), 300)


def test_typed_turns_work_as_ever() -> None:
    """A model that hears can also read."""

    async def main() -> None:
        async with running(hearing(), backend=RecordingBackend()) as (engine, _, plant):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            session.respond(ask("r1", "hello there"))
            assert (await caller.until("ended", "r1"))[2] == "completed"
            assert caller.text["r1"].strip()
            engine.close("s1")
            await asyncio.sleep(1)
            assert plant.snapshot().held_blocks == 0

    run_virtual(main(), 300)


def test_an_interrupted_answer_leaves_the_new_turn_heard() -> None:
    """Barge-in: the next turn is fed live after what the backend holds, and put right when it is answered."""

    async def main() -> None:
        plant = RecordingBackend()
        async with running(hearing(), backend=plant) as (engine, _, _):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            turn = silence(0.3) + tone(1.5) + silence(1.0)

            async def interrupt() -> None:
                await caller.until("audio", "r-u1")
                session.cancel("r-u1")
                caller.facts.append(("ended", "r-u1", "cancelled"))
                caller.changed.set()

            said, _ = await asyncio.gather(say(session, caller, turn, "u1"), interrupt())
            first = sum(f.length for f in plant.features)
            heard = said[: len(said) // 2]  # the client truncates
            earlier = Message("user", "", "u1"), Message("assistant", heard, "a1")
            await say(session, caller, turn, "u2", *earlier)
            second = sum(f.length for f in plant.features) - first  # live, and once more
            assert plant.context("s1").count(PLACEHOLDER) == first + second // 2

    run_virtual(main(), 300)


def test_a_turn_longer_than_a_window_that_cannot_move_waits_for_its_answer() -> None:
    """Listening stops where the context is full; the answer starts over with the newest of it."""

    async def main() -> None:
        plant = RecordingBackend()
        policy = KvPolicy("recycle", 64, 32)
        async with running(
            hearing(), backend=plant, policy=policy, settings=EngineSettings(max_response_tokens=16)
        ) as (engine, _, _):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            answer = await say(session, caller, tone(12.0) + silence(1.0), "u1")
            assert answer.strip()
            assert max(map(len, contexts(plant))) <= policy.total_tokens + 8

    run_virtual(main(), 300)


def contexts(plant: RecordingBackend) -> list[list[int]]:
    """What each append leads to, without what is sampled."""
    found: list[list[int]] = []
    for append in plant.appends:
        kept = found[-1][: append.keep_tokens] if found else []
        found.append([*kept, *append.token_ids])
    return found
