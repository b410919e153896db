"""Edits, drops and departures that meet at the wrong moment; calls that come and go by the hundred; calls that last."""

import asyncio
import gc
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping

import pytest
from support.sim_engine import RATE, Caller, ask, cascade, duplex, running, silence, stream, tone

from engine.engine import Engine
from engine.kv_policy import KvPolicy
from engine.models import caller as callers
from engine.models.base import Message, SessionSetup
from engine.models.sim import SimDuplex, SimDuplexSettings
from engine.response import ResponseRequest
from engine.session import Session
from engine.sim_backend import SimBackend, SimCost
from engine.virtual_time import run_virtual

SETUP = SessionSetup(instructions="be brief")
POLICY = KvPolicy("anchored", window_tokens=96, slack_tokens=64)
FRAME = bytes(int(0.08 * RATE) * 2)
PLATEAU = 32 + 96 + 64 + 32  # a block for the header's rounding, one for a quota


def _long(words: int, word: str = "word") -> str:
    return " ".join(f"{word}{index}" for index in range(words))


def _turn(response_id: str, *texts: str, **more: object) -> ResponseRequest:
    return ask(response_id, *texts, audio=False, **more)


@pytest.mark.parametrize("seed", range(6))
def test_barge_in_while_a_drop_is_due(seed: int) -> None:
    """Answers are cancelled at every moment while their context is being cut back; the last one still comes whole."""

    async def main() -> None:
        rng = random.Random(seed)
        async with running(cascade(), SimCost(0.02), policy=POLICY) as (engine, recorder, plant):
            caller = Caller()
            session = engine.open("s1", SETUP, caller)
            texts: list[str] = []
            for turn in range(60):
                texts += [_long(rng.choice((1, 20, 60, 90)), f"t{turn}"), "an answer"]
                session.respond(_turn(f"r{turn}", *texts[:-1]))
                await asyncio.sleep(rng.choice((0, 0.001, 0.02, 0.05, 0.3)))
                session.cancel(f"r{turn}")
            session.respond(_turn("last", *texts[:-1]))
            ended = await caller.until("ended", "last")
            assert ended[2] == "completed", ended
            assert "failed" not in caller.kinds()
            assert max(s.kv.resident_tokens for s in recorder.steps) <= PLATEAU
            assert engine.faults.counts["append"] == engine.faults.counts["session"] == 0
            assert session.mirror.tokens == plant._sessions["s1"].tokens  # type: ignore[attr-defined]

    run_virtual(main(), 300)


def test_a_call_that_hangs_up_between_a_drop_and_the_next_chunk() -> None:
    """What was to be dropped, appended and decoded goes with it, and the next call notices nothing."""

    async def main() -> None:
        async with running(cascade(), SimCost(0.02), policy=POLICY) as (engine, _, plant):
            for leave_at in range(40):
                caller = Caller()
                session = engine.open("s1", SETUP, caller)
                session.respond(_turn("r1", _long(90), "so", _long(60)))
                await caller.until("ended", "r1")
                session.respond(_turn("r2", _long(90), "so", _long(60), "well", _long(60, "more")))
                await asyncio.sleep(leave_at * 0.005)
                engine.close("s1")
                await asyncio.sleep(0.1)
                assert plant.snapshot().held_blocks == 0
                assert not engine._stepper._drops
                assert not engine._stepper._waiting
            assert engine.faults.counts["append"] == 0

    run_virtual(main(), 300)


def test_respond_and_cancel_in_one_breath_leave_nothing_behind() -> None:
    """A response cancelled before it began takes no place among the parallel ones."""

    async def main() -> None:
        async with running(cascade()) as (engine, _, plant):
            caller = Caller()
            session = engine.open("s1", SETUP, caller)
            for turn in range(20):
                session.respond(_turn(f"r{turn}", "hello", out_of_band=turn % 2 == 1))
                session.cancel(f"r{turn}")
            session.respond(_turn("last", "hello"))
            assert (await caller.until("ended", "last"))[2] == "completed"
            await asyncio.sleep(1)
            assert plant.snapshot().sessions == 1

    run_virtual(main(), 300)


