"""Images in a call with a model that hears and sees: where they enter the context, in virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.pictures import picture
from support.sim_engine import Caller as Listener
from support.sim_engine import running, silence, stream, tone
from support.sim_hearing import (
    ENDS,
    IMAGE,
    IMAGE_TOKENS,
    OPENS,
    PLACEHOLDER,
    SEEN_AFTER,
    SEEN_BEFORE,
    RecordingBackend,
    hearing,
)

from engine.models.base import AudioChunk, Message, SessionSetup, TurnDetection
from engine.models.picture import PictureError
from engine.response import ResponseRequest
from engine.showing import MAX_WAITING, Showing
from engine.virtual_time import run_virtual

SETUP = SessionSetup(instructions="be brief")
PUSH_TO_TALK = SessionSetup(instructions="be brief", turn_detection=TurnDetection(enabled=False))
SEEN = (SEEN_BEFORE, *[IMAGE] * IMAGE_TOKENS, SEEN_AFTER)


def contains(context: list[int], wanted: tuple[int, ...]) -> bool:
    size = len(wanted)
    return any(tuple(context[i : i + size]) == wanted for i in range(len(context) - size + 1))


def ask(response_id: str, *item_ids: str) -> ResponseRequest:
    messages = tuple(Message("user", "", item_id) for item_id in item_ids)
    return ResponseRequest(response_id, "be brief", messages)


async def settled() -> None:
    await asyncio.sleep(1.0)  # virtual


def test_an_image_between_turns_is_in_the_context_before_anybody_asks() -> None:
    """As a message of its own; the answer then appends its cue and nothing else."""

    async def main() -> None:
        plant = RecordingBackend()
        async with running(hearing(), backend=plant) as (engine, _, _):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            session.show("i1", ["hi", picture(1)])
            await settled()
            words = hearing().see(["hi"]).token_ids
            assert contains(plant.context("s1"), (*OPENS, *words, *SEEN, *ENDS))
            session.respond(ask("r1", "i1"))
            await caller.until("ended", "r1")
            assert sum(f.modality == "image" for f in plant.features) == 1

    run_virtual(main(), 300)


def test_an_image_within_a_turn_is_where_it_was_shown() -> None:
    """Between the seconds of audio before and after it, and it is fed once."""

    async def main() -> None:
        plant = RecordingBackend()
        async with running(hearing(), backend=plant) as (engine, _, _):
            caller = Listener()
            session = engine.open("s1", PUSH_TO_TALK, caller)
            await stream(session, tone(1.5))
            session.show("i1", [picture(1)])
            await stream(session, tone(1.5))
            session.commit("u1")
            session.respond(ask("r1", "i1", "u1"))
            await caller.until("ended", "r1")
            context = plant.context("s1")
            seen = context.index(SEEN_BEFORE)
            assert PLACEHOLDER in context[:seen]
            assert PLACEHOLDER in context[seen + len(SEEN) :]
            assert tuple(context[seen : seen + len(SEEN)]) == SEEN
            assert OPENS[0] not in context[seen:][: len(SEEN) + 3]
            assert sum(f.modality == "image" for f in plant.features) == 1

    run_virtual(main(), 300)


def test_a_deleted_image_is_not_in_the_next_answers_context() -> None:
    """What followed it is fed again without it."""

    async def main() -> None:
        plant = RecordingBackend()
        async with running(hearing(), backend=plant) as (engine, _, _):
            caller = Listener()
            session = engine.open("s1", PUSH_TO_TALK, caller)
            await stream(session, tone(1.5))
            session.show("i1", [picture(1)])
            await stream(session, tone(1.5))
            session.commit("u1")
            session.respond(ask("r1", "u1"))
            await caller.until("ended", "r1")
            assert IMAGE not in plant.context("s1")
            assert PLACEHOLDER in plant.context("s1")

    run_virtual(main(), 300)


def test_an_image_shown_while_an_answer_is_given_is_fed_behind_it() -> None:
    """As soon as that has ended, so that the next turn is heard after it."""

    async def main() -> None:
        plant = RecordingBackend()
        async with running(hearing(), backend=plant) as (engine, _, _):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            await stream(session, silence(0.3) + tone(1.5) + silence(0.8))
            session.commit("u1")
            session.respond(ask("r1", "u1"))
            await caller.until("text", "r1")
            session.show("i1", [picture(1)])
            assert caller.ended("r1") is None
            await caller.until("ended", "r1")
            assert IMAGE not in plant.context("s1")
            await settled()
            assert contains(plant.context("s1"), (*OPENS, *SEEN, *ENDS))

    run_virtual(main(), 300)


def test_a_damaged_image_is_told_and_the_call_goes_on() -> None:
    """The answer is given without it."""

    async def main() -> None:
        plant = RecordingBackend()
        async with running(hearing(), backend=plant) as (engine, _, _):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            session.show("i1", [picture(1)[:100]])
            session.respond(ask("r1", "i1"))
            await caller.until("ended", "r1")
            assert ("image_failed", "i1", "The image is damaged.") in caller.facts
            assert IMAGE not in plant.context("s1")

    run_virtual(main(), 300)


def test_an_answer_waits_for_what_is_being_looked_at() -> None:
    """Asked for in the same breath, it has the image in its context."""

    async def main() -> None:
        plant = RecordingBackend()
        async with running(hearing(), backend=plant) as (engine, _, _):
            caller = Listener()
            session = engine.open("s1", SETUP, caller)
            session.show("i1", [picture(1)])
            session.respond(ask("r1", "i1"))
            await caller.until("ended", "r1")
            assert contains(plant.context("s1"), (*OPENS, *SEEN, *ENDS))

    run_virtual(main(), 300)


class HeldPool:
    """Runs nothing until it is let go."""

    def __init__(self) -> None:
        self.held = asyncio.Event()

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        await self.held.wait()
        return function(*args, **kwargs)

    def shutdown(self) -> None: ...
    def abandon(self) -> None: ...


class Sight:
    def see(self, content: Any) -> AudioChunk:
        if content == ["bad"]:
            raise PictureError("bad")
        return AudioChunk((len(content[0]),), 1)


@pytest.mark.asyncio
async def test_items_are_looked_at_in_order_and_so_many_may_wait() -> None:
    """What is refused or cannot be seen does not hold up the others."""
    pool, seen, failed = HeldPool(), [], []
    showing = Showing(
        pool, Sight(), lambda item, chunk: seen.append(item), lambda item, why: failed.append(item)
    )
    items = [f"i{n}" for n in range(MAX_WAITING)]
    async with asyncio.TaskGroup() as tasks:
        for item in items:
            tasks.create_task(showing.look(item, ["bad"] if item == "i3" else ["good"]))
        await asyncio.sleep(0)
        await showing.look("one too many", ["good"])
        done = tasks.create_task(showing.done())
        await asyncio.sleep(0)
        assert not done.done()
        pool.held.set()
    assert seen == [item for item in items if item != "i3"]
    assert failed == ["one too many", "i3"]
