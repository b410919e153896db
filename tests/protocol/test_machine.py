"""Any order of client events and engine facts, legal or not, leaves the client with a consistent story."""

import base64
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.realtime_peer import USAGE, Peer, pcm

from protocol.commands import CancelResponse, CommitAudio, CreateResponse


class Story:
    """What a client knows from the events alone, checked as they come."""

    def __init__(self, *, turns_come_last: bool = True) -> None:
        self._turns_come_last = turns_come_last  # the caller's; False: where they began
        self._committed: tuple[str, str | None] | None = (
            None  # id and previous id, to be added next
        )
        self.order: list[str] = []  # item ids, placed by previous_item_id
        self.unfinished: set[str] = set()  # items added and not done
        self.open_responses: set[str] = set()
        self.ended_responses: set[str] = set()
        self.open_parts: set[tuple[str, str]] = set()  # (response id, item id)

    def read(self, event: dict[str, Any]) -> None:
        """One more event."""
        kind: str = event["type"]
        if kind.startswith("response."):
            self._read_response(kind, event)
        elif kind == "conversation.item.added":
            placed = event["item"]["id"], event["previous_item_id"]
            assert self._committed in (None, placed)
            self._committed = None
            self._place(*placed)
            self.unfinished.add(event["item"]["id"])
        elif kind == "conversation.item.done":
            item_id = event["item"]["id"]
            self.unfinished.remove(item_id)
            assert event["previous_item_id"] == self._before(item_id)
        elif kind == "conversation.item.deleted":
            # An item that still waited to be added may be deleted, too.
            if event["item_id"] in self.order:
                self.order.remove(event["item_id"])
                self.unfinished.discard(event["item_id"])
        elif kind == "input_audio_buffer.committed":
            self._committed = event["item_id"], event["previous_item_id"]
            if self._turns_come_last:
                assert event["previous_item_id"] == (self.order[-1] if self.order else None)

    def _read_response(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "response.created":
            assert event["response"]["id"] not in self.open_responses | self.ended_responses
            self.open_responses.add(event["response"]["id"])
            return
        if kind == "response.done":
            response_id = event["response"]["id"]
            assert not [part for part in self.open_parts if part[0] == response_id]
            self.open_responses.remove(response_id)
            self.ended_responses.add(response_id)
            return
        assert event["response_id"] in self.open_responses
        part = (event["response_id"], event.get("item_id") or event["item"]["id"])
        if kind == "response.output_item.added":
            assert part not in self.open_parts
            self.open_parts.add(part)
            return
        assert part in self.open_parts
        if kind == "response.output_item.done":
            self.open_parts.remove(part)

    def _place(self, item_id: str, previous_id: str | None) -> None:
        assert item_id not in self.order
        at = 0 if previous_id is None else self.order.index(previous_id) + 1
        self.order.insert(at, item_id)

    def _before(self, item_id: str) -> str | None:
        at = self.order.index(item_id)
        return self.order[at - 1] if at else None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
TURN_DETECTION = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["server_vad", "semantic_vad"]),
        "threshold": st.sampled_from([None, 0.4, 7]),
        "create_response": st.booleans(),
        "interrupt_response": st.booleans(),
    },
)
ITEM_IDS = st.sampled_from(["a", "b", "c", "d"])
WHERE = st.none() | st.just("root") | ITEM_IDS
PART = st.sampled_from(
    [
        {"type": "input_text", "text": "words"},
        {"type": "input_audio", "transcript": "words"},
        {"type": "input_audio"},
        {"type": "output_audio", "transcript": None},
        {},
    ]
)
ITEM = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.just("message"),
            "role": st.sampled_from(["user", "assistant", "system", "nobody"]),
            "content": st.lists(PART, max_size=2),
        },
        optional={"id": ITEM_IDS},
    ),
    st.fixed_dictionaries(
        {"type": st.just("function_call_output"), "call_id": st.just("c"), "output": st.just("1")},
        optional={"id": ITEM_IDS},
    ),
    JSON,
)
RESPONSE = st.one_of(
    st.just({}),
    st.just({"conversation": "none"}),
    st.just({"output_modalities": ["text"]}),
    st.just({"conversation": "none", "input": [{"type": "item_reference", "id": "a"}]}),
    JSON,
)


