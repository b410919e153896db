"""Whole turns, event by event, in the order the real service sends them (recorded in mid-2026)."""

import base64

import pytest
from support.realtime_peer import USAGE, Peer, pcm

from protocol.commands import CancelResponse, CommitAudio, CreateResponse

SPOKEN_ANSWER = [
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "response.output_audio_transcript.delta",
    "response.output_audio.delta",
]
SPOKEN_END = [
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
]


@pytest.fixture
def peer() -> Peer:
    peer = Peer()
    peer.events()
    return peer


def test_first_event_is_session_created() -> None:
    """A session announces itself before anything is read."""
    assert Peer().types() == ["session.created"]


def test_typed_turn(peer: Peer) -> None:
    """A typed question is answered in text, each event in its place."""
    peer.updates(output_modalities=["text"])
    question = peer.says("What is it?")
    order = peer.asks(metadata={"k": "v"})
    peer.connection.response_text(order.response_id, "It is ")
    peer.connection.response_text(order.response_id, "fog.")
    peer.connection.response_audio(order.response_id, pcm(20))  # a text answer has no voice
    peer.did(peer.connection.response_ended(order.response_id, "completed", USAGE, None))
    events = peer.events()
    assert [event["type"] for event in events] == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert not order.audio
    assert events[1]["item"]["content"] == []
    assert events[2]["previous_item_id"] == question
    assert events[3]["part"] == {"type": "text", "text": ""}
    assert [event["delta"] for event in events[4:6]] == ["It is ", "fog."]
    assert events[6]["text"] == "It is fog."
    done = events[-1]["response"]
    assert done["status"] == "completed"
    assert done["status_details"] is None
    assert done["metadata"] == {"k": "v"}
    assert done["output"][0]["content"] == [{"type": "output_text", "text": "It is fog."}]
    assert done["usage"]["total_tokens"] == 40 + 15 + 9 + 18


