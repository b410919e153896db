"""One call: carries texts between a socket, its protocol machine and its engine side. Decides only how a call ends.

    socket --text--> RealtimeConnection.receive --commands--> EngineSide --> engine Session
    engine Session --facts--> EngineSide --> RealtimeConnection --texts--> Outbox --> socket

Three tasks of one TaskGroup: the reader (whose end is the end of the call), the writer and a watch of once a second.
A frame rarely meets the first two (`DirectSocket`): texts are taken as they arrive and written as they are made, and
the outbox holds only what the socket has no room for.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from engine.clock import Clock
from engine.engine import Engine
from protocol.commands import Hangup, PushAudio
from protocol.facade import Facade
from server import logs
from server.engine_side import EngineSide
from server.metrics import EndedReason, Metrics
from server.outbox import Outbox
from server.websocket import DirectSocket
from server.wire_types import APPEND, client_kind, error_code

_log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]

_WATCH_S = 1.0
_ROUNDING_S = 1e-3  # of a clock that is asked to sleep until an instant
_PARSER_CODES = frozenset(
    {1002, 1007, 1009}
)  # what uvicorn's frame parser closes with on a broken peer


@dataclass(frozen=True, slots=True)
class Channel:
    """A WebSocket that has been accepted: ASGI's two callables, and our server's shorter way."""

    receive: Callable[[], Awaitable[Message]]
    send: Callable[[Message], Awaitable[None]]
    direct: DirectSocket  # the short way beside them


@dataclass(frozen=True, slots=True)
class Limits:
    """When a call is ended from this side."""

    outbox_s: float = 30.0
    outbox_bytes: int = 4 * 1024 * 1024
    stalled_s: float = 5.0  # something waits and the socket takes nothing
    max_session_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What all calls share."""

    engine: Engine
    clock: Clock
    metrics: Metrics
    limits: Limits


