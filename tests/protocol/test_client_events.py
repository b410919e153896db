"""Every client event, legal and illegal: what it is answered with."""

import base64
import json
from typing import Any

import pytest
from openai.types.realtime import realtime_client_event
from support.realtime_peer import Peer, pcm

from protocol.codec import MAX_APPEND_BYTES
from protocol.commands import ClearAudio, CommitAudio, Configure, PushAudio
from protocol.connection import SUPPORTED_CLIENT_EVENTS


def b64(audio: bytes) -> str:
    return base64.b64encode(audio).decode()


def message(role: str, **part: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [part]}


HELLO = message("user", type="input_text", text="Hello")

LEGAL: list[tuple[str, dict[str, Any], list[str]]] = [
    ("session.update", {"session": {"type": "realtime"}}, ["session.updated"]),
    ("session.update", {"session": {"type": "transcription"}}, ["session.updated"]),
    ("input_audio_buffer.append", {"audio": b64(pcm(20))}, []),
    ("input_audio_buffer.append", {"audio": ""}, []),
    ("input_audio_buffer.clear", {}, ["input_audio_buffer.cleared"]),
    ("output_audio_buffer.clear", {}, []),
    (
        "conversation.item.create",
        {"item": HELLO, "previous_item_id": "root"},
        ["conversation.item.added", "conversation.item.done"],
    ),
    ("conversation.item.delete", {"item_id": "known"}, ["conversation.item.deleted"]),
    ("conversation.item.retrieve", {"item_id": "known"}, ["conversation.item.retrieved"]),
    (
        "conversation.item.truncate",
        {"item_id": "said", "content_index": 0, "audio_end_ms": 10},
        ["conversation.item.truncated"],
    ),
    ("response.create", {}, ["response.created"]),
    ("response.create", {"response": None}, ["response.created"]),
    ("response.create", {"response": {"conversation": "none"}}, ["response.created"]),
]

ILLEGAL: list[tuple[str, dict[str, Any], str, str | None]] = [
    ("session.update", {}, "missing_required_parameter", "session"),
    ("session.update", {"session": {}}, "missing_required_parameter", "session.type"),
    ("session.update", {"session": {"type": "other"}}, "invalid_value", "session.type"),
    ("session.update", {"session": []}, "invalid_type", "session"),
    ("input_audio_buffer.append", {}, "missing_required_parameter", "audio"),
    ("input_audio_buffer.append", {"audio": "@@@@"}, "invalid_value", "audio"),
    ("input_audio_buffer.append", {"audio": "AAA"}, "invalid_value", "audio"),
    ("input_audio_buffer.append", {"audio": "é"}, "invalid_value", "audio"),
    ("input_audio_buffer.append", {"audio": b64(b"\0\0\0")}, "invalid_value", "audio"),
    ("input_audio_buffer.append", {"audio": 7}, "invalid_type", "audio"),
    ("input_audio_buffer.commit", {}, "input_audio_buffer_commit_empty", None),
    ("conversation.item.create", {}, "missing_required_parameter", "item"),
    ("conversation.item.create", {"item": {}}, "missing_required_parameter", "item.type"),
    ("conversation.item.create", {"item": {"type": "song"}}, "invalid_value", "item.type"),
    (
        "conversation.item.create",
        {"item": {"type": "message", "role": "user"}},
        "missing_required_parameter",
        "item.content",
    ),
    (
        "conversation.item.create",
        {"item": message("user", type="input_text")},
        "missing_required_parameter",
        "item.content[0].text",
    ),
    (
        "conversation.item.create",
        {"item": message("user", type="input_image", image_url="data:")},
        "invalid_value",
        "item.content[0].image_url",
    ),
    (
        "conversation.item.create",
        {"item": message("user", type="input_audio", audio="AAAA")},
        "invalid_value",
        "item.content[0].transcript",
    ),
    (
        "conversation.item.create",
        {"item": {**HELLO, "id": "known"}},
        "item_create_duplicate_item_id",
        "item.id",
    ),
    (
        "conversation.item.create",
        {"item": HELLO, "previous_item_id": "nobody"},
        "invalid_value",
        "previous_item_id",
    ),
    ("conversation.item.delete", {"item_id": "x"}, "item_delete_invalid_item_id", "item_id"),
    ("conversation.item.retrieve", {"item_id": "x"}, "item_retrieve_invalid_item_id", "item_id"),
    (
        "conversation.item.truncate",
        {"item_id": "x", "content_index": 0, "audio_end_ms": 0},
        "item_truncate_invalid_item_id",
        "item_id",
    ),
    (
        "conversation.item.truncate",
        {"item_id": "known", "content_index": 0, "audio_end_ms": 0},
        "invalid_value",
        "item_id",
    ),
    (
        "conversation.item.truncate",
        {"item_id": "said", "content_index": 1, "audio_end_ms": 0},
        "invalid_value",
        "content_index",
    ),
    (
        "conversation.item.truncate",
        {"item_id": "said", "content_index": 0},
        "missing_required_parameter",
        "audio_end_ms",
    ),
    ("response.create", {"response": 4}, "invalid_type", "response"),
    (
        "response.create",
        {"response": {"output_modalities": ["text", "audio"]}},
        "invalid_value",
        "response.output_modalities",
    ),
    (
        "response.create",
        {"response": {"metadata": {str(i): "" for i in range(17)}}},
        "invalid_value",
        "response.metadata",
    ),
    (
        "response.create",
        {"response": {"input": [{"type": "item_reference", "id": "nobody"}]}},
        "invalid_value",
        "response.input[0].id",
    ),
    (
        "response.create",
        {"response": {"input": [HELLO, {"type": "song"}]}},
        "invalid_value",
        "response.input[1].type",
    ),
    (
        "response.create",
        {"response": {"audio": {"output": {"format": {"type": "audio/pcm", "rate": 16000}}}}},
        "invalid_value",
        "response.audio.output.format.rate",
    ),
    ("response.cancel", {}, "response_cancel_not_active", None),
    ("response.cancel", {"response_id": "resp_x"}, "response_cancel_not_active", None),
    ("transcription_session.update", {"session": {}}, "invalid_value", "type"),
]