@pytest.mark.parametrize("words", [5, 90])
def test_instructions_that_grow_in_the_middle_of_a_call(words: int) -> None:
    """A longer header rebuilds the context while the caller waits for nothing; the answer under way ends first."""

    async def main() -> None:
        async with running(cascade(), SimCost(0.02), policy=POLICY) as (engine, _, plant):
            caller = Caller()
            session = engine.open("s1", SETUP, caller)
            session.respond(_turn("r1", _long(50)))
            await asyncio.sleep(0.2)
            longer = _long(words, "rule")
            session.configure(SessionSetup(instructions=longer))
            assert (await caller.until("ended", "r1"))[2] == "completed"
            answer = caller.text["r1"]
            messages = (
                Message("user", _long(50), "u1"),
                Message("assistant", answer, "a1"),
                Message("user", "and now?", "u2"),
            )
            session.respond(ResponseRequest("r2", longer, messages, audio=False))
            assert (await caller.until("ended", "r2"))[2] == "completed"
            assert session.mirror.header == words + 2
            assert session.mirror.tokens == plant._sessions["s1"].tokens  # type: ignore[attr-defined]

    run_virtual(main(), 300)


def test_a_header_that_cannot_fit_is_a_clear_error_and_the_call_lives() -> None:
    """The response fails with the numbers; with shorter instructions the next one is answered."""

    async def main() -> None:
        backend = SimBackend(SimCost(0.01), max_context=256)
        async with running(cascade(), backend=backend, policy=POLICY) as (engine, _, _):
            caller, other = Caller(), Caller()
            session = engine.open("s1", SETUP, caller)
            engine.open("s2", SETUP, other).respond(_turn("r9", "hello"))
            message = (Message("user", "hello", "u1"),)
            session.respond(ResponseRequest("r1", _long(400), message, audio=False))
            ended = await caller.until("ended", "r1")
            assert ended[2] == "failed"
            assert "402 tokens" in str(ended[4])
            session.respond(ResponseRequest("r2", "be brief", message, audio=False))
            assert (await caller.until("ended", "r2"))[2] == "completed"
            assert (await other.until("ended", "r9"))[2] == "completed"

    run_virtual(main(), 300)


def test_a_message_larger_than_the_window_keeps_its_end() -> None:
    """It is cut to what fits, and the call goes on."""

    async def main() -> None:
        async with running(cascade(), SimCost(0.01), policy=POLICY) as (engine, recorder, _):
            caller = Caller()
            session = engine.open("s1", SETUP, caller)
            session.respond(_turn("r1", _long(2000)))
            assert (await caller.until("ended", "r1"))[2] == "completed"
            session.respond(_turn("r2", _long(2000), caller.text["r1"], "and now?"))
            assert (await caller.until("ended", "r2"))[2] == "completed"
            assert max(s.kv.resident_tokens for s in recorder.steps) <= PLATEAU

    run_virtual(main(), 300)


def test_a_tick_larger_than_the_slack() -> None:
    """A frame-locked model whose tick is more than the slack cuts back at every tick and stays bounded."""

    async def main() -> None:
        model = SimDuplex(SimDuplexSettings(prefill_per_tick=100))
        policy = KvPolicy("anchored", window_tokens=128, slack_tokens=32)
        async with running(model, SimCost(0.005), policy=policy) as (engine, recorder, plant):
            session = engine.open("s1", SETUP, Caller())
            for _ in range(100):
                session.push_audio(FRAME, asyncio.get_running_loop().time())
                await asyncio.sleep(0.08)
            assert set(recorder.outcomes("frame")) == {"on_time"}
            assert max(s.kv.resident_tokens for s in recorder.steps) <= 128 + 32 + 101
            assert session.mirror.length == len(plant._sessions["s1"].tokens)  # type: ignore[attr-defined]

    run_virtual(main(), 300)


