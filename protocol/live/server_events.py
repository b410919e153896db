"""What a Live client is told, in order."""

from typing import Any

import pybase64

from protocol.codec import encode
from protocol.errors import ProtocolError
from protocol.ids import IdFactory


class LiveEvents:
    """Event texts that wait for the socket. After `close` nothing follows."""

    def __init__(self, ids: IdFactory) -> None:
        self._ids = ids
        self._texts: list[str] = []
        self._is_closed = False

    def take(self) -> list[str]:
        """The texts in order; clears the queue."""
        texts, self._texts = self._texts, []
        return texts

    def say(self, kind: str, client_event_id: str | None, **fields: Any) -> None:
        """One event; `client_event_id` is that of the client's event it answers."""
        if self._is_closed:
            return
        event: dict[str, Any] = {"type": kind, "event_id": self._ids.event()}
        if client_event_id is not None:
            event["client_event_id"] = client_event_id
        self._texts.append(encode(event | fields))

    def audio(self, audio: bytes) -> None:
        """Wire audio; such events have no id on a session's own socket."""
        delta = pybase64.b64encode_as_string(audio)
        self._texts.append(f'{{"type":"session.output_audio.delta","delta":"{delta}"}}')

    def error(self, error: ProtocolError) -> None:
        """The client's mistake, or ours."""
        detail = {"type": error.type, "code": error.code, "message": error.message}
        if error.param is not None:
            detail["param"] = error.param
        if error.event_id is not None:
            detail["client_event_id"] = error.event_id
        self.say("error", error.event_id, error=detail)

    def close(self, client_event_id: str | None, **fields: Any) -> None:
        """The last event."""
        self.say("session.closed", client_event_id, **fields)
        self._is_closed = True