@pytest.fixture
def peer() -> Peer:
    peer = Peer()
    peer.says("Who is there?", "known")
    peer.sends(
        "conversation.item.create",
        item={**message("assistant", type="output_text", text="Me"), "id": "said"},
    )
    peer.events()
    return peer


def test_supported_events_are_the_sdk_ones() -> None:
    """The events we take are exactly those the `openai` package can send."""
    union = realtime_client_event.RealtimeClientEvent.__origin__  # type: ignore[attr-defined]
    theirs = {m.model_fields["type"].annotation.__args__[0] for m in union.__args__}
    assert set(SUPPORTED_CLIENT_EVENTS) == theirs


def test_the_tables_cover_every_event() -> None:
    """No event is left out of the tables below."""
    assert {row[0] for row in LEGAL + ILLEGAL} >= set(SUPPORTED_CLIENT_EVENTS)  # type: ignore[operator]


@pytest.mark.parametrize(("event_type", "fields", "answer"), LEGAL)
def test_legal(peer: Peer, event_type: str, fields: dict[str, Any], answer: list[str]) -> None:
    """A legal event is answered with its events and no error, with or without an event_id."""
    peer.sends(event_type, **fields, event_id="mine")
    assert peer.types() == answer


@pytest.mark.parametrize(("event_type", "fields", "code", "param"), ILLEGAL)
def test_illegal(
    peer: Peer, event_type: str, fields: dict[str, Any], code: str, param: str | None
) -> None:
    """An illegal event is answered with one error naming the field and the event, and changes nothing."""
    before = peer.context()
    assert peer.sends(event_type, **fields, event_id="mine") == []
    event = peer.only_event()
    assert event["type"] == "error"
    error = event["error"]
    assert (error["code"], error["param"], error["event_id"]) == (code, param, "mine")
    assert error["type"] == "invalid_request_error"
    assert peer.context() == before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"type":"response.create"} trailing',
        '{"type":"response.create","x":NaN}',
        '{"type":"response.create","x":"\\ud800"}',
        '{"type":"response.create","x":"\ud800"}',
        b"\xff\xfe\x00",
        '{"type":"response.create","response":' + '{"a":' * 100_000,
        '{"type":"session.update","session":' + '{"a":' * 5000 + "1" + "}" * 5001,
    ],
)
def test_not_json(peer: Peer, text: str | bytes) -> None:
    """What is not JSON gets invalid_json, whatever is wrong with it."""
    assert peer.connection.receive(text) == []
    assert peer.only_event()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(("digits", "answer"), [(4000, "session.updated"), (5000, "error")])
def test_huge_integers(peer: Peer, digits: int, answer: str) -> None:
    """An integer of any length is echoed, or refused where Python itself would not read it."""
    tool = '{"type":"function","name":"f","parameters":{"maximum":' + "9" * digits + "}}"
    peer.connection.receive(
        '{"type":"session.update","session":{"type":"realtime","tools":[' + tool + "]}}"
    )
    (text,) = peer.connection.take_events()
    assert f'"type":"{answer}"' in text


