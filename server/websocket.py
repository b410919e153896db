"""uvicorn's WebSocket protocol with a short way in and out for calls, and an end for peers that take no more bytes.

ASGI costs a queue, two coroutines and two task switches per message, about as much as a frame's whole protocol work.
`scope["extensions"]["metronome.socket"]` offers three functions beside it (`DirectSocket`); whatever they cannot do
now goes the ASGI way, in order. Only plain text frames are short-cut (server/frames.py); opening, closing, ping, pong,
fragments and broken frames remain the business of uvicorn and `websockets`.
"""

from collections.abc import Callable
from typing import Any, Protocol

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import OPEN

from server.frames import Kind, frame_at, unmasked

EXTENSION = "metronome.socket"

# How long a peer that is cut off gets to read what lies in the buffers before its close frame.
_ABORT_GRACE_S = 1.0


class DirectSocket(Protocol):
    """What a connection may do without ASGI."""

    def listen(self, on_text: Callable[[str], None] | None) -> None:
        """From now on hand each text to `on_text` as it arrives, once those already queued have been received.

        `on_text` must not raise. None ends it.
        """
        ...

    def write(self, text: str) -> bool:
        """Send `text` at once; False, and nothing is sent, while there is no room or the socket is closing."""
        ...

    def abort(self, code: int, reason: str) -> None:
        """End the connection without waiting for the peer.

        The close frame goes behind what is buffered, and a second later the socket is dropped, read or not.
        """
        ...


class CallSocket(WebSocketsSansIOProtocol):
    """Implements `DirectSocket`."""

    # Set while a call listens.
    _on_text: Callable[[str], None] | None = None
    # The beginning of a frame whose rest has not arrived; at most MAX_TEXT_BYTES and a header.
    _partial = b""
    # Bytes of the frame in the parser's hands that have not arrived.
    _owed = 0
    # False once the parser may be in the middle of a frame that we did not see begin: from then on it gets everything.
    _in_step = True

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[EXTENSION] = self

    def data_received(self, data: bytes) -> None:
        if self.conn.state is not OPEN or not self._in_step:
            # The first call brings the handshake request; a peer that sends more before our answer is out of step.
            self._in_step = self._in_step and not self.handshake_initiated
            super().data_received(data)
            return
        if self._partial:
            data, self._partial = self._partial + data, b""
        start = 0
        while start < len(data):
            start = self._next(data, start)

    def _next(self, data: bytes, start: int) -> int:
        """Deal with what begins at `start`; where the next begins."""
        if self.conn.state is not OPEN and self.transport.is_closing():
            return len(data)  # it came behind what ended the connection
        if self._owed or not self._in_step or self.conn.state is not OPEN:
            stop = min(len(data), start + self._owed) if self._owed and self._in_step else len(data)
            self._owed -= min(self._owed, stop - start)
            super().data_received(data[start:stop])
            return stop
        kind, body, stop = frame_at(data, start)
        # A text frame in the middle of a fragmented message is an error, and the parser's to find.
        if kind is Kind.TEXT and self.conn.current_size is None:
            self.curr_msg_data_type = "text"
            self.frames = [unmasked(data, body, stop)]
            self.send_receive_event_to_app()
            return stop
        if kind is Kind.NEED_DATA:
            self._partial = data[start:]
            return len(data)
        if kind is not Kind.SUSPECT:
            self._owed = stop - start
        else:
            self._in_step = False
        return start

    def send_receive_event_to_app(self) -> None:
        """A whole message has arrived."""
        if (
            self._on_text is None
            or self.close_sent
            or self.curr_msg_data_type != "text"
            or not self.queue.empty()
        ):
            super().send_receive_event_to_app()
            return
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            super().send_receive_event_to_app()  # closes with 1007
            return
        self.frames = []
        self._on_text(text)

    def listen(self, on_text: Callable[[str], None] | None) -> None:
        self._on_text = on_text

    def write(self, text: str) -> bool:
        if self.conn.state is not OPEN or not self.writable.is_set():
            return False
        data = text.encode()
        size = len(data)
        # An unmasked text frame, whole (RFC 6455, 5.2); `websockets` builds the same in 3 us.
        if size < 126:
            head = bytes((0x81, size))
        elif size < 65_536:
            head = b"\x81\x7e" + size.to_bytes(2, "big")
        else:
            head = b"\x81\x7f" + size.to_bytes(8, "big")
        self.transport.write(head + data)
        return True

    def abort(self, code: int, reason: str) -> None:
        if self.disconnected:
            return
        if self.conn.state is OPEN:
            self.stop_keepalive()
            self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
            self.conn.send_close(code, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        self.loop.call_later(_ABORT_GRACE_S, self.transport.abort)
        self.transport.close()
