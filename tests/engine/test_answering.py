"""What is answered, and what is not."""

from typing import Any

import pytest
from support.sim_engine import Caller, ask, cascade, running

from engine.models.base import Message, SessionSetup
from engine.response import ResponseRequest
from engine.virtual_time import run_virtual


def request(*messages: Message) -> ResponseRequest:
    return ResponseRequest("r", "Greet the caller.", messages)


@pytest.mark.parametrize(
    ("asked", "speaks"),
    [
        (
            request(),
            True,
        ),  # the instructions are all there is: agents that speak first begin like this
        (request(Message("tool", "")), True),  # a function that returned nothing has been run
        (request(Message("user", " ")), False),  # nothing intelligible was said
        (ask("r", "Hello?"), True),
    ],
    ids=["no message", "empty result", "unintelligible", "a question"],
)
def test_what_is_answered(asked: Any, speaks: bool) -> None:
    """Only a caller who said nothing intelligible gets no answer; the response completes all the same."""

    async def scenario() -> None:
        async with running(cascade()) as (engine, _, _plant):
            caller = Caller()
            engine.open("s", SessionSetup(), caller).respond(asked)
            ended = await caller.until("ended", "r")
            assert ended[2] == "completed"
            assert ("r" in caller.audio) is speaks
            engine.close("s")

    run_virtual(scenario())
