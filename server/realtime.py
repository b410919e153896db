"""The door of `/v1/realtime`: who knocks, whether they may enter, and the call that follows.

A raw ASGI application: the messages of a call pass through no framework (Starlette's exception middleware alone wraps
every send). The order of the questions is fixed: path, origin, key, dialect, place; nothing is reserved before the
last one.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import msgspec

from admission.port import AdmissionPort, Lease, Rejection, Request
from protocol.connection import RealtimeConnection
from protocol.ids import IdFactory
from protocol.session_config import SessionDefaults
from server import refusal as refusals
from server.auth import (
    KEY_SUBPROTOCOL,
    AuthDenied,
    KeyRing,
    answered_subprotocol,
    authenticate,
    offered_subprotocols,
    origin_allowed,
    presented_key,
    speaks_beta,
)
from server.connection import Channel, Connection, Machine
from server.draining import ABORT_EXTENSION, Calls
from server.refusal import Refusal

_log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class DoorPolicy:
    """Who may knock where, and what they get."""

    paths: tuple[str, ...]
    ring: KeyRing
    allowed_origins: tuple[str, ...]
    model: str  # the id that clients are shown
    tick_s: float
    defaults: SessionDefaults


@dataclass(frozen=True, slots=True)
class Knock:
    """One handshake request, read."""

    path: str
    headers: Mapping[str, str]  # lower-case names
    offered: Sequence[str]  # subprotocols
    query: Mapping[str, str]

    @classmethod
    def of(cls, scope: Scope) -> "Knock":
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        return cls(
            scope["path"],
            headers,
            offered_subprotocols(headers),
            {key: values[-1] for key, values in query.items()},
        )

    @property
    def is_browser(self) -> bool:
        """True for clients that are shown neither status nor body of a refused upgrade."""
        return "origin" in self.headers or any(p.startswith(KEY_SUBPROTOCOL) for p in self.offered)


class RealtimeDoor:
    """Answers every WebSocket handshake, and runs the calls it lets in."""

    def __init__(
        self,
        policy: DoorPolicy,
        machine: Machine,
        admission: AdmissionPort,
        unix_now: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._machine = machine
        self._admission = admission
        # Wall clock, only for what clients are told.
        self._unix_now = unix_now
        # Calls in progress.
        self.calls = Calls()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one WebSocket, as ASGI asks."""
        message = await receive()
        assert message["type"] == "websocket.connect", message
        knock = Knock.of(scope)
        try:
            outcome = self._ask(knock)
            if isinstance(outcome, Refusal):
                await _refuse(send, knock, outcome)
                return
            try:
                await self._call(knock, Channel(receive, send, _abort_of(scope)))
            finally:
                self._admission.release(self._machine.clock.now(), outcome)
        except OSError:
            return  # the peer left during the handshake (ASGI 2.4)

    def _ask(self, knock: Knock) -> Lease | Refusal:
        """A place taken, or why not."""
        policy, metrics = self._policy, self._machine.metrics
        if knock.path not in policy.paths:
            return refusals.NOT_FOUND
        if not origin_allowed(knock.headers, policy.allowed_origins, policy.ring):
            metrics.auth_failed("origin_not_allowed")
            return refusals.FOREIGN_ORIGIN
        who = authenticate(policy.ring, presented_key(knock.headers, knock.offered))
        if isinstance(who, AuthDenied):
            metrics.auth_failed(who.code)
            return refusals.of_auth(who)
        if speaks_beta(knock.headers, knock.offered):
            return refusals.BETA
        if "call_id" in knock.query:
            return refusals.SIDEBAND
        request = Request(who.tenant, policy.tick_s)
        answer = self._admission.try_admit(self._machine.clock.now(), request)
        if isinstance(answer, Rejection):
            metrics.rejected(answer.reason)
            return refusals.of_admission(answer)
        return answer

    async def _call(self, knock: Knock, channel: Channel) -> None:
        await channel.send(
            {"type": "websocket.accept", "subprotocol": answered_subprotocol(knock.offered)}
        )
        ids = IdFactory()
        session_id = ids.new("sess")
        asked = knock.query.get("model", "")
        if asked != self._policy.model:
            # Clients hard-code names such as gpt-realtime; there is one model here, and the session names it.
            _log.info("%s asked for model %r and gets %r", session_id, asked, self._policy.model)
        defaults = self._policy.defaults
        if knock.query.get("intent") == "transcription":
            defaults = msgspec.structs.replace(defaults, type="transcription")
        protocol = RealtimeConnection(
            session_id=session_id,
            model=self._policy.model,
            defaults=defaults,
            ids=ids,
            expires_at=int(self._unix_now() + self._machine.limits.max_session_s),
        )
        connection = Connection(session_id, protocol, self._machine, channel)
        self.calls.add(connection)
        try:
            await connection.run()
        finally:
            self.calls.discard(connection)


async def _refuse(send: Send, knock: Knock, refusal: Refusal) -> None:
    _log.info("refused %s: %s", knock.path, refusal.reason)
    if knock.is_browser or refusal is refusals.BETA:
        await refusals.show(send, refusal, answered_subprotocol(knock.offered))
    else:
        await refusals.deny(send, refusal)


def _abort_of(scope: Scope) -> Callable[[int, str], None] | None:
    abort: Callable[[int, str], None] | None = scope.get("extensions", {}).get(ABORT_EXTENSION)
    return abort