def test_deep_json_below_a_broken_field(peer: Peer) -> None:
    """An error found before the nesting is, leaves the nesting to the second parse, which survives it."""
    peer.connection.receive('{"type":"nope","x":' + "[" * 5000 + "]" * 5000 + "}")
    assert peer.only_event()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("value", "code", "param"),
    [
        ([], "invalid_type", None),
        (None, "invalid_type", None),
        ("session.update", "invalid_type", None),
        ({}, "missing_required_parameter", "type"),
        ({"type": 5}, "invalid_value", "type"),
        ({"type": ["a"]}, "invalid_value", "type"),
        ({"type": "response.create", "event_id": 5}, "invalid_type", "event_id"),
    ],
)
def test_not_an_event(peer: Peer, value: object, code: str, param: str | None) -> None:
    """JSON that is no event is told what it lacks."""
    peer.connection.receive(json.dumps(value))
    error = peer.only_event()["error"]
    assert (error["code"], error["param"]) == (code, param)


def test_unknown_type_lists_the_known_ones(peer: Peer) -> None:
    """The error for an unknown type names it and every supported type."""
    peer.sends("no.such.event", event_id="mine")
    error = peer.only_event()["error"]
    assert error["message"].startswith("Invalid value: 'no.such.event'. Supported values are: '")
    assert all(name in error["message"] for name in SUPPORTED_CLIENT_EVENTS)
    assert error["event_id"] == "mine"


@pytest.mark.parametrize("where", ["session", "item", "response"])
def test_deep_nesting_is_refused(peer: Peer, where: str) -> None:
    """Nesting that JSON can take but no schema has is refused, so that echoing it can never overflow."""
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"a": deep}
    event = {"session": "session.update", "item": "conversation.item.create"}.get(
        where, "response.create"
    )
    peer.sends(event, **{where: deep})
    error = peer.only_event()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", where)


def test_append_pushes_the_samples(peer: Peer) -> None:
    """Audio reaches the engine as it was sent."""
    assert peer.sends("input_audio_buffer.append", audio=b64(b"\1\2\3\4")) == [
        PushAudio(b"\1\2\3\4")
    ]


@pytest.mark.slow
def test_append_has_a_limit(peer: Peer) -> None:
    """15 MiB of audio is the most in one append; more is refused whole."""
    assert peer.sends("input_audio_buffer.append", audio=b64(bytes(MAX_APPEND_BYTES)))
    assert peer.sends("input_audio_buffer.append", audio=b64(bytes(MAX_APPEND_BYTES + 2))) == []
    assert peer.only_event()["error"]["param"] == "audio"


def test_manual_commit(peer: Peer) -> None:
    """A commit of 100 ms or more makes a user item and no answer; the next needs new audio."""
    peer.sends("input_audio_buffer.append", audio=b64(pcm(99)))
    peer.sends("input_audio_buffer.commit")
    assert "99.00 ms" in peer.only_event()["error"]["message"]
    peer.sends("input_audio_buffer.append", audio=b64(pcm(1)))
    (commit,) = peer.sends("input_audio_buffer.commit")
    events = peer.events()
    assert [event["type"] for event in events] == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
    ]
    assert [event["previous_item_id"] for event in events] == ["said"] * 3
    assert commit == CommitAudio(events[0]["item_id"])
    peer.sends("input_audio_buffer.commit")
    assert peer.only_event()["error"]["code"] == "input_audio_buffer_commit_empty"


def test_commit_during_speech_uses_its_item(peer: Peer) -> None:
    """A manual commit while the caller speaks commits the item that speech_started announced."""
    peer.sends("input_audio_buffer.append", audio=b64(pcm(200)))
    peer.connection.speech_started(10)
    item_id = peer.only_event()["item_id"]
    assert peer.sends("input_audio_buffer.commit") == [CommitAudio(item_id)]
    peer.events()
    assert peer.connection.speech_stopped(180) == []
    assert peer.events() == []


def test_promised_item_id_is_taken(peer: Peer) -> None:
    """A client cannot use the id promised to the turn being spoken."""
    peer.connection.speech_started(10)
    promised = peer.only_event()["item_id"]
    peer.sends("conversation.item.create", item={**HELLO, "id": promised})
    assert peer.only_event()["error"]["code"] == "item_create_duplicate_item_id"


