"""Public bug reports against other servers, as tests with the right answer."""

import pytest
from support.realtime_peer import USAGE, Peer, pcm


@pytest.fixture
def peer() -> Peer:
    peer = Peer()
    peer.events()
    return peer


def test_every_update_is_answered(peer: Peer) -> None:
    """huggingface/speech-to-speech PR 413: clients wait for session.updated after each session.update."""
    for _ in range(3):
        assert peer.updates(instructions="Be brief.")["type"] == "session.updated"


def test_previous_item_ids_chain(peer: Peer) -> None:
    """livekit/agents PR 5320: previous_item_id is null for the first item only."""
    peer.says("One", "a")
    _, answer = peer.speaks(("Two", 100))
    peer.did(peer.connection.speech_started(0))
    peer.did(peer.connection.speech_stopped(300))
    events = peer.events()
    committed = next(e for e in events if e["type"] == "input_audio_buffer.committed")
    added = next(e for e in events if e["type"] == "conversation.item.added")
    assert committed["previous_item_id"] == added["previous_item_id"] == answer


def test_deleted_names_the_item(peer: Peer) -> None:
    """livekit/agents PR 5320: conversation.item.deleted carries the id of what was deleted."""
    peer.says("One", "a")
    peer.sends("conversation.item.delete", item_id="a")
    assert peer.only_event()["item_id"] == "a"


@pytest.mark.parametrize("cancelled", [False, True])
def test_whole_lifecycle(peer: Peer, cancelled: bool) -> None:
    """huggingface/speech-to-speech issue 457: added and done events come in pairs, also on cancel."""
    order = peer.asks()
    peer.connection.response_text(order.response_id, "Hi")
    peer.connection.response_audio(order.response_id, pcm(20))
    if cancelled:
        peer.sends("response.cancel")
    else:
        peer.did(peer.connection.response_ended(order.response_id, "completed", USAGE, None))
    types = peer.types()
    for opened, closed in (
        ("response.created", "response.done"),
        ("response.output_item.added", "response.output_item.done"),
        ("conversation.item.added", "conversation.item.done"),
        ("response.content_part.added", "response.content_part.done"),
        ("response.output_audio.delta", "response.output_audio.done"),
        ("response.output_audio_transcript.delta", "response.output_audio_transcript.done"),
    ):
        assert types.count(opened) == types.count(closed) == 1
        assert types.index(opened) < types.index(closed)


def test_partial_turn_detection_keeps_vad_on(peer: Peer) -> None:
    """sgl-project/sglang-omni PR 385: a turn_detection without type must not switch VAD off."""
    peer.updates(audio={"input": {"turn_detection": {"silence_duration_ms": 250}}})
    peer.connection.speech_started(0)
    assert peer.types() == ["input_audio_buffer.speech_started"]


def test_idle_cancel_is_harmless(peer: Peer) -> None:
    """pipecat-ai/pipecat issue 3755: cancelling nothing is the one error clients know, and the session goes on."""
    assert peer.sends("response.cancel") == []
    error = peer.only_event()["error"]
    assert error["code"] == "response_cancel_not_active"
    assert error["message"].startswith("Cancellation failed")
    assert peer.updates()["type"] == "session.updated"


def test_assistant_history_as_input_text(peer: Peer) -> None:
    """pipecat sends assistant history with `input_text` parts; they become what the assistant said."""
    item = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "input_text", "text": "A"}],
    }
    peer.sends("conversation.item.create", item=item)
    assert peer.events()[0]["item"]["content"] == [{"type": "output_text", "text": "A"}]
    assert peer.context() == [("assistant", "A")]


def test_audio_history_comes_with_its_words(peer: Peer) -> None:
    """A replayed audio turn is its transcript to the model; a developer speaks as the system."""
    for role, kind, ours in (
        ("user", "input_audio", "input_audio"),
        ("assistant", "output_audio", "output_audio"),
    ):
        part = {"type": kind, "transcript": role, "audio": "AAAA"}
        item = {"type": "message", "role": role, "content": [part]}
        peer.sends("conversation.item.create", item=item)
        assert peer.events()[0]["item"]["content"] == [{"type": ours, "transcript": role}]
    part = {"type": "input_text", "text": "Be kind"}
    peer.sends(
        "conversation.item.create", item={"type": "message", "role": "developer", "content": [part]}
    )
    assert peer.events()[0]["item"]["role"] == "system"
    assert peer.context() == [("user", "user"), ("assistant", "assistant"), ("system", "Be kind")]


def test_replayed_function_call(peer: Peer) -> None:
    """A function call and its output replayed by a client keep their ids and their order."""
    call = {"type": "function_call", "id": "fc", "name": "f", "arguments": "{}", "call_id": "c"}
    output = {"type": "function_call_output", "id": "fo", "call_id": "c", "output": "42"}
    peer.sends("conversation.item.create", item=call)
    peer.sends("conversation.item.create", item=output, previous_item_id="fc")
    events = peer.events()
    assert events[0]["item"] == {**call, "status": "completed"}
    assert events[2]["item"] == output
    assert events[2]["previous_item_id"] == "fc"
    assert peer.context() == [("assistant", '{"name": "f", "arguments": {}}'), ("tool", "42")]


def test_deleting_the_answer_in_progress(peer: Peer) -> None:
    """An answer whose item was deleted still ends, and the item does not come back."""
    order = peer.asks()
    peer.connection.response_text(order.response_id, "Hi")
    item_id = peer.events()[1]["item"]["id"]
    peer.sends("conversation.item.delete", item_id=item_id)
    peer.events()
    peer.did(peer.connection.response_ended(order.response_id, "completed", USAGE, None))
    types = peer.types()
    assert "conversation.item.done" not in types
    assert types[-2:] == ["response.output_item.done", "response.done"]
    assert peer.context() == []


def test_truncating_a_written_answer(peer: Peer) -> None:
    """A text answer has no audio to cut: the truncate is answered and its words stay."""
    peer.updates(output_modalities=["text"])
    _, item_id = peer.speaks(("Written.", 0))
    peer.sends("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=50)
    assert peer.only_event()["audio_end_ms"] == 0
    assert peer.context() == [("assistant", "Written.")]


def test_guessed_ids_do_not_clash() -> None:
    """A client that uses an id we would have made next gets it, and we make another."""
    peer = Peer()
    for number in range(20):  # each takes four ids, so that the answer's would be among these
        peer.says("x", f"item_test{80 + number:05x}")
    order = peer.asks()
    peer.connection.response_text(order.response_id, "Hi")
    (added,) = [e for e in peer.events() if e["type"] == "conversation.item.added"]
    assert added["previous_item_id"] == f"item_test{99:05x}"
    assert int(added["item"]["id"].removeprefix("item_test"), 16) == 100
    assert len(peer.context()) == 21
