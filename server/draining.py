"""What uvicorn lacks for calls that last: an orderly end, a handshake deadline, and a way to drop a dead peer.

uvicorn 0.54 closes every WebSocket with 1012 within 0.1 s of SIGTERM, whatever its graceful timeout says; keeps a
socket that sends half a request open for ever; and can only close a transport politely, which never ends when the
peer reads nothing (all measured). Each has one small answer here.
"""

import asyncio
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

ABORT_EXTENSION = "metronome.abort"

# How long a peer that is cut off gets to read what lies in the buffers before its close frame.
_ABORT_GRACE_S = 1.0


class DrainingServer(uvicorn.Server):
    """A uvicorn server that asks, on the first signal, instead of exiting; the second signal ends the process."""

    def __init__(self, config: uvicorn.Config, on_exit_signal: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit_signal = on_exit_signal
        # Signals seen.
        self._signals = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by the interpreter between two bytecodes: only notes that it happened.

        The signal is not kept in uvicorn's list of captured ones, which it would raise again at the end: an orderly
        drain ends with exit status 0.
        """
        self._signals += 1
        if self._signals == 1:
            self._on_exit_signal()
            return
        signal.signal(sig, signal.SIG_DFL)
        signal.raise_signal(sig)


def handshake_protocol(timeout_s: float) -> type[HttpToolsProtocol]:
    """uvicorn's HTTP protocol with a deadline for every request to be complete.

    One timer per connection covers both slow forms: a peer that says nothing, and one that never finishes its
    headers (or the few bytes of body that anything here reads). An upgraded connection has no deadline left.
    """

    class HandshakeDeadline(HttpToolsProtocol):
        """Closes the connection `timeout_s` after a request could have begun and is not complete."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base
            super().connection_made(transport)
            self._arm()

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._arm()

        def on_message_complete(self) -> None:
            self._disarm()
            super().on_message_complete()

        def handle_websocket_upgrade(self) -> None:
            self._disarm()
            super().handle_websocket_upgrade()

        def _arm(self) -> None:
            if self._deadline is None:
                self._deadline = self.loop.call_later(timeout_s, self._cut)

        def _disarm(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _cut(self) -> None:
            self._deadline = None
            self.transport.abort()

    return HandshakeDeadline


class AbortableWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, offering the application a way to end a connection that takes no more bytes.

    `scope["extensions"]["metronome.abort"]` is a function of (code, reason): the close frame goes behind what is
    buffered, and a second later the socket is dropped, read or not.
    """

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            extensions: dict[str, Any] = self.scope["extensions"]  # type: ignore[assignment]  # ours is not in ASGI's
            extensions[ABORT_EXTENSION] = self.abort

    def abort(self, code: int, reason: str) -> None:
        """End the connection without waiting for the peer."""
        if self.disconnected:
            return
        if not self.close_sent:
            self.stop_keepalive()
            self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
            self.conn.send_close(code, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        self.loop.call_later(_ABORT_GRACE_S, self.transport.abort)
        self.transport.close()
