"""The Live protocol machine: silence and speech on a grid, and a memory of what was played."""

import base64
import itertools
import json
from typing import Any

import pytest

from protocol.commands import (
    CancelResponse,
    Command,
    CommitAudio,
    Configure,
    CreateResponse,
    Hangup,
    PushAudio,
)
from protocol.ids import IdFactory
from protocol.live.connection import LiveConnection
from protocol.live.playout import Playout, Said
from protocol.response import ResponseUsage
from protocol.session_config import SessionDefaults

USAGE = ResponseUsage()
SLOT = 24_000 * 2 // 5  # bytes of 200 ms


class Live:
    """A session and both its neighbours."""

    def __init__(self, *, start: bool = True, decides_turns: bool = False, **session: Any) -> None:
        self.machine = LiveConnection(
            session_id="sess_1",
            model="tiny",
            defaults=SessionDefaults(instructions="Be kind.", decides_turns=decides_turns),
            ids=IdFactory("test"),
            expires_at=1_800_000_000,
        )
        self.machine.start()
        if start:
            self.started = self.sends("session.start", session={"model": "any", **session})
            self.events()

    def sends(self, kind: str, **fields: Any) -> list[Command]:
        return self.machine.receive(json.dumps({"type": kind, **fields}))

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.machine.take_events()]

    def beat(self) -> list[dict[str, Any]]:
        self.machine.beat()
        return self.events()

    def speaks(self, from_ms: int = 0, to_ms: int = 900) -> tuple[str, CreateResponse]:
        """The caller says something; returns the turn's item id and the order for an answer."""
        self.machine.speech_started(from_ms)
        commit, order = self.machine.speech_stopped(to_ms)
        assert isinstance(commit, CommitAudio)
        assert isinstance(order, CreateResponse)
        return commit.item_id, order

    def answers(self, order: CreateResponse, *clauses: tuple[str, int]) -> None:
        """The engine gives (words, slots of audio) at once."""
        for words, slots in clauses:
            self.machine.response_text(order.response_id, words)
            self.machine.response_audio(order.response_id, b"\x01\x02" * (SLOT // 2) * slots)
        self.machine.response_ended(order.response_id, "completed", USAGE, None)


def _context(order: CreateResponse) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in order.messages]


def test_nothing_is_said_before_the_start() -> None:
    """Neither events nor silence; the start is answered with the session and sets the engine up."""
    live = Live(start=False)
    assert live.beat() == []
    voice = {"output": {"voice": "nobody's"}, "format": {"type": "audio/pcm", "rate": 16000}}
    (configure,) = live.sends(
        "session.start", event_id="e1", session={"model": "m", "audio": voice}
    )
    assert isinstance(configure, Configure)
    assert (configure.input_rate, configure.instructions) == (16_000, "Be kind.")
    assert configure.turn_detection.eagerness == "auto"
    (started,) = live.events()
    assert (started["type"], started["client_event_id"]) == ("session.started", "e1")
    session = started["session"]
    assert (session["id"], session["model"], session["status"]) == ("sess_1", "tiny", "active")
    assert session["audio"]["output"]["voice"] == "alloy"


def test_every_200_ms_there_is_audio_silent_or_not() -> None:
    """Answers that came at once are played at their pace, filled up with zeros, then silence again."""
    live = Live()
    _, order = live.speaks()
    live.answers(order, ("One.", 1), (" Two.", 1))
    live.machine.response_audio(order.response_id, b"\x05\x05")  # of an answer that is over
    slots = [live.beat() for _ in range(3)]
    assert [[e["type"] for e in slot] for slot in slots] == [
        ["session.output_transcript.delta", "session.output_audio.delta"],
        ["session.output_transcript.delta", "session.output_audio.delta"],
        ["session.output_audio.delta"],
    ]
    words = [(slot[0]["delta"], slot[0]["start_ms"], slot[0]["end_ms"]) for slot in slots[:2]]
    assert words == [("One.", 0, 200), (" Two.", 200, 400)]
    audio = [base64.b64decode(slot[-1]["delta"]) for slot in slots]
    assert [len(piece) for piece in audio] == [SLOT] * 3
    assert any(audio[0])
    assert not any(audio[2])
    assert set(slots[2][0]) == {"type", "delta"}  # no event id, as the real service sends it


def test_what_was_not_heard_was_not_said() -> None:
    """Speech ends what is being played, even of an answer that was made in full."""
    live = Live()
    _, order = live.speaks()
    live.answers(order, ("One.", 1), (" Two.", 1), (" Three.", 1))
    live.beat()
    live.beat()
    assert live.machine.speech_started(3000) == []
    (quiet,) = live.beat()
    assert not any(base64.b64decode(quiet["delta"]))
    _, order = live.speaks()
    assert ("assistant", "One. Two.") in _context(order)


def test_speech_cancels_the_answer_being_made_and_nothing_of_it_follows() -> None:
    """The engine is told; its late words and sounds are dropped."""
    live = Live()
    _, order = live.speaks()
    live.machine.response_text(order.response_id, "Well,")
    assert live.machine.speech_started(2000) == [CancelResponse(order.response_id)]
    live.machine.response_text(order.response_id, " so")
    live.machine.response_audio(order.response_id, b"\x01\x01" * SLOT)
    assert [event["type"] for event in live.beat()] == ["session.output_audio.delta"]


def test_the_callers_words_lie_on_the_grid_and_reach_the_model() -> None:
    """Over the cells in which they were spoken; until they are known the model waits for them."""
    live = Live()
    item_id, order = live.speaks(310, 890)
    assert order.messages[-1].audio
    live.machine.transcribed(item_id, "Hello there.", 0.6)
    (said,) = live.events()
    assert (said["delta"], said["start_ms"], said["end_ms"]) == ("Hello there.", 200, 1000)
    live.machine.transcribed(item_id, "Again?", 0.6)
    assert live.events() == []
    _, order = live.speaks(2000, 2500)
    assert _context(order)[0] == ("user", "Hello there.")
    live.machine.transcription_failed(order.messages[-1].item_id, "no ears")
    assert live.events() == []


def test_the_conversation_so_far_and_appended_context_come_first() -> None:
    """Initial messages keep their roles; context is acknowledged where the session stands."""
    live = Live(
        input=[
            {"role": "developer", "content": [{"type": "input_text", "text": "Ann calls."}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Hello Ann."}]},
        ]
    )
    live.beat()
    assert live.sends("session.thinking.append", event_id="t", content="It rains.") == []
    (appended,) = live.events()
    assert appended["type"] == "session.thinking.appended"
    assert (appended["client_event_id"], appended["start_ms"]) == ("t", 200)
    _, order = live.speaks()
    assert _context(order)[:3] == [
        ("system", "Ann calls."),
        ("assistant", "Hello Ann."),
        ("system", "It rains."),
    ]


def test_commentary_is_spoken_when_nothing_else_is() -> None:
    """During an answer it waits in the conversation."""
    live = Live()
    (order,) = live.sends("session.commentary.append", content="It is done.")
    assert isinstance(order, CreateResponse)
    assert _context(order) == [("system", "It is done.")]
    assert live.sends("session.commentary.append", content="And more.") == []


def test_a_muted_caller_is_not_heard() -> None:
    """Until unmuted; both are acknowledged."""
    live = Live()
    audio = base64.b64encode(b"\x01\x02").decode()
    live.sends("session.input_audio.mute")
    assert live.sends("session.input_audio.append", audio=audio) == []
    live.sends("session.input_audio.unmute")
    assert live.sends("session.input_audio.append", audio=audio) == [PushAudio(b"\x01\x02")]
    assert [e["type"] for e in live.events()] == [
        "session.input_audio.muted",
        "session.input_audio.unmuted",
    ]


def test_usage_is_told_every_ten_seconds_and_at_the_end() -> None:
    """Cumulative, in whole seconds; after session.closed nothing follows."""
    live = Live()
    told = [e for _ in range(101) for e in live.beat() if e["type"] == "session.usage.updated"]
    assert [event["usage"]["seconds"] for event in told] == [10, 20]
    assert live.sends("session.close", event_id="bye") == [Hangup(1000, "close_requested")]
    (closed,) = live.events()
    assert (closed["reason"], closed["usage"]["seconds"]) == ("close_requested", 20)
    assert live.beat() == []
    live.sends("session.input_audio.mute")
    live.machine.error("internal", "too late")
    assert live.events() == []


def test_delegation_is_accepted_and_said_to_be_unused() -> None:
    """Clients ask for it by default; the session is as it would be without."""
    live = Live(start=False)
    live.sends("session.start", session={"model": "m", "delegation": {"type": "client"}})
    started, info = live.events()
    assert started["session"]["delegation"] == {"type": "client"}
    assert (info["type"], info["code"]) == ("info", "nothing_delegated")


def test_an_expired_session_is_closed_as_such() -> None:
    """Not by an error."""
    live = Live()
    live.machine.error("session_expired", "an hour is over")
    (closed,) = live.events()
    assert (closed["type"], closed["reason"]) == ("session.closed", "expired")


def test_a_failed_answer_is_an_error_and_the_session_goes_on() -> None:
    """The next turn is answered."""
    live = Live()
    _, order = live.speaks()
    live.machine.response_ended(order.response_id, "failed", USAGE, "no blocks")
    assert live.events()[0]["error"]["message"] == "no blocks"
    live.speaks()


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("{", "invalid_json", None),
        ("[]", "invalid_type", None),
        ("{}", "missing_required_parameter", "type"),
        ('{"type":"response.create"}', "invalid_value", "type"),
        ('{"type":"session.start","session":{}}', "missing_required_parameter", "session.model"),
        (
            '{"type":"session.start","session":{"model":"m","audio":{"format":{"type":"audio/pcm","rate":8000}}}}',
            "invalid_value",
            "session.audio.format.rate",
        ),
        ('{"type":"session.close"}', "session_not_started", None),
    ],
)
def test_a_mistake_is_one_error_and_changes_nothing(
    text: str, code: str, param: str | None
) -> None:
    """The session can be started afterwards."""
    live = Live(start=False)
    assert live.machine.receive(text) == []
    (event,) = live.events()
    assert (event["error"]["code"], event["error"].get("param")) == (code, param)
    assert live.sends("session.start", session={"model": "m"})


def test_a_started_session_does_not_start_again_and_bad_audio_is_named() -> None:
    """With the id of the event that was wrong."""
    live = Live()
    live.sends("session.start", event_id="e", session={"model": "m"})
    live.sends("session.input_audio.append", event_id="a", audio="?")
    again, bad = live.events()
    assert (again["error"]["code"], again["client_event_id"]) == ("session_already_started", "e")
    assert bad["error"]["client_event_id"] == "a"
    live.sends("session.update", session={})
    assert live.events()[0]["type"] == "session.updated"


def test_a_frame_locked_model_is_played_as_it_speaks() -> None:
    """Its words go with its sound."""
    live = Live()
    live.machine.spoke(b"\x01\x01" * (SLOT // 2), "Hm.")
    live.machine.fell_silent()
    words, audio = live.beat()
    assert words["delta"] == "Hm."
    assert any(base64.b64decode(audio["delta"]))


def test_a_frame_locked_model_is_neither_asked_nor_cut_short() -> None:
    """It hears the caller itself: a turn is remembered and told in words, and what it says goes on."""
    live = Live(decides_turns=True)
    live.machine.spoke(b"\x01\x01" * SLOT, "good morning")  # two slots
    assert live.machine.speech_started(0) == []
    assert any(base64.b64decode(live.beat()[-1]["delta"]))
    (commit,) = live.machine.speech_stopped(900)
    assert isinstance(commit, CommitAudio)
    live.machine.transcribed(commit.item_id, "hello", 0.9)
    assert live.events()[-1]["delta"] == "hello"
    assert any(base64.b64decode(live.beat()[-1]["delta"]))


def test_pieces_of_any_size_are_played_without_a_gap() -> None:
    """However the audio was cut up, and words wait for their place in it."""
    playout, said = Playout(1000), Said("assistant", "i")
    sound = bytes(range(1, 251)) * 4  # 2.5 slots of 400 bytes
    playout.push_words(said, "a")
    for start in range(0, 1000, 7):
        if start == 595:
            playout.push_words(said, "b")
        playout.push_audio(sound[start : start + 7])
    taken = [playout.take() for _ in range(4)]
    assert b"".join(pcm for pcm, _ in taken) == sound.ljust(1600, b"\0")
    assert [words for _, words in taken] == ["a", "b", "", ""]
    assert said.text == "ab"


def test_words_are_said_one_by_one_while_they_sound() -> None:
    """A clause is taken to be spoken evenly: each word comes in the 200 ms in which it begins, and nothing is lost."""
    playout, said = Playout(1000), Said("assistant", "i")
    playout.push_words(said, "One two three four.")
    playout.push_audio(bytes([1]) * 1600)  # four slots
    playout.push_words(said, " Five, six. ")
    playout.push_audio(bytes([2]) * 800)
    taken = [playout.take()[1] for _ in range(6)]
    assert taken == ["One two", " three", " four.", "", " Five,", " six. "]
    assert said.text == "One two three four. Five, six. "


def test_words_do_not_run_ahead_of_audio_that_is_still_coming() -> None:
    """How long a clause will be is judged by the pace of those before: its words are spread all the same."""
    playout, said = Playout(1000), Said("assistant", "i")
    taken: list[str] = []
    for number, words in enumerate(("aaa bbb ccc ddd eee", " fff ggg hhh iii jjj")):
        playout.push_words(said, words)
        for piece in range(7):  # of 200 ms
            playout.push_audio(bytes([1]) * 400)
            if number or piece > 2:  # 600 ms wait to be played
                taken.append(playout.take()[1])
    taken += [playout.take()[1] for _ in range(4)]
    assert "".join(taken) == said.text == "aaa bbb ccc ddd eee fff ggg hhh iii jjj"
    spoken = [slot for slot, words in enumerate(taken) if words]
    assert max(after - before for before, after in itertools.pairwise(spoken)) <= 2


def test_what_was_cut_off_was_not_said() -> None:
    """Words whose turn had not come when the caller spoke are not remembered, in the middle of a clause either."""
    playout, said = Playout(1000), Said("assistant", "i")
    playout.push_words(said, "One two three four.")
    playout.push_audio(bytes([1]) * 1600)
    playout.take()
    playout.clear()
    assert playout.take() == (bytes(400), "")
    assert said.text == "One two"


def test_audio_that_comes_late_does_not_hold_words_back_for_ever() -> None:
    """What has been played out has been said; more audio of the same clause goes on with what is left, or alone."""
    playout, said = Playout(1000), Said("assistant", "i")
    playout.push_words(said, "One two.")
    assert [playout.take()[1]] == ["One two."]  # text alone: at once
    playout.push_words(said, " Three four.")
    playout.push_audio(bytes([1]) * 400)
    assert playout.take()[1] == " Three four."
    playout.push_audio(bytes([1]) * 400)
    assert playout.take()[1] == ""
    assert said.text == "One two. Three four."