class Connection:
    """A call in progress. Implements `server.engine_side.Call`."""

    def __init__(
        self, session_id: str, protocol: Facade, machine: Machine, channel: Channel
    ) -> None:
        self.id = session_id
        self._protocol = protocol
        self._machine = machine
        self._channel = channel
        self._log = logs.of_session(_log, session_id)
        self._outbox = Outbox(machine.limits.outbox_s, machine.limits.outbox_bytes)
        self._engine_side = EngineSide(self, protocol, machine.engine, machine.clock)
        # Set when the outbox has something, or when it was decided how the call ends.
        self._wake = asyncio.Event()
        # True from `drain` on: hang up at the first silence.
        self._draining = False
        # How this side ends the call; None while it goes on.
        self._goodbye: Hangup | None = None
        # The cause, as counted.
        self._ended: EndedReason = "client"

    async def run(self, helper: Callable[[], Awaitable[None]] | None = None) -> EndedReason:
        """Serve the call until one side ends it; returns what did. `helper` runs beside it."""
        clock, metrics = self._machine.clock, self._machine.metrics
        started_at = clock.now()
        metrics.session_started()
        self._log.info("began")
        try:
            self._engine_side.open(self.id)
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write())
                watch = group.create_task(self._watch(started_at))
                beside = None if helper is None else group.create_task(_run(helper))
                await self._read()
                writer.cancel()
                watch.cancel()
                if beside is not None:
                    beside.cancel()
        except Exception:  # noqa: BLE001  # the connection boundary
            self.crashed()
            self._channel.direct.abort(1011, "internal error")
        finally:
            self._channel.direct.listen(None)
            self._machine.engine.close(self.id)
            metrics.outbox_dropped(len(self._outbox))
            duration_s = clock.now() - started_at
            metrics.session_ended(self._ended, duration_s)
            self._log.info("ended after %.1f s: %s", duration_s, self._ended)
        return self._ended

    def drain(self) -> None:
        """The server is going down: end the call, after the reply in progress if there is one."""
        self._draining = True
        if not self._engine_side.is_answering:
            self.became_silent()

    def end_drain(self) -> None:
        """The time for replies is over."""
        self.hang_up(1012, "the server is shutting down", "drain")

    # -- the engine side's view (server.engine_side.Call) --------------------------

    @property
    def is_ending(self) -> bool:
        """True once it is decided how the call ends."""
        return self._goodbye is not None

    def flush(self, audio_s: float = 0.0) -> None:
        """Queue what the protocol has to say. Past the outbox's bound the client is too slow, and cut off."""
        texts = self._protocol.take_events()
        if not texts or self._goodbye is not None:
            return
        if self._outbox.is_idle:
            texts = self._write_now(texts)
            if not texts:
                return
        if self._outbox.push(texts, audio_s):
            self._wake.set()
        else:
            self._machine.metrics.outbox_dropped(len(texts))
            self._cut_off()

    def became_silent(self) -> None:
        """No answer is in progress: the moment a draining call may end."""
        if self._draining:
            self.end_drain()

    def hang_up(self, code: int, reason: str, ended: EndedReason) -> None:
        """End the call once everything queued has been sent. The first call decides how."""
        if self._goodbye is None:
            self._goodbye = Hangup(code, _fitting(reason))
            self._ended = ended
            self._wake.set()

    def crashed(self) -> None:
        """Our mistake, being handled: this call ends with 1011, and no other notices."""
        self._log.exception("internal error")
        self.hang_up(1011, "internal error", "internal")

    # -- tasks ------------------------------------------------------------------------

    async def _read(self) -> None:
        self._channel.direct.listen(self._take)
        while True:
            message = await self._channel.receive()
            text = message.get("text")
            if text is not None:
                self._take(text)
            elif message["type"] == "websocket.disconnect":
                self._left(message.get("code", 1005))
                return
            else:
                self._refuse_binary(message["bytes"])

    def _take(self, text: str) -> None:
        """One message of the client."""
        if self._goodbye is not None:
            return  # still in the pipe of a call that is ending
        try:
            commands = self._protocol.receive(text)
            if len(commands) == 1 and type(commands[0]) is PushAudio:
                kind = APPEND
                self._engine_side.hear(commands[0])
            else:
                kind = client_kind(text)
                self._engine_side.act(commands)
        except Exception:  # noqa: BLE001  # the connection boundary, as the socket meets it
            self.crashed()
            return
        self._machine.metrics.traffic.received(kind, text)

    def _refuse_binary(self, data: bytes) -> None:
        self._machine.metrics.traffic.received("other", data)
        self._protocol.error(
            "invalid_value",
            "Binary frames are not part of this protocol: send events as JSON text.",
            type="invalid_request_error",
        )
        self.flush()

    async def _write(self) -> None:
        send, outbox, wake = self._channel.send, self._outbox, self._wake
        try:
            while True:
                await wake.wait()
                wake.clear()
                while (texts := outbox.pop()) is not None:
                    for text in texts:
                        await send({"type": "websocket.send", "text": text})
                        self._count(text)
                    outbox.sent()
                if (bye := self._goodbye) is not None:
                    await send({"type": "websocket.close", "code": bye.code, "reason": bye.reason})
                    return
        except OSError:
            return  # the peer is gone (ASGI 2.4); the reader is told so as well

    def _write_now(self, texts: list[str]) -> list[str]:
        """Write what the socket has room for; the rest."""
        direct = self._channel.direct
        for place, text in enumerate(texts):
            if not direct.write(text):
                return texts[place:]
            self._count(text)
        return []

    def _count(self, text: str) -> None:
        metrics = self._machine.metrics
        if metrics.traffic.sent(text) == "error":
            metrics.protocol_error(error_code(text))

    async def _watch(self, started_at: float) -> None:
        clock, limits = self._machine.clock, self._machine.limits
        expires_at = started_at + limits.max_session_s
        while True:
            now = clock.now()
            if self._outbox.stalled_s(now) > limits.stalled_s:
                self._cut_off()
            if expires_at - now > _ROUNDING_S:
                await clock.sleep_until(min(now + _WATCH_S, expires_at))
                continue
            self._expire()
            expires_at = float("inf")

    # -- endings ------------------------------------------------------------------------

    def _expire(self) -> None:
        minutes = self._machine.limits.max_session_s / 60
        reason = f"Your session hit the maximum duration of {minutes:g} minutes."
        self._protocol.error("session_expired", reason, type="invalid_request_error")
        self.flush()
        self.hang_up(1001, reason, "expired")

    def _cut_off(self) -> None:
        """The client does not read: nothing polite would ever reach it."""
        self._log.warning("too slow: %.1f s of audio unsent", self._outbox.audio_s)
        self.hang_up(1008, "slow_consumer", "slow_consumer")
        self._channel.direct.abort(1008, "slow_consumer")

    def _left(self, code: int) -> None:
        if self._goodbye is None and code in _PARSER_CODES:
            self._ended = "protocol"


async def _run(helper: Callable[[], Awaitable[None]]) -> None:
    await helper()


def _fitting(reason: str) -> str:
    """`reason` cut to what a close frame holds: 123 bytes of UTF-8 (RFC 6455, 5.5)."""
    return reason.encode()[:123].decode(errors="ignore")
