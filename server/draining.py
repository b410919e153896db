"""What uvicorn lacks for calls that last: an orderly end, a handshake deadline, and a way to drop a dead peer.

uvicorn 0.54 closes every WebSocket with 1012 within 0.1 s of SIGTERM, whatever its graceful timeout says; keeps a
socket that sends half a request open for ever; and can only close a transport politely, which never ends when the
peer reads nothing (all measured). Each has one small answer here.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_log = logging.getLogger(__name__)


# How long a call whose time is over has for its close handshake.
_FAREWELL_S = 2.0


class Drainable(Protocol):
    """A call, as the drain sees it."""

    def drain(self) -> None:
        """End after the reply in progress."""
        ...

    def end_drain(self) -> None:
        """End now."""
        ...


class Calls:
    """The calls in progress, and the wait for there to be none."""

    def __init__(self) -> None:
        self._calls: set[Drainable] = set()
        self._none = asyncio.Event()
        self._none.set()
        # At the door, and not answered.
        self._unanswered = 0

    def add(self, call: Drainable) -> None:
        self._calls.add(call)
        self._none.clear()

    def discard(self, call: Drainable) -> None:
        self._calls.discard(call)
        self._notice_none()

    @contextmanager
    def at_the_door(self) -> Iterator[None]:
        """Somebody has knocked: until they are answered, a drain is not over."""
        self._unanswered += 1
        self._none.clear()
        try:
            yield
        finally:
            self._unanswered -= 1
            self._notice_none()

    def _notice_none(self) -> None:
        if not self._calls and not self._unanswered:
            self._none.set()

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Drainable]:
        return iter(tuple(self._calls))

    async def drain(self, drain_s: float) -> None:
        """Let every reply in progress finish, for at most `drain_s` seconds; then end every call."""
        _log.info("draining %d calls, for at most %g s", len(self), drain_s)
        for call in self:
            call.drain()
        if await self._emptied(drain_s):
            return
        _log.warning("%d calls are cut off", len(self))
        for call in self:
            call.end_drain()
        await self._emptied(_FAREWELL_S)

    async def _emptied(self, limit_s: float) -> bool:
        try:
            async with asyncio.timeout(limit_s):
                await self._none.wait()
        except TimeoutError:
            return False
        return True


class DrainingServer(uvicorn.Server):
    """A uvicorn server that asks, on the first signal, instead of exiting; the second signal ends the process."""

    def __init__(self, config: uvicorn.Config, on_exit_signal: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit_signal = on_exit_signal
        # Set once connections are accepted.
        self.listening = asyncio.Event()
        # Signals seen.
        self._signals = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

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


class HandshakeDeadline(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a deadline for every request to be complete.

    One timer per connection covers both slow forms: a peer that says nothing, and one that never finishes its
    headers (or the few bytes of body that anything here reads). An upgraded connection has no deadline left.
    """

    timeout_s = 10.0
    # Runs while a request could begin or is incomplete.
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
            self._deadline = self.loop.call_later(self.timeout_s, self._cut)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut(self) -> None:
        self._deadline = None
        self.transport.abort()


def handshake_protocol(timeout_s: float) -> type[HandshakeDeadline]:
    """The class with another deadline; uvicorn makes the instances itself."""
    return type("HandshakeDeadline", (HandshakeDeadline,), {"timeout_s": timeout_s})
