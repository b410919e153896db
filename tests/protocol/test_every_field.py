"""Every field of every client event, as the `openai` package types them: taken, or refused in words.

The types are walked: each field in each of its forms, null among them, in an event that has nothing else but what must
be there. Whatever these types allow, some client may send, and an error ends pipecat's session.
"""

import base64
import json
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from openai.types import realtime
from pydantic import BaseModel
from support.realtime_peer import Peer, pcm

EVENTS = get_args(get_args(realtime.RealtimeClientEvent)[0])
KNOWN = "item_known"  # an answer that is in the conversation
AUDIO = base64.b64encode(pcm(200)).decode()
# What these types leave open and no server can do without, or this one does not do.
REFUSED = {
    "missing_required_parameter": (
        "content[0].type",
        "content[0].text",
        "content[0].image_url",
        "].name",
    ),
    "invalid_type": ("content[0].type", "].name"),
    "invalid_value": ("content[0].transcript", "tool_choice"),
    "response_cancel_not_active": ("",),
}


def forms(hint: Any) -> list[tuple[str, Any]]:
    """What a type may be: ("value", …), ("list", its element) or ("model", its class)."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return forms(arguments[0])
    if origin in (Union, types.UnionType):
        return [form for argument in arguments for form in forms(argument)]
    if origin is Literal:
        return [("value", value) for value in arguments]
    if origin is list:
        return [("list", arguments[0])]
    if origin is dict:
        return [("value", {"key": least(arguments[1])})]
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return [("model", hint)]
    simple = {type(None): None, str: "text", int: 1000, float: 0.5, bool: True}
    return [("value", simple.get(hint, {"type": "object", "properties": {}}))]


def least(hint: Any) -> Any:
    """The first form of a type, with nothing in it that need not be."""
    kind, form = forms(hint)[0]
    if kind == "value":
        return form
    if kind == "list":
        return [least(form)]
    fields = form.model_fields.items()
    return {field.alias or n: least(field.annotation) for n, field in fields if field.is_required()}


def examples(hint: Any) -> Iterator[Any]:
    """Every form of a type, and of each field in it, one at a time."""
    for kind, form in forms(hint):
        if kind == "value":
            yield form
        elif kind == "list":
            yield from ([example] for example in examples(form))
        else:
            bare = least(form)
            yield bare
            for name, field in form.model_fields.items():
                for example in examples(field.annotation):
                    yield {**bare, field.alias or name: example}


def sent(event: dict[str, Any]) -> list[dict[str, Any]]:
    """The errors that an event leads to, in a session with something in it; whatever it leads to is valid."""
    peer = Peer(sees_images=True)
    answer = {"type": "output_text", "text": "Hi."}
    item = {"type": "message", "role": "assistant", "content": [answer], "id": KNOWN}
    peer.sends("conversation.item.create", item=item)
    peer.sends("input_audio_buffer.append", audio=AUDIO)
    peer.events()
    known = {"item_id": KNOWN, "previous_item_id": KNOWN, "audio": AUDIO, "content_index": 0}
    event |= {key: value for key, value in known.items() if event.get(key) is not None}
    peer.connection.receive(json.dumps(event))
    return [e["error"] for e in peer.events() if e["type"] == "error"]


@pytest.mark.parametrize("event_type", EVENTS, ids=lambda e: e.__name__)
def test_whatever_the_types_allow_is_taken_or_refused_by_name(event_type: Any) -> None:
    """Nothing is refused but MCP and what lacks its meaning; a refusal names the field."""
    for event in examples(event_type):
        for error in sent(event):
            param = error["param"] or ""
            about_mcp = "mcp" in json.dumps(event) and error["code"] == "invalid_value"
            expected = REFUSED.get(error["code"], ())
            assert about_mcp or any(end in param for end in expected), (event, error)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"noise_reduction": {"strength": 0.5}}, {"type": "near_field"}),
        ({"noise_reduction": {"type": "far_field", "strength": 0.5}}, {"type": "far_field"}),
        ({"noise_reduction": {"type": None}}, {"type": "near_field"}),
    ],
)
def test_half_a_noise_reduction_is_one(given: dict[str, Any], kept: dict[str, Any]) -> None:
    """A strength alone means that some is wanted."""
    echoed = Peer().updates(audio={"input": given})["session"]["audio"]["input"]
    assert echoed["noise_reduction"] == kept


def test_null_in_a_tool_is_not_echoed() -> None:
    """Clients' schemas say "optional" where they mean "no null"."""
    tool = {"type": None, "name": "look", "description": None, "parameters": None}
    assert Peer().updates(tools=[tool])["session"]["tools"] == [
        {"type": "function", "name": "look"}
    ]


DOCUMENT = Path(__file__).parents[2] / "docs/realtime.md"


def fields(hint: Any) -> Iterator[str]:
    """The names of all fields in a type, but for those of MCP."""
    for kind, form in forms(hint):
        if kind == "list":
            yield from fields(form)
        elif kind == "model" and "mcp" not in form.__name__.lower():
            for name, field in form.model_fields.items():
                yield field.alias or name
                yield from fields(field.annotation)


def test_every_field_is_documented() -> None:
    """What it does here, or that it does nothing."""
    told = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`\n]+)`", DOCUMENT.read_text()))))
    wanted = {name for event_type in EVENTS for name in fields(event_type)}
    assert wanted - told == set()
