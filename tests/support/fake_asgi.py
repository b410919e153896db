"""The server's end of a WebSocket without a socket: behaves as uvicorn's websockets-sansio protocol was seen to.

A close by the application is answered with a disconnect at once; a peer that is gone makes `send` raise OSError; a peer
that does not read makes `send` wait.
"""

import asyncio
import json
from collections.abc import Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]


class FakeSocket:
    """Both sides: `receive`, `send` and a `DirectSocket` for the application, the rest for the test."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []  # sent by the application, decoded
        self.accepted: Message | None = None
        self.closed: tuple[int, str] | None = None  # code and reason
        self.response: Message | None = None  # of a refused upgrade
        self.body = b""
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._room = asyncio.Event()
        self._room.set()
        self._gone = False
        self._changed = asyncio.Event()
        self._on_text: Callable[[str], None] | None = None

    # -- the application's view ------------------------------------------------

    async def receive(self) -> Message:
        return await self._inbox.get()

    async def send(self, message: Message) -> None:
        await self._room.wait()
        if self._gone:
            raise OSError("the peer is gone")
        match message["type"]:
            case "websocket.accept":
                self.accepted = message
            case "websocket.send":
                self.events.append(json.loads(message["text"]))
            case "websocket.close":
                self._close(message["code"], message.get("reason", ""))
            case "websocket.http.response.start":
                self.response = message
            case "websocket.http.response.body":
                self.body += message["body"]
            case other:
                raise AssertionError(other)
        self._changed.set()

    def listen(self, on_text: Callable[[str], None] | None) -> None:
        self._on_text = on_text

    def write(self, text: str) -> bool:
        if self._gone or self.closed or not self._room.is_set():
            return False
        self.events.append(json.loads(text))
        self._changed.set()
        return True

    def abort(self, code: int, reason: str) -> None:
        self._gone = True
        self._close(code, reason)

    def _close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)
        self._inbox.put_nowait({"type": "websocket.disconnect", "code": code})

    # -- the test's view ---------------------------------------------------------

    def knock(self) -> None:
        """Ask to be accepted."""
        self._inbox.put_nowait({"type": "websocket.connect"})

    def say(self, event_type: str, **fields: Any) -> None:
        """Send one event."""
        self.say_text(json.dumps({"type": event_type, **fields}))

    def say_text(self, text: str) -> None:
        if self._on_text is not None and self._inbox.empty():
            self._on_text(text)
        else:
            self._inbox.put_nowait({"type": "websocket.receive", "text": text})

    def say_bytes(self, data: bytes) -> None:
        self._inbox.put_nowait({"type": "websocket.receive", "bytes": data})

    def leave(self, code: int = 1005) -> None:
        """Go away without a word."""
        self._gone = True
        self._inbox.put_nowait({"type": "websocket.disconnect", "code": code})

    def stop_reading(self) -> None:
        """From now on `send` waits."""
        self._room.clear()

    def read_on(self) -> None:
        self._room.set()

    async def until(self, event_type: str, count: int = 1) -> dict[str, Any]:
        """The `count`-th event of this type, once it is there."""
        while True:
            found = [event for event in self.events if event["type"] == event_type]
            if len(found) >= count:
                return found[count - 1]
            self._changed.clear()
            await self._changed.wait()

    def types(self) -> list[str]:
        return [event["type"] for event in self.events]
