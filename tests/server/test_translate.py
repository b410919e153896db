"""What the protocol orders, in the engine's words."""

from typing import Any

import pytest

from protocol.commands import CreateResponse
from server.translate import request_of

LOOK = {"type": "function", "name": "look"}
LISTEN = {"type": "function", "name": "listen"}


def order(tool_choice: Any) -> CreateResponse:
    return CreateResponse(
        response_id="resp_1",
        instructions="",
        messages=(),
        audio=True,
        voice="alloy",
        speed=1.0,
        max_output_tokens=None,
        out_of_band=False,
        tools=(LOOK, LISTEN),
        tool_choice=tool_choice,
        parallel_tool_calls=False,
    )


@pytest.mark.parametrize(
    ("choice", "tools", "engine_choice"),
    [
        ("auto", (LOOK, LISTEN), "auto"),
        ("none", (LOOK, LISTEN), "none"),
        ("required", (LOOK, LISTEN), "required"),
        ({"type": "function", "name": "listen"}, (LISTEN,), "required"),
        ({"type": "function", "name": "smell"}, (), "required"),
    ],
)
def test_which_tools_an_answer_may_call(choice: Any, tools: Any, engine_choice: str) -> None:
    """Naming a tool is requiring it and no other; one that does not exist leaves nothing to call."""
    request = request_of(order(choice))
    assert (request.callable_tools, request.tool_choice) == (tools, engine_choice)
    assert request.tools == (LOOK, LISTEN)  # the header of the context stays as it is
    assert not request.parallel_calls
