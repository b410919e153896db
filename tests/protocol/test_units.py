"""The small parts: ids, validation, delta templates, the response's table."""

import base64
import json

import pytest

from protocol.codec import DeltaTemplate
from protocol.conversation import Conversation
from protocol.errors import ProtocolError
from protocol.ids import IdFactory
from protocol.kept_audio import AudioShelf
from protocol.response import COMPLETED, TRANSITIONS, Response, ResponseUsage, State, Step
from protocol.response_options import standing
from protocol.server_events import ServerEvents
from protocol.session_config import SessionDefaults, initial
from protocol.validation import nested_deeper_than


def test_ids_differ() -> None:
    """No two ids are alike, in one session or in two; a salt makes them predictable."""
    ids = [factory.new("item") for factory in (IdFactory(), IdFactory()) for _ in range(100)]
    assert len(set(ids)) == 200
    assert all(item_id.startswith("item_") for item_id in ids)
    assert IdFactory("s").event() == "event_s00001"


@pytest.mark.parametrize(("depth", "deeper"), [(0, False), (1, False), (64, False), (65, True)])
def test_nesting(depth: int, deeper: bool) -> None:
    """Containers within containers are counted, wide or deep."""
    value: object = 1
    for level in range(depth):
        value = {"a": value, "b": 2} if level % 2 else [value, 3]
    assert nested_deeper_than(value, 64) is deeper


def test_delta_templates_are_json() -> None:
    """A delta from a template is the JSON that an encoder would have made."""
    fields = {"response_id": "r", "item_id": 'i"\\', "output_index": 0, "content_index": 0}
    template = DeltaTemplate("x.delta", fields)
    head = {"type": "x.delta", "event_id": "e", **fields}
    awkward = 'quote " backslash \\ newline \n nul \0 emoji 🥁'
    assert json.loads(template.text("e", awkward)) == {**head, "delta": awkward}
    assert json.loads(template.audio("e", b"\1\2")) == {
        **head,
        "delta": base64.b64encode(b"\1\2").decode(),
    }


def test_errors_point_at_the_first_cause() -> None:
    """An error that already names its event keeps it."""
    error = ProtocolError("c", "m", event_id="first")
    assert error.about("second").event_id == "first"
    assert ProtocolError("c", "m").about("second").event_id == "second"


def test_usage_adds_up() -> None:
    """Audio is counted in tokens of 100 ms heard and 50 ms spoken, rounded up, and totals are sums."""
    usage = ResponseUsage(10, 4, 3, 101, 101).wire()
    assert usage["input_token_details"]["audio_tokens"] == 2
    assert usage["output_token_details"]["audio_tokens"] == 3
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (12, 6, 18)


def test_a_response_ends_once() -> None:
    """Ending twice is our mistake: it raises and emits nothing."""
    ids = IdFactory("t")
    events = ServerEvents(ids)
    options = standing(initial(SessionDefaults()))
    response = Response(options, Conversation("conv", 10, AudioShelf(0)), events, ids)
    response.write_text("")
    response.end(COMPLETED, None)
    events.take()
    with pytest.raises(KeyError):
        response.end(COMPLETED, None)
    response.write_audio(b"\0\0")
    assert events.take() == []


def test_the_table_has_no_way_back() -> None:
    """No step leads out of ENDED, and every other state can end."""
    assert not [step for state, step in TRANSITIONS if state is State.ENDED]
    for state in (State.OPEN, State.WRITING):
        assert TRANSITIONS[state, Step.END] is State.ENDED