def test_spoken_turn(peer: Peer) -> None:
    """A spoken question is committed when speech stops and answered aloud."""
    peer.sends("input_audio_buffer.append", audio=base64.b64encode(pcm(900)).decode())
    peer.did(peer.connection.speech_started(120))
    (commit, order) = peer.did(peer.connection.speech_stopped(800))
    assert isinstance(order, CreateResponse)
    peer.connection.response_text(order.response_id, "Hi.")
    peer.connection.response_audio(order.response_id, pcm(400))
    peer.did(peer.connection.response_ended(order.response_id, "completed", USAGE, None))
    events = peer.events()
    assert [event["type"] for event in events] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        *SPOKEN_ANSWER,
        *SPOKEN_END,
    ]
    user = events[0]["item_id"]
    assert commit == CommitAudio(user)
    assert [event["item_id"] for event in events[1:3]] == [user, user]
    assert (events[0]["audio_start_ms"], events[1]["audio_end_ms"]) == (120, 800)
    assert events[2]["previous_item_id"] is None
    assert events[3]["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    assert events[7]["previous_item_id"] == user
    assert events[8]["part"] == {"type": "audio", "transcript": ""}
    assert base64.b64decode(events[10]["delta"]) == pcm(400)
    assert [(m.role, m.audio) for m in order.messages] == [("user", True)]


def test_client_cancel_closes_everything(peer: Peer) -> None:
    """A cancelled answer ends with all its done events and nothing after."""
    order = peer.asks()
    peer.connection.response_text(order.response_id, "Well,")
    peer.connection.response_audio(order.response_id, pcm(300))
    assert peer.sends("response.cancel") == [CancelResponse(order.response_id)]
    peer.connection.response_text(order.response_id, " late")
    peer.connection.response_audio(order.response_id, pcm(300))
    assert peer.connection.response_ended(order.response_id, "completed", USAGE, None) == []
    events = peer.events()
    assert [event["type"] for event in events] == ["response.created", *SPOKEN_ANSWER, *SPOKEN_END]
    done = events[-1]["response"]
    assert done["status"] == "cancelled"
    assert done["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
    assert done["output"][0]["status"] == "incomplete"


def test_barge_in_cancels_as_turn_detected(peer: Peer) -> None:
    """Speech interrupts the answer, and only what can have been heard is remembered."""
    peer.says("Count.")
    order = peer.asks()
    peer.connection.response_text(order.response_id, "One,")
    peer.connection.response_audio(order.response_id, pcm(300))
    peer.connection.response_text(order.response_id, " two,")
    assert peer.did(peer.connection.speech_started(50)) == [CancelResponse(order.response_id)]
    events = peer.events()
    assert [event["type"] for event in events] == [
        "response.created",
        *SPOKEN_ANSWER,
        "response.output_audio_transcript.delta",
        "input_audio_buffer.speech_started",
        *SPOKEN_END,
    ]
    assert events[-1]["response"]["status_details"]["reason"] == "turn_detected"
    assert events[-5]["transcript"] == "One, two,"
    assert peer.context() == [("user", "Count."), ("assistant", "One,")]


def test_barge_in_before_the_first_word(peer: Peer) -> None:
    """An answer cancelled before it began has no output items."""
    order = peer.asks()
    peer.did(peer.connection.speech_started(50))
    peer.connection.response_text(order.response_id, "late")
    events = peer.events()
    assert [event["type"] for event in events] == [
        "response.created",
        "input_audio_buffer.speech_started",
        "response.done",
    ]
    assert events[-1]["response"]["output"] == []


def test_truncated_turn(peer: Peer) -> None:
    """Truncating forgets exactly the words that were not heard, in the item and in the context."""
    _, item_id = peer.speaks(("Hello there,", 900), (" how are you?", 1200))
    peer.sends("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=900)
    assert peer.only_event()["audio_end_ms"] == 900
    peer.sends("conversation.item.retrieve", item_id=item_id)
    (part,) = peer.only_event()["item"]["content"]
    assert (part["type"], part["transcript"]) == ("output_audio", "Hello there,")
    assert peer.context() == [("assistant", "Hello there,")]


def test_truncate_past_the_end_is_clamped(peer: Peer) -> None:
    """Truncating beyond the audio keeps all of it and says how long it is; before its start keeps nothing."""
    _, item_id = peer.speaks(("Hello.", 900))
    for asked, kept in ((5000, 900), (1e300, 900), (-3, 0), (900, 0)):
        peer.sends(
            "conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=asked
        )
        assert peer.only_event()["audio_end_ms"] == kept
    assert peer.context() == []


def test_truncate_while_the_answer_is_spoken(peer: Peer) -> None:
    """Truncating an answer in progress leaves its events whole and its memory short."""
    order = peer.asks()
    peer.connection.response_text(order.response_id, "One.")
    peer.connection.response_audio(order.response_id, pcm(500))
    item_id = peer.events()[1]["item"]["id"]
    peer.sends("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=500)
    peer.connection.response_text(order.response_id, " Two.")
    peer.connection.response_audio(order.response_id, pcm(500))
    peer.did(peer.connection.response_ended(order.response_id, "completed", USAGE, None))
    assert peer.events()[-1]["response"]["output"][0]["content"][0]["transcript"] == "One. Two."
    assert peer.context() == [("assistant", "One.")]


@pytest.mark.parametrize(
    ("reason", "status", "details"),
    [
        ("max_output_tokens", "incomplete", {"type": "incomplete", "reason": "max_output_tokens"}),
        (
            "failed",
            "failed",
            {
                "type": "failed",
                "error": {"type": "server_error", "code": "model_error", "message": "boom"},
            },
        ),
    ],
)
def test_other_endings(peer: Peer, reason: str, status: str, details: dict[str, object]) -> None:
    """An answer that ran out of tokens is incomplete, one that broke has failed; both still close."""
    order = peer.asks()
    peer.connection.response_text(order.response_id, "Hm")
    peer.did(peer.connection.response_ended(order.response_id, reason, USAGE, "boom"))
    done = peer.events()[-1]["response"]
    assert (done["status"], done["status_details"]) == (status, details)
    assert done["output"][0]["status"] == "incomplete"


def test_speech_that_may_not_interrupt_is_answered_next(peer: Peer) -> None:
    """With interrupt_response off, a turn that ends during an answer is answered when that is done."""
    peer.updates(audio={"input": {"turn_detection": {"interrupt_response": False}}})
    first = peer.asks()
    assert peer.did(peer.connection.speech_started(10)) == []
    (commit,) = peer.did(peer.connection.speech_stopped(400))
    assert isinstance(commit, CommitAudio)
    peer.connection.response_text(first.response_id, "Yes.")
    peer.events()
    (second,) = peer.connection.response_ended(first.response_id, "completed", USAGE, None)
    assert isinstance(second, CreateResponse)
    assert [m.role for m in second.messages] == ["assistant", "user"]
    assert peer.types()[-2:] == ["response.done", "response.created"]
    # Cancelling leaves nothing owed.
    assert peer.sends("response.cancel") == [CancelResponse(second.response_id)]


def test_barge_in_replaces_the_answer_owed(peer: Peer) -> None:
    """A turn that waits for its answer is answered together with the turn that interrupts."""
    peer.updates(audio={"input": {"turn_detection": {"interrupt_response": False}}})
    first = peer.asks()
    peer.did(peer.connection.speech_started(10))
    peer.did(peer.connection.speech_stopped(400))
    peer.updates(audio={"input": {"turn_detection": {"interrupt_response": True}}})
    assert peer.did(peer.connection.speech_started(500)) == [CancelResponse(first.response_id)]
    commit, answer = peer.did(peer.connection.speech_stopped(900))
    assert isinstance(commit, CommitAudio)
    assert isinstance(answer, CreateResponse)
    assert peer.connection.response_ended(answer.response_id, "completed", USAGE, None) == []


def test_answer_follows_what_it_answers(peer: Peer) -> None:
    """A turn committed before the answer's first word comes after that answer in the chain."""
    peer.updates(audio={"input": {"turn_detection": {"interrupt_response": False}}})
    question = peer.says("First?")
    order = peer.asks()
    peer.did(peer.connection.speech_started(10))
    peer.did(peer.connection.speech_stopped(400))
    later = peer.events()[-1]["item"]["id"]
    peer.connection.response_text(order.response_id, "Second.")
    added = peer.events()[1]
    assert added["previous_item_id"] == question
    (message,) = [m for m in peer.asks(conversation="none").messages if m.audio]
    assert message.item_id == later


def test_turn_detection_without_create_response(peer: Peer) -> None:
    """A turn is committed but not answered where the session says so."""
    peer.updates(audio={"input": {"turn_detection": {"create_response": False}}})
    peer.did(peer.connection.speech_started(10))
    assert len(peer.did(peer.connection.speech_stopped(400))) == 1
    assert "response.created" not in peer.types()


def test_late_speech_signals_are_ignored(peer: Peer) -> None:
    """Signals of a detector just switched off, or of a turn already committed, change nothing."""
    assert peer.connection.speech_stopped(10) == []
    peer.updates(audio={"input": {"turn_detection": None}})
    assert peer.connection.speech_started(10) == []
    assert peer.connection.speech_stopped(10) == []
    assert peer.events() == []


def test_idle_timeout(peer: Peer) -> None:
    """Silence for too long adds a note and an empty turn, and is answered."""
    _, order = peer.did(peer.connection.idle_timeout(1000, 7000))
    assert isinstance(order, CreateResponse)
    events = peer.events()
    assert [event["type"] for event in events] == [
        "input_audio_buffer.timeout_triggered",
        "conversation.item.added",
        "conversation.item.done",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
    ]
    assert events[0]["item_id"] == events[3]["item_id"] == events[4]["item"]["id"]
    assert [m.role for m in order.messages] == ["system"]
    assert peer.connection.idle_timeout(1000, 9000) == []  # an answer is in progress


def test_transcripts_are_told_only_when_asked_for(peer: Peer) -> None:
    """The words of a turn are always kept, and sent to clients that turned transcription on."""
    peer.did(peer.connection.speech_started(10))
    commit, _ = peer.did(peer.connection.speech_stopped(400))
    assert isinstance(commit, CommitAudio)
    peer.events()
    peer.connection.transcribed(commit.item_id, "quiet words", 1.5)
    assert peer.events() == []
    peer.connection.transcribed(commit.item_id, "again", 1.5)  # settled: the first words stand
    peer.sends("conversation.item.retrieve", item_id=commit.item_id)
    assert peer.only_event()["item"]["content"][0]["transcript"] == "quiet words"
    assert peer.context() == [("user", "quiet words")]


def test_transcripts_with_transcription_on(peer: Peer) -> None:
    """A transcript comes as one delta and a completed event that carries its duration; silence has no delta."""
    peer.updates(audio={"input": {"transcription": {"model": "any"}}})
    items = []
    for _ in range(3):
        peer.did(peer.connection.speech_started(10))
        items.append(peer.did(peer.connection.speech_stopped(400))[0].item_id)
        peer.sends("response.cancel")
    peer.events()
    peer.connection.transcribed(items[0], "words", 1.5)
    delta, completed = peer.events()
    assert delta["delta"] == completed["transcript"] == "words"
    assert completed["usage"] == {"type": "duration", "seconds": 1.5}
    peer.connection.transcribed(items[1], "", 0.4)
    assert peer.types() == ["conversation.item.input_audio_transcription.completed"]
    peer.connection.transcription_failed(items[2], "no ears")
    assert peer.only_event()["error"]["message"] == "no ears"
    peer.connection.transcription_failed("item_gone", "no ears")
    assert peer.events() == []
    assert peer.context() == [("user", "words")]


def test_transcription_session_gives_no_answers() -> None:
    """A transcription session commits and transcribes, and answers nothing."""
    peer = Peer(type="transcription")
    assert peer.only_event()["session"]["type"] == "transcription"
    peer.did(peer.connection.speech_started(10))
    (commit,) = peer.did(peer.connection.speech_stopped(400))
    assert isinstance(commit, CommitAudio)
    peer.events()
    peer.connection.transcribed(commit.item_id, "words", 1.5)
    assert peer.types() == [
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
    ]
    peer.connection.spoke(pcm(20), "no")
    peer.sends("response.create")
    assert peer.only_event()["error"]["code"] == "invalid_value"


def test_out_of_band_runs_beside_the_conversation(peer: Peer) -> None:
    """An out-of-band answer runs in parallel, shows no conversation and leaves no trace in it."""
    peer.says("Hello", "a")
    main = peer.asks()
    peer.connection.response_text(main.response_id, "Main")
    side = peer.asks(
        conversation="none",
        output_modalities=["text"],
        metadata={"topic": "x"},
        input=[
            {"type": "item_reference", "id": "a"},
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Classify."}],
            },
        ],
    )
    assert side.out_of_band
    assert [m.text for m in side.messages] == ["Hello", "Classify."]
    peer.events()
    peer.connection.response_text(side.response_id, "Greeting")
    assert peer.types() == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
    ]
    assert peer.connection.response_ended(side.response_id, "completed", USAGE, None) == []
    events = peer.events()
    assert "conversation.item.done" not in [event["type"] for event in events]
    assert events[-1]["response"]["conversation_id"] is None
    assert events[-1]["response"]["metadata"] == {"topic": "x"}
    assert peer.connection.response_ended(main.response_id, "completed", USAGE, None) == []
    peer.events()
    assert peer.context() == [("user", "Hello"), ("assistant", "Main")]


def test_empty_input_is_an_empty_context(peer: Peer) -> None:
    """`input: []` hides the conversation from the answer, which still joins it."""
    peer.says("Hello")
    assert peer.asks(input=[]).messages == ()


def test_function_output_waits_for_the_answer(peer: Peer) -> None:
    """A function's output sent during an answer is added after it, and what follows it too."""
    order = peer.asks()
    peer.connection.response_text(order.response_id, "Calling.")
    answer = peer.events()[1]["item"]["id"]
    output = {"type": "function_call_output", "id": "out", "call_id": "c", "output": "42"}
    peer.sends("conversation.item.create", item=output)
    note = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "So?"}]}
    peer.sends("conversation.item.create", item=note, previous_item_id="out")
    assert peer.events() == []
    peer.sends("conversation.item.retrieve", item_id="out")
    assert peer.only_event()["item"]["output"] == "42"
    peer.did(peer.connection.response_ended(order.response_id, "completed", USAGE, None))
    events = peer.events()
    kinds = [event["type"] for event in events]
    assert (
        kinds[kinds.index("response.done") + 1 :]
        == [
            "conversation.item.added",
            "conversation.item.done",
        ]
        * 2
    )
    assert [event["previous_item_id"] for event in events[-4::2]] == [answer, "out"]