def test_clear_forgets_the_turn(peer: Peer) -> None:
    """Clearing empties the buffer, for us and for the engine."""
    peer.sends("input_audio_buffer.append", audio=b64(pcm(200)))
    peer.connection.speech_started(10)
    assert peer.sends("input_audio_buffer.clear") == [ClearAudio()]
    peer.events()
    assert peer.connection.speech_stopped(100) == []
    peer.sends("input_audio_buffer.commit")
    assert peer.only_event()["error"]["code"] == "input_audio_buffer_commit_empty"


def test_start_and_update_configure_the_engine(peer: Peer) -> None:
    """The engine gets the settings at the start and again with each update."""
    (first,) = Peer().commands
    assert isinstance(first, Configure)
    assert first.instructions == "Be kind."
    (update,) = peer.sends(
        "session.update", session={"type": "realtime", "instructions": "Be brief."}
    )
    assert isinstance(update, Configure)
    assert update.instructions == "Be brief."


def test_second_active_response_is_refused(peer: Peer) -> None:
    """One answer at a time in the conversation."""
    order = peer.asks()
    peer.events()
    peer.sends("response.create", event_id="again")
    error = peer.only_event()["error"]
    assert error["code"] == "conversation_already_has_active_response"
    assert order.response_id in error["message"]
    assert error["event_id"] == "again"


def test_out_of_band_responses_are_bounded() -> None:
    """Answers beside the conversation have a limit of their own."""
    peer = Peer(max_out_of_band=1)
    peer.asks(conversation="none")
    peer.events()
    peer.sends("response.create", response={"conversation": "none"})
    assert peer.only_event()["error"]["code"] == "rate_limit_exceeded"
    assert peer.asks()


def test_cancel_never_hits_another_response(peer: Peer) -> None:
    """A cancel that names a finished answer leaves the next one alone."""
    old = peer.asks()
    peer.sends("response.cancel", response_id=old.response_id)
    new = peer.asks()
    peer.events()
    assert peer.sends("response.cancel", response_id=old.response_id) == []
    assert peer.only_event()["error"]["message"].startswith("Cancellation failed")
    assert len(peer.sends("response.cancel", response_id=new.response_id)) == 1


def test_response_overrides(peer: Peer) -> None:
    """A response.create may differ from the session in everything it names."""
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    order = peer.asks(
        instructions="Rhyme.",
        output_modalities=["text"],
        max_output_tokens=7,
        tools=[tool],
        tool_choice={"type": "function", "name": "look"},
        audio={"output": {"voice": "nobody", "format": {"type": "audio/pcma"}}},
        prompt={"id": "p"},
        reasoning={"effort": "low"},
        parallel_tool_calls=True,
    )
    assert (order.instructions, order.audio, order.max_output_tokens) == ("Rhyme.", False, 7)
    assert order.tools == (tool,)
    assert order.tool_choice == {"type": "function", "name": "look"}
    created = peer.only_event()["response"]
    assert created["audio"]["output"] == {"format": {"type": "audio/pcma"}, "voice": "alloy"}
    assert created["max_output_tokens"] == 7


def test_deferred_items(peer: Peer) -> None:
    """Function outputs waiting for an answer obey the same rules as items: unique, placeable, deletable, bounded."""
    peer = Peer(max_deferred=2)
    peer.says("Hi", "a")
    order = peer.asks()
    peer.events()

    def output(item_id: str, **more: Any) -> str | None:
        item = {"type": "function_call_output", "id": item_id, "call_id": "c", "output": "1"}
        peer.sends("conversation.item.create", item=item, **more)
        events = peer.events()
        return events[0]["error"]["code"] if events else None

    assert output("a") == "item_create_duplicate_item_id"
    assert output("one", previous_item_id="nobody") == "invalid_value"
    assert output("one", previous_item_id="a") is None
    assert output("one") == "item_create_duplicate_item_id"
    assert output("two", previous_item_id="one") is None
    assert output("three") == "rate_limit_exceeded"
    peer.sends("conversation.item.delete", item_id="one")
    assert peer.types() == ["conversation.item.deleted"]
    peer.sends("response.cancel", response_id=order.response_id)
    added = [e for e in peer.events() if e["type"] == "conversation.item.added"]
    # Its predecessor was deleted while both waited, so it comes last.
    assert [(e["item"]["id"], e["previous_item_id"]) for e in added] == [("two", "a")]


def test_shell_errors(peer: Peer) -> None:
    """The shell may report what it alone knows."""
    peer.connection.error("session_expired", "Too long.", param="p", event_id="e")
    error = peer.only_event()["error"]
    assert error["type"] == "server_error"
    assert (error["code"], error["param"], error["event_id"]) == ("session_expired", "p", "e")