# -- many calls -------------------------------------------------------------------


async def _churn(engine: Engine, ticks: int, rng: random.Random) -> None:
    """Two hundred callers; each hangs up at any moment, on average after ten ticks, and another takes the place."""
    places: list[Session | None] = [None] * 200
    calls = 0
    for tick in range(ticks):
        for place, session in enumerate(places):
            if session is None or rng.random() < 0.1:
                if session is not None:
                    engine.close(session.id)
                calls += 1
                places[place] = engine.open(f"s{calls}", SETUP, Caller())
            elif (place + tick) % 4 == 0:  # a quarter of them speaks
                session.push_audio(FRAME, asyncio.get_running_loop().time())
        await asyncio.sleep(0.08)
    for session in places:
        if session is not None:
            engine.close(session.id)


@pytest.mark.slow
def test_two_hundred_callers_come_and_go_for_two_thousand_ticks() -> None:
    """The pool returns to its baseline, and the process holds as many objects after 40,000 calls as after 20,000."""

    async def main() -> None:
        rng = random.Random(1)
        async with running(duplex(), SimCost(0.001), policy=POLICY) as (engine, recorder, plant):
            held = []
            for _ in range(2):
                await _churn(engine, 1_000, rng)
                await asyncio.sleep(1)
                assert plant.snapshot().held_blocks == plant.snapshot().sessions == 0
                assert engine.snapshot().sessions == 0
                assert set(recorder.outcomes("frame")) == {"on_time"}
                for kept in (recorder.ticks, recorder.steps):
                    kept.clear()  # what the test itself keeps
                gc.collect()
                held.append(sys.getallocatedblocks())
            assert held[1] - held[0] < 200, held

    run_virtual(main(), 1000)


def _words_of(name: str) -> tuple[str, ...]:
    return tuple(f"{name} says secret number {turn} of {name}" for turn in range(5))


async def _converse(session: Session, caller: Caller, name: str) -> list[str]:
    said: list[str] = []
    for turn, words in enumerate(_words_of(name)):
        said.append(words)
        session.respond(_turn(f"r{turn}", *said))
        await caller.until("ended", f"r{turn}")
        said.append(caller.text.get(f"r{turn}", ""))
        await asyncio.sleep(0.07)
    return said


def test_two_calls_never_see_each_other_s_words() -> None:
    """Batched with twenty others, each says what it says alone: tokens follow from the context, so any leak shows."""

    async def alone(name: str) -> list[str]:
        async with running(cascade(), SimCost(0.02), policy=POLICY) as (engine, _, _):
            caller = Caller()
            return await _converse(engine.open("x", SETUP, caller), caller, name)

    async def together(names: list[str]) -> list[list[str]]:
        async with running(cascade(), SimCost(0.02), policy=POLICY) as (engine, recorder, _):
            callers = [Caller() for _ in names]
            talks = [
                _converse(engine.open(name, SETUP, caller), caller, name)
                for name, caller in zip(names, callers, strict=True)
            ]
            said = await asyncio.gather(*talks)
            assert max(step.sessions for step in recorder.steps) > 10  # they were batched
            return said

    names = [f"caller{index}" for index in range(20)]
    said = run_virtual(together(names), 300)
    for name, words in zip(names, said, strict=True):
        assert words == run_virtual(alone(name), 300)
        for other in names:
            if other != name:
                assert not any(f"{other} " in line for line in words)


# -- one call that lasts -------------------------------------------------------------

_SHARED = {"_parts", "_ear", "_spawn", "listener", "_stepper", "_loop", "_model", "_hearing_model"}