def test_other_items_join_at_once(peer: Peer) -> None:
    """A message created during an answer is added without waiting: LiveKit gives up after five seconds."""
    peer.asks()
    peer.says("By the way", "note")
    assert peer.context() == [("user", "By the way")]


def test_frame_locked_speech_opens_and_closes_answers() -> None:
    """A frame-locked model's first sound opens an answer, its silence closes it."""
    peer = Peer(decides_turns=True)
    peer.events()
    peer.connection.fell_silent()
    peer.connection.spoke(pcm(80), "Hm,")
    peer.connection.spoke(pcm(80), "")
    peer.connection.fell_silent()
    events = peer.events()
    assert [event["type"] for event in events] == [
        "response.created",
        *SPOKEN_ANSWER,
        "response.output_audio.delta",
        *SPOKEN_END,
    ]
    assert events[-1]["response"]["usage"]["output_token_details"]["audio_tokens"] == 4


def test_frame_locked_model_decides_on_interruption() -> None:
    """Caller speech neither cancels nor asks a frame-locked model; if it stops, it was interrupted."""
    peer = Peer(decides_turns=True)
    peer.connection.spoke(pcm(80), "Hm,")
    assert peer.did(peer.connection.speech_started(10)) == []
    peer.connection.fell_silent()
    done = peer.events()[-1]["response"]
    assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert len(peer.did(peer.connection.speech_stopped(400))) == 1


