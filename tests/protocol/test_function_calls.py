"""Functions that the model calls, event by event, in the order the real service sends them (recorded in mid-2026)."""

import json
from typing import Any

import pytest
from support.realtime_peer import USAGE, Peer, pcm

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL_BEGINS = ["response.output_item.added", "conversation.item.added"]
CALL_ENDS = [
    "response.function_call_arguments.done",
    "conversation.item.done",
    "response.output_item.done",
]
DELTA = "response.function_call_arguments.delta"


@pytest.fixture
def peer() -> Peer:
    peer = Peer()
    peer.updates(tools=[WEATHER])
    return peer


def calls(peer: Peer, response_id: str, *pieces: str, index: int = 0, done: bool = True) -> None:
    """The engine calls get_weather, its arguments in pieces."""
    for at, piece in enumerate(pieces):
        peer.connection.response_call(
            response_id, index, "get_weather", piece, done=done and at == len(pieces) - 1
        )


def ends(peer: Peer, response_id: str, reason: str = "completed") -> list[dict[str, Any]]:
    """The engine is done; the events since last asked."""
    peer.did(peer.connection.response_ended(response_id, reason, USAGE, None))
    return peer.events()


def test_a_call(peer: Peer) -> None:
    """A call is an item without a content part; its arguments stream and the last event repeats them with the name."""
    question = peer.says("Weather in Paris?")
    order = peer.asks()
    assert order.tools == (WEATHER,)
    calls(peer, order.response_id, '{"city": ', '"Paris"}')
    events = ends(peer, order.response_id)
    assert [event["type"] for event in events] == [
        "response.created",
        *CALL_BEGINS,
        DELTA,
        DELTA,
        *CALL_ENDS,
        "response.done",
    ]
    begun, added, *_, done = events[1:6]
    item = begun["item"]
    assert (item["type"], item["status"], item["arguments"]) == ("function_call", "in_progress", "")
    assert added["previous_item_id"] == question
    address = {
        "response_id": order.response_id,
        "item_id": item["id"],
        "output_index": 0,
        "call_id": item["call_id"],
    }
    for event in events[3:6]:
        assert address.items() <= event.items()
        assert "content_index" not in event
    assert done["name"] == "get_weather"
    assert done["arguments"] == '{"city": "Paris"}'
    finished = {**item, "status": "completed", "arguments": '{"city": "Paris"}'}
    assert events[6]["item"] == events[7]["item"] == finished
    assert events[-1]["response"]["output"] == [finished]
    assert events[-1]["response"]["status"] == "completed"


def test_parallel_calls(peer: Peer) -> None:
    """Calls of one answer are items of their own, numbered and chained in order."""
    peer.says("Paris and Rome?")
    order = peer.asks()
    calls(peer, order.response_id, '{"city": "Paris"}')
    calls(peer, order.response_id, '{"city": "Rome"}', index=1)
    events = ends(peer, order.response_id)
    first, second = events[-1]["response"]["output"]
    assert [json.loads(item["arguments"])["city"] for item in (first, second)] == ["Paris", "Rome"]
    assert first["call_id"] != second["call_id"]
    added = [event for event in events if event["type"] == "conversation.item.added"]
    assert added[1]["previous_item_id"] == first["id"]
    assert [e["output_index"] for e in events if e["type"] == "response.output_item.done"] == [0, 1]


def test_words_then_a_call(peer: Peer) -> None:
    """An answer may say something first: the message is complete before the call begins."""
    peer.says("Weather?")
    order = peer.asks()
    peer.connection.response_text(order.response_id, "Let me look.")
    peer.connection.response_audio(order.response_id, pcm(200))
    calls(peer, order.response_id, "{}")
    types = [event["type"] for event in ends(peer, order.response_id)]
    assert types.index("response.content_part.done") < types.index(DELTA)
    assert types.count("response.output_item.done") == 2
    assert peer.context()[1:] == [
        ("assistant", "Let me look."),
        ("assistant", '{"name": "get_weather", "arguments": {}}'),
    ]


def test_a_cancelled_call_is_not_run(peer: Peer) -> None:
    """Half a call closes as incomplete, without the event on which clients run the function, and is not remembered."""
    peer.says("Weather?")
    order = peer.asks()
    calls(peer, order.response_id, '{"ci', done=False)
    peer.sends("response.cancel")
    events = peer.events()
    assert [event["type"] for event in events[-3:]] == [*CALL_ENDS[1:], "response.done"]
    assert CALL_ENDS[0] not in [event["type"] for event in events]
    assert events[-2]["item"]["status"] == "incomplete"
    calls(peer, order.response_id, 'ty": 1}')
    assert peer.types() == []
    assert peer.context() == [("user", "Weather?")]


def test_a_call_that_reaches_the_token_limit(peer: Peer) -> None:
    """The answer is incomplete, and so is the call."""
    order = peer.asks(max_output_tokens=1)
    calls(peer, order.response_id, '{"ci', done=False)
    done = ends(peer, order.response_id, "max_output_tokens")[-1]["response"]
    assert done["status"] == "incomplete"
    assert done["output"][0]["status"] == "incomplete"


def test_the_round_trip(peer: Peer) -> None:
    """The result may come before the answer is done; the conversation holds question, call, result, answer."""
    peer.says("Weather in Paris?")
    order = peer.asks()
    calls(peer, order.response_id, '{"city": "Paris"}')
    call = next(e for e in peer.events() if e["type"] == CALL_ENDS[0])
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "Fog."}
    peer.sends("conversation.item.create", item=output)
    assert peer.types() == []
    events = ends(peer, order.response_id)
    assert [event["type"] for event in events][-3:] == [
        "response.done",
        "conversation.item.added",
        "conversation.item.done",
    ]
    assert events[-1]["previous_item_id"] == call["item_id"]
    peer.speaks(("It is foggy.", 400))
    assert peer.context() == [
        ("user", "Weather in Paris?"),
        ("assistant", '{"name": "get_weather", "arguments": {"city": "Paris"}}'),
        ("tool", "Fog."),
        ("assistant", "It is foggy."),
    ]


def test_an_out_of_band_call(peer: Peer) -> None:
    """A call beside the conversation is told of by its response alone."""
    order = peer.asks(conversation="none")
    calls(peer, order.response_id, "{}")
    types = [event["type"] for event in ends(peer, order.response_id)]
    assert not [kind for kind in types if kind.startswith("conversation.")]
    assert "response.function_call_arguments.done" in types


def test_which_tools_an_answer_may_use(peer: Peer) -> None:
    """Tools, choice and whether one call is all are the session's unless the answer is asked for otherwise."""
    peer.updates(tool_choice="required", parallel_tool_calls=False)
    order = peer.asks(conversation="none")
    assert (order.tool_choice, order.parallel_tool_calls) == ("required", False)
    order = peer.asks(conversation="none", tool_choice="none", parallel_tool_calls=True)
    assert (order.tool_choice, order.parallel_tool_calls) == ("none", True)


def test_a_named_tool_must_exist(peer: Peer) -> None:
    """Asking for a tool that was never described is a mistake that is told."""
    choice = {"type": "function", "name": "get_wether"}
    peer.sends("response.create", response={"tool_choice": choice})
    error = peer.only_event()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "response.tool_choice")
