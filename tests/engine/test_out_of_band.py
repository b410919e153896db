"""Answers outside their conversations, which all calls share an allowance of memory for."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from support.sim_engine import Caller, ask, cascade, running

from engine.kv_policy import KvPolicy
from engine.models.base import SessionSetup
from engine.settings import EngineSettings
from engine.sim_backend import SimBackend, SimCost
from engine.virtual_time import run_virtual

BLOCK = 32
POLICY = KvPolicy("anchored", window_tokens=96, slack_tokens=64, header_tokens=32)
PLATEAU = POLICY.plateau_blocks(32, 8, BLOCK)
TALK = " ".join(f"word{index}" for index in range(140))


def aside(response_id: str, **more: object) -> object:
    """A request beside the conversation, as long as its context may be."""
    return ask(response_id, TALK, audio=False, out_of_band=True, **more)


@settings(max_examples=25)
@given(
    orders=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["aside", "aside", "aside", "talk", "cancel", "wait"]),
        ),
        min_size=20,
        max_size=60,
    ),
    allowed=st.integers(1, 3),
)
def test_no_combination_of_clients_fills_the_pool(
    orders: list[tuple[int, str]], allowed: int
) -> None:
    """With a plateau for each call and each answer allowed beside one, whatever they ask for fits, and is answered."""

    async def main() -> None:
        total = (3 + allowed) * PLATEAU
        plant = SimBackend(SimCost(0.01), block_size=BLOCK, total_blocks=total)
        chosen = EngineSettings(out_of_band=allowed)
        async with running(cascade(), backend=plant, settings=chosen, policy=POLICY) as (
            engine,
            recorder,
            _,
        ):
            callers = [Caller() for _ in range(3)]
            sessions = [
                engine.open(f"s{i}", SessionSetup(instructions="be brief"), caller)
                for i, caller in enumerate(callers)
            ]
            asked: list[set[str]] = [set() for _ in sessions]
            gone: list[set[str]] = [set() for _ in sessions]
            for number, (who, what) in enumerate(orders):
                name = f"r{number}"
                if what == "aside":
                    sessions[who].respond(aside(name))  # type: ignore[arg-type]
                    asked[who].add(name)
                elif what == "talk":
                    for other in [o for o in asked[who] if o.startswith("t")]:
                        sessions[who].cancel(other)
                        gone[who].add(other)
                    sessions[who].respond(ask(f"t{number}", TALK, audio=False))
                    asked[who].add(f"t{number}")
                elif what == "cancel" and asked[who]:
                    sessions[who].cancel(name := max(asked[who]))
                    gone[who].add(name)
                else:
                    await asyncio.sleep(0.05)
            for caller, wanted, cancelled in zip(callers, asked, gone, strict=True):
                for response_id in wanted - cancelled:
                    ended = await caller.until("ended", response_id)
                    assert ended[2] == "completed" or "too many" in str(ended[4]), ended
            most = max((step.kv.held_blocks for step in recorder.steps), default=0)
            assert most <= total
            assert engine.faults.counts["append"] == 0
            for i in range(3):
                engine.close(f"s{i}")

    run_virtual(main(), 600)


def test_answers_beside_conversations_wait_for_each_other() -> None:
    """One at a time where one is allowed, whoever asked; a conversation waits for none of them."""

    async def main() -> None:
        chosen = EngineSettings(out_of_band=1)
        async with running(cascade(), SimCost(0.02), settings=chosen) as (engine, _, _):
            callers = [Caller(), Caller()]
            sessions = [
                engine.open(f"s{i}", SessionSetup(), caller) for i, caller in enumerate(callers)
            ]
            for session in sessions:
                session.respond(aside("beside"))  # type: ignore[arg-type]
            sessions[1].respond(ask("talk", "hello", audio=False))
            await callers[0].until("ended", "beside")
            assert callers[1].text.get("beside") is None
            assert callers[1].text["talk"]
            await callers[1].until("ended", "beside")
            assert callers[1].text["beside"]
            for i in range(2):
                engine.close(f"s{i}")

    run_virtual(main(), 60)


def test_one_that_waits_can_be_cancelled_and_hung_up_on() -> None:
    """It is answered with nothing, and keeps nobody else waiting."""

    async def main() -> None:
        chosen = EngineSettings(out_of_band=1)
        async with running(cascade(), SimCost(0.02), settings=chosen) as (engine, _, _):
            callers = [Caller() for _ in range(3)]
            sessions = [
                engine.open(f"s{i}", SessionSetup(), caller) for i, caller in enumerate(callers)
            ]
            for session in sessions:
                session.respond(aside("a"))  # type: ignore[arg-type]
                session.respond(aside("b"))  # type: ignore[arg-type]
            await asyncio.sleep(0.1)
            sessions[0].cancel("b")
            engine.close("s1")
            await callers[2].until("ended", "b")
            assert callers[0].ended("b") is None
            assert callers[1].text == {}
            for i in (0, 2):
                engine.close(f"s{i}")

    run_virtual(main(), 60)


def test_a_deployment_may_give_none() -> None:
    """They fail at once, and say why."""

    async def main() -> None:
        async with running(cascade(), settings=EngineSettings(out_of_band=0)) as (engine, _, _):
            caller = Caller()
            session = engine.open("s", SessionSetup(), caller)
            session.respond(aside("r"))  # type: ignore[arg-type]
            ended = await caller.until("ended", "r")
            assert ended[2] == "failed"
            assert "outside the conversation" in str(ended[4])
            engine.close("s")

    run_virtual(main(), 60)
