"""The caller's turns beside the answers of a model that takes turns by itself: order, chain and endings."""

import pytest
from support.realtime_peer import USAGE, Peer, pcm

from protocol.commands import CommitAudio, CreateResponse
from protocol.response import ResponseUsage


@pytest.fixture
def peer() -> Peer:
    peer = Peer(decides_turns=True)
    peer.updates(audio={"input": {"transcription": {"model": "whisper-1"}}})
    return peer


def says(peer: Peer, words: str) -> str:
    """The caller's turn, from the first word to its transcript; the item's id."""
    peer.connection.speech_started(0)
    (commit,) = peer.connection.speech_stopped(900)
    assert isinstance(commit, CommitAudio)
    peer.connection.transcribed(commit.item_id, words, 0.9)
    return commit.item_id


def answers(peer: Peer) -> None:
    peer.connection.spoke(pcm(80), "Hm,")
    peer.connection.fell_silent()


def chain(events: list[dict[str, object]]) -> list[str]:
    """Item ids in the order that a client keeps them in, which inserts each after its `previous_item_id`."""
    order: list[str] = []
    for event in events:
        if event["type"] == "conversation.item.added":
            previous = event["previous_item_id"]
            item_id = event["item"]["id"]  # type: ignore[index]
            order.insert(order.index(previous) + 1 if previous else 0, item_id)  # type: ignore[arg-type]
    return order


def test_a_turn_is_told_in_the_usual_order_and_asks_for_nothing(peer: Peer) -> None:
    """Started, stopped, committed, added, done, transcript; the model alone answers."""
    peer.connection.speech_started(0)
    assert [type(c) for c in peer.connection.speech_stopped(900)] == [CommitAudio]
    item_id = peer.events()[-1]["item"]["id"]
    peer.connection.transcribed(item_id, "hello", 0.9)
    answers(peer)
    assert says(peer, "bye") != item_id
    assert not any(isinstance(command, CreateResponse) for command in peer.commands)


def test_events_of_a_turn(peer: Peer) -> None:
    """As a turn-based model's, with the same item in each."""
    item_id = says(peer, "hello")
    events = peer.events()
    assert [event["type"] for event in events] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
    ]
    ids = {event.get("item_id") or event["item"]["id"] for event in events}
    assert ids == {item_id}


def test_speech_does_not_cancel_an_open_answer(peer: Peer) -> None:
    """Its audio goes on, in the same response, until the model itself stops."""
    peer.connection.spoke(pcm(80), "Hm,")
    peer.events()
    says(peer, "wait")
    peer.connection.spoke(pcm(80), "")
    types = peer.types()
    assert "response.done" not in types
    assert types[-1] == "response.output_audio.delta"


def test_an_answer_that_began_before_the_turn_was_over_stands_after_it(peer: Peer) -> None:
    """The caller spoke first: the turn's item goes before the answer's, and the chain says so."""
    first = says(peer, "one")
    peer.connection.speech_started(1000)
    peer.connection.spoke(pcm(80), "Hm,")  # before the detector has waited long enough
    (commit,) = peer.connection.speech_stopped(1900)
    assert isinstance(commit, CommitAudio)
    peer.connection.fell_silent()
    third = says(peer, "three")
    events = peer.events()
    order = chain(events)
    (answer,) = [
        event["item"]["id"]
        for event in events
        if event["type"] == "conversation.item.added" and event["item"]["role"] == "assistant"
    ]
    assert order == [first, commit.item_id, answer, third]
    committed = [e for e in events if e["type"] == "input_audio_buffer.committed"]
    assert [e["previous_item_id"] for e in committed] == [None, first, answer]


def test_a_turn_after_a_deleted_item_goes_last(peer: Peer) -> None:
    """Where the item it would follow has gone meanwhile."""
    first = says(peer, "one")
    peer.connection.speech_started(1000)
    peer.sends("conversation.item.delete", item_id=first)
    note = peer.says("By the way")
    (commit,) = peer.connection.speech_stopped(1900)
    assert isinstance(commit, CommitAudio)
    added = [e for e in peer.events() if e["type"] == "conversation.item.added"]
    assert added[-1]["previous_item_id"] == note


def test_an_interruption_is_only_told_of_where_the_session_has_it(peer: Peer) -> None:
    """`interrupt_response` off: a model that stops while the caller speaks has completed its answer."""
    detection = {"type": "server_vad", "interrupt_response": False}
    peer.updates(audio={"input": {"turn_detection": detection}})
    peer.connection.spoke(pcm(80), "Hm,")
    peer.connection.speech_started(10)
    peer.connection.fell_silent()
    assert peer.events()[-1]["response"]["status"] == "completed"


def test_an_answer_that_was_asked_for_can_be_interrupted_too(peer: Peer) -> None:
    """Whoever began it, the model stopped because the caller spoke."""
    peer.asks()
    peer.connection.spoke(pcm(80), "Hm,")
    peer.connection.speech_started(10)
    peer.connection.fell_silent()
    assert peer.events()[-1]["response"]["status_details"]["reason"] == "turn_detected"


def test_an_answer_that_nobody_gives_is_done_with_nothing(peer: Peer) -> None:
    """The engine gives up waiting for the model: completed, no item."""
    order = peer.asks(metadata={"client_event_id": "e1"})
    peer.connection.fell_silent()
    peer.events()
    peer.connection.response_ended(order.response_id, "completed", ResponseUsage(), None)
    done = peer.only_event()["response"]
    assert (done["status"], done["output"]) == ("completed", [])
    assert done["metadata"] == {"client_event_id": "e1"}
    answers(peer)
    assert "response.created" in peer.types()


def test_what_was_cancelled_does_not_become_the_next_answer(peer: Peer) -> None:
    """The model speaks on after a cancel; an answer asked for then waits until it has fallen silent."""
    peer.connection.spoke(pcm(80), "Hm,")
    peer.sends("response.cancel")
    order = peer.asks()
    peer.events()
    peer.connection.spoke(pcm(80), "and")
    peer.connection.fell_silent()
    assert peer.events() == []
    peer.connection.spoke(pcm(80), "So")
    assert {e["response_id"] for e in peer.events() if "response_id" in e} == {order.response_id}
    peer.connection.fell_silent()
    assert peer.events()[-1]["response"]["status"] == "completed"
    peer.connection.response_ended(order.response_id, "completed", USAGE, None)
    assert peer.events() == []


def test_words_that_cannot_come_are_told_where_they_were_asked_for(peer: Peer) -> None:
    """The deployment has no transcriber: the item's transcription fails, and the conversation goes on."""
    peer.connection.speech_started(0)
    (commit,) = peer.connection.speech_stopped(900)
    assert isinstance(commit, CommitAudio)
    peer.events()
    peer.connection.transcription_failed(commit.item_id, "no transcriber")
    failed = peer.only_event()
    assert failed["type"] == "conversation.item.input_audio_transcription.failed"
    assert failed["error"]["message"] == "no transcriber"