def _size(value: object) -> int | None:
    """Elements of a container; None for anything else."""
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if hasattr(value, "__len__") and hasattr(value, "__iter__"):
        return len(value)
    return None


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """What hangs on a value: attributes of our own classes, and elements."""
    if isinstance(value, Mapping):
        yield from (("[]", part) for part in value.values())
    elif isinstance(value, list | tuple | deque):
        yield from (("[]", part) for part in value)
    names = list(getattr(value, "__dict__", ()))
    for cls in type(value).__mro__ if type(value).__module__.startswith("engine") else ():
        names += getattr(cls, "__slots__", ())
    for name in names:
        if name not in _SHARED and hasattr(value, name):
            yield f".{name}", getattr(value, name)


def footprint(root: object) -> dict[str, int]:
    """Elements of every container that hangs on `root`, by attribute path; what calls share is left out."""
    sizes: dict[str, int] = {}
    seen: set[int] = set()
    unseen = [("", root)]
    while unseen:
        path, value = unseen.pop()
        if id(value) in seen or isinstance(value, int | type | asyncio.Future):
            continue
        seen.add(id(value))
        size = _size(value)
        if size is not None:
            sizes[path] = sizes.get(path, 0) + size
        unseen += [(path + step, part) for step, part in _parts(value)]
    return sizes


def _grown(before: dict[str, int], after: dict[str, int], slack: int) -> dict[str, int]:
    return {
        path: size - before.get(path, 0)
        for path, size in after.items()
        if size - before.get(path, 0) > slack
    }


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["anchored", "unbounded"])
def test_ten_thousand_ticks_leave_a_frame_locked_call_as_small_as_it_was(policy: str) -> None:
    """Whatever the backend does with its context, nothing of ours grows with the call."""

    async def main() -> None:
        kv = KvPolicy(policy, window_tokens=96, slack_tokens=64)  # type: ignore[arg-type]
        async with running(duplex(), SimCost(0.001), policy=kv) as (engine, recorder, _):
            session = engine.open("s1", SETUP, Caller())
            sizes = []
            for tick in range(10_000):
                session.push_audio(FRAME, asyncio.get_running_loop().time())
                await asyncio.sleep(0.08)
                if tick in (1_000, 9_999):
                    sizes.append(footprint(session))
                    assert len(engine._stepper._sinks) == 1
            assert set(recorder.outcomes("frame")) == {"on_time"}
            assert len(sizes[0]) > 5
            assert _grown(*sizes, slack=0) == {}

    run_virtual(main(), 10_000)


@pytest.mark.slow
def test_two_thousand_spoken_turns_leave_a_call_as_small_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Transcripts, places, remembered answers, buffers and tasks: all at their bounds, none beyond."""
    monkeypatch.setattr(callers, "_MAX_REMEMBERED", 100)

    async def main() -> None:
        async with running(cascade(), SimCost(0.001), policy=POLICY) as (engine, _, _):
            caller = Caller()
            session = engine.open("s1", SETUP, caller)
            said: list[Message] = []
            sizes = []
            for turn in range(2_000):
                caller.facts.clear()
                user = f"u{turn}"
                await stream(session, tone(0.2) + silence(0.6), chunk_s=0.16)
                session.commit(user)
                said.append(Message("user", "", user))
                request = ResponseRequest(
                    f"r{turn}",
                    "be brief",
                    tuple(said),
                    audio=False,
                    pending_items=frozenset({user}),
                    max_output_tokens=8,
                )
                session.respond(request)
                words = await caller.until("transcribed", user)
                assert (await caller.until("ended", f"r{turn}"))[2] in (
                    "completed",
                    "max_output_tokens",
                )
                said[-1] = Message("user", str(words[2]), user)
                said.append(Message("assistant", caller.text.pop(f"r{turn}", ""), f"a{turn}"))
                del said[:-40]
                if turn in (300, 1_999):
                    sizes.append(footprint(session))
            assert _grown(*sizes, slack=64) == {}
            assert engine.faults.counts["session"] == 0

    run_virtual(main(), 100_000)