class ConnectionMachine(RuleBasedStateMachine):
    """Random neighbours of a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.peer = Peer(max_deferred=3, max_out_of_band=2)
        self.story = Story()
        self.answers: list[str] = []  # every response id the engine was asked for or told to stop
        self.commits: list[str] = []
        self.read_commands = 0
        self.answer_items: list[str] = []

    # -- the client ------------------------------------------------------------------------------

    @rule(detection=TURN_DETECTION, modality=st.sampled_from(["audio", "text"]))
    def updates(self, detection: Any, modality: str) -> None:
        session = {
            "type": "realtime",
            "output_modalities": [modality],
            "audio": {"input": {"turn_detection": detection, "transcription": {}}},
        }
        self.peer.sends("session.update", session=session)

    @rule(ms=st.sampled_from([0, 20, 150]), broken=st.booleans())
    def appends(self, ms: int, broken: bool) -> None:
        audio = base64.b64encode(pcm(ms)).decode()
        self.peer.sends("input_audio_buffer.append", audio=audio[broken:])

    @rule(name=st.sampled_from(["commit", "clear"]))
    def buffers(self, name: str) -> None:
        self.peer.sends(f"input_audio_buffer.{name}")

    @rule(item=ITEM, after=WHERE)
    def creates_item(self, item: Any, after: str | None) -> None:
        self.peer.sends("conversation.item.create", item=item, previous_item_id=after)

    @rule(
        name=st.sampled_from(["delete", "retrieve"]), index=st.integers(0, 9), known=st.booleans()
    )
    def asks_for_item(self, name: str, index: int, known: bool) -> None:
        self.peer.sends(f"conversation.item.{name}", item_id=self.item_id(index, known))

    @rule(index=st.integers(0, 9), known=st.booleans(), ms=st.integers(-10, 500))
    def truncates(self, index: int, known: bool, ms: int) -> None:
        self.peer.sends(
            "conversation.item.truncate",
            item_id=self.item_id(index, known),
            content_index=0,
            audio_end_ms=ms,
        )

    @rule(response=RESPONSE)
    def wants_answer(self, response: Any) -> None:
        self.peer.sends("response.create", response=response)

    @rule(index=st.none() | st.integers(0, 9))
    def cancels(self, index: int | None) -> None:
        named = {} if index is None else {"response_id": self.answer(index)}
        self.peer.sends("response.cancel", **named)

    @rule(kind=st.sampled_from(["session.update", "response.create", "x", 5]), fields=JSON)
    def sends_nonsense(self, kind: Any, fields: Any) -> None:
        event = {"type": kind, "session": fields, "response": fields}
        self.peer.did(self.peer.connection.receive(json.dumps(event)))
        self.peer.did(self.peer.connection.receive(json.dumps(fields)))

    @rule(text=st.text(max_size=20) | st.binary(max_size=20))
    def sends_noise(self, text: str | bytes) -> None:
        self.peer.did(self.peer.connection.receive(text))

    # -- the engine ------------------------------------------------------------------------------

    @rule(started=st.booleans())
    def hears_speech(self, started: bool) -> None:
        connection = self.peer.connection
        self.peer.did(connection.speech_started(5) if started else connection.speech_stopped(9))

    @rule()
    def idles(self) -> None:
        self.peer.did(self.peer.connection.idle_timeout(1, 2))

    @rule(index=st.integers(0, 9), text=st.sampled_from(["", "words"]), fails=st.booleans())
    def transcribes(self, index: int, text: str, fails: bool) -> None:
        item_id = self.commits[index % len(self.commits)] if self.commits else "none"
        if fails:
            self.peer.did(self.peer.connection.transcription_failed(item_id, "no"))
        else:
            self.peer.did(self.peer.connection.transcribed(item_id, text, 1.0))

    @rule(index=st.integers(0, 9), text=st.sampled_from(["", "Some words."]), ms=st.integers(0, 50))
    def answers_more(self, index: int, text: str, ms: int) -> None:
        self.peer.connection.response_text(self.answer(index), text)
        self.peer.connection.response_audio(self.answer(index), pcm(ms))

    @rule(
        index=st.integers(0, 9),
        call=st.integers(0, 2),
        arguments=st.sampled_from(["", "{}"]),
        done=st.booleans(),
    )
    def calls_function(self, index: int, call: int, arguments: str, done: bool) -> None:
        response_id = self.answer(index)
        self.peer.connection.response_call(response_id, call, "f", arguments, done=done)

    @rule(
        index=st.integers(0, 9),
        reason=st.sampled_from(["completed", "max_output_tokens", "failed"]),
    )
    def ends_answer(self, index: int, reason: str) -> None:
        self.peer.did(self.peer.connection.response_ended(self.answer(index), reason, USAGE, None))

    @rule(speaks=st.booleans(), text=st.sampled_from(["", " so"]))
    def speaks_by_itself(self, speaks: bool, text: str) -> None:
        if speaks:
            self.peer.connection.spoke(pcm(20), text)
        else:
            self.peer.connection.fell_silent()

    # -- what must hold --------------------------------------------------------------------------

    @invariant()
    def the_story_is_consistent(self) -> None:
        for event in self.peer.events():
            self.story.read(event)
            if event["type"] == "response.output_item.added":
                self.answer_items.append(event["item"]["id"])
        for command in self.peer.commands[self.read_commands :]:
            if isinstance(command, CreateResponse):
                self.answers.append(command.response_id)
            elif isinstance(command, CancelResponse):
                assert command.response_id in self.story.ended_responses
            elif isinstance(command, CommitAudio):
                self.commits.append(command.item_id)
                assert command.item_id in self.story.order
        self.read_commands = len(self.peer.commands)
        chain = [entry.item.id for entry in self.peer.connection._conversation]
        assert chain == self.story.order

    def teardown(self) -> None:
        """Whatever is open can be ended, and then everything is closed."""
        for _ in range(2):  # an answer that was owed begins when the first ends
            for response_id in sorted(self.story.open_responses):
                self.peer.did(
                    self.peer.connection.response_ended(response_id, "completed", USAGE, None)
                )
            self.the_story_is_consistent()
        assert not self.story.open_responses
        assert not self.story.unfinished
        assert not self.story.open_parts

    def answer(self, index: int) -> str:
        return self.answers[index % len(self.answers)] if self.answers else "none"

    def item_id(self, index: int, known: bool) -> str:
        ids = self.story.order + self.answer_items
        return ids[-1 - index % len(ids)] if known and ids else "abcd"[index % 4]


class DuplexConnectionMachine(ConnectionMachine):
    """The same around a model that takes turns by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.peer = Peer(max_deferred=3, max_out_of_band=2, decides_turns=True)
        self.story = Story(turns_come_last=False)


class LongConnectionMachine(ConnectionMachine):
    """The same, for 100,000 events and more: what is rare enough to need them."""


TestConnectionMachine = ConnectionMachine.TestCase
TestConnectionMachine.settings = settings(
    max_examples=100,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestDuplexConnectionMachine = DuplexConnectionMachine.TestCase
TestDuplexConnectionMachine.settings = TestConnectionMachine.settings
TestManyEvents = pytest.mark.slow(LongConnectionMachine.TestCase)
TestManyEvents.settings = settings(
    max_examples=1500,  # 74 events each on average
    stateful_step_count=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