def test_cancelled_frame_locked_model_is_ignored_until_silent() -> None:
    """A client's cancel hushes a frame-locked model until it has fallen silent by itself."""
    peer = Peer(decides_turns=True)
    peer.connection.spoke(pcm(80), "Hm,")
    peer.sends("response.cancel")
    peer.events()
    peer.connection.spoke(pcm(80), "and")
    assert peer.events() == []
    peer.connection.fell_silent()
    peer.connection.spoke(pcm(80), "So")
    assert "response.created" in peer.types()


def test_cancelling_another_answer_does_not_hush() -> None:
    """Only the cancel of what a frame-locked model was saying makes it be ignored."""
    peer = Peer(decides_turns=True)
    aside = peer.asks(conversation="none")
    peer.sends("response.cancel", response_id=aside.response_id)
    peer.asks()  # not yet begun
    peer.sends("response.cancel")
    peer.events()
    peer.connection.spoke(pcm(80), "So")
    assert "response.created" in peer.types()


def test_frame_locked_rate_is_that_of_the_answer() -> None:
    """A frame-locked model's audio keeps the rate its answer began with; the next takes the session's."""
    peer = Peer(decides_turns=True)
    peer.connection.spoke(pcm(80), "Hm,")
    peer.updates(audio={"output": {"format": {"type": "audio/pcmu"}}})
    assert peer.connection.output_rate("") == 24_000
    peer.connection.fell_silent()
    assert peer.connection.output_rate("") == 8000


def test_huge_audio_is_split(peer: Peer) -> None:
    """No frame exceeds what the strictest client accepts, however much audio comes at once."""
    order = peer.asks()
    peer.connection.response_audio(order.response_id, pcm(25_000))
    deltas = [e["delta"] for e in peer.events() if e["type"] == "response.output_audio.delta"]
    assert b"".join(base64.b64decode(delta) for delta in deltas) == pcm(25_000)
    assert len(deltas) == 3


@pytest.mark.parametrize("name", ["audio/pcmu", "audio/pcma"])
def test_g711_both_ways(peer: Peer, name: str) -> None:
    """G.711 comes in as pcm16 at 8 kHz and goes out as one byte per sample."""
    peer.updates(audio={"input": {"format": {"type": name}}, "output": {"format": {"type": name}}})
    (push,) = peer.sends("input_audio_buffer.append", audio=base64.b64encode(bytes(160)).decode())
    assert len(push.pcm) == 320
    order = peer.asks()
    assert peer.connection.output_rate(order.response_id) == 8000
    peer.connection.response_audio(order.response_id, pcm(20, 8000))
    assert len(base64.b64decode(peer.events()[-1]["delta"])) == 160
    assert peer.connection.output_rate("resp_unknown") == 8000
