"""Drives a `RealtimeConnection` as a client and an engine would, validating every event it emits."""

import json
from typing import Any

from support.validate_events import validated

from protocol.commands import Command, CreateResponse
from protocol.connection import RealtimeConnection
from protocol.ids import IdFactory
from protocol.response import ResponseUsage
from protocol.session_config import SessionDefaults

USAGE = ResponseUsage(
    input_tokens=40, cached_tokens=30, output_tokens=9, input_audio_ms=1500, output_audio_ms=900
)


def pcm(ms: int, rate: int = 24_000) -> bytes:
    """Silence, as pcm16."""
    return bytes(2 * rate * ms // 1000)


class Peer:
    """Both neighbours of a connection."""

    def __init__(self, **defaults: Any) -> None:
        self.connection = RealtimeConnection(
            session_id="sess_test",
            model="test-model",
            defaults=SessionDefaults(instructions="Be kind.", **defaults),
            ids=IdFactory("test"),
            expires_at=1_800_000_000,
        )
        self.commands: list[Command] = self.connection.start()  # every command so far

    def sends(self, event_type: str, **fields: Any) -> list[Command]:
        """The client sends an event; returns the commands it leads to."""
        return self.did(self.connection.receive(json.dumps({"type": event_type, **fields})))

    def did(self, commands: list[Command]) -> list[Command]:
        """Note commands that an engine fact led to."""
        self.commands += commands
        return commands

    def events(self) -> list[dict[str, Any]]:
        """The events emitted since last asked, each valid."""
        return [validated(text) for text in self.connection.take_events()]

    def types(self) -> list[str]:
        """The types of those events."""
        return [event["type"] for event in self.events()]

    def only_event(self) -> dict[str, Any]:
        """The one event emitted since last asked."""
        (event,) = self.events()
        return event

    def updates(self, **session: Any) -> dict[str, Any]:
        """The client updates the session; returns the one event that answers."""
        self.events()
        self.sends("session.update", session={"type": "realtime", **session})
        return self.only_event()

    def says(self, text: str, item_id: str | None = None) -> str:
        """The client adds a user message; returns its id."""
        item: dict[str, Any] = {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": text}],
        }
        if item_id is not None:
            item["id"] = item_id
        self.sends("conversation.item.create", item=item)
        added: str = self.events()[-1]["item"]["id"]
        return added

    def asks(self, **response: Any) -> CreateResponse:
        """The client wants an answer; returns the order to the engine."""
        (command,) = self.sends("response.create", response=response)
        assert isinstance(command, CreateResponse)
        return command

    def speaks(self, *clauses: tuple[str, int], **response: Any) -> tuple[str, str]:
        """A whole spoken answer, clause by clause (text, ms); returns its response id and item id."""
        order = self.asks(**response)
        for text, ms in clauses:
            self.connection.response_text(order.response_id, text)
            self.connection.response_audio(order.response_id, pcm(ms))
        self.did(self.connection.response_ended(order.response_id, "completed", USAGE, None))
        (item,) = self.events()[-1]["response"]["output"]
        return order.response_id, item["id"]

    def context(self) -> list[tuple[str, str]]:
        """The conversation as the model would see it now: (role, text)."""
        order = self.asks(conversation="none")
        self.sends("response.cancel", response_id=order.response_id)
        self.events()
        return [(message.role, message.text) for message in order.messages]
