"""The door of `/v1/realtime` and `/v1/live/sessions`: who knocks, whether they may enter, and the call that follows.

A raw ASGI application: the messages of a call pass through no framework (Starlette's exception middleware alone wraps
every send). The order of the questions is fixed: path, origin, key, dialect, place; nothing is reserved before the
last one, which alone may take its time (server/waiting_room.py).
"""

import functools
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import msgspec

from admission.port import Lease, Rejection, Request
from protocol import session_config
from protocol.connection import RealtimeConnection
from protocol.ids import IdFactory
from protocol.live.connection import LiveConnection
from protocol.session_config import SessionConfig, SessionDefaults
from server import refusal as refusals
from server.auth import (
    KEY_SUBPROTOCOL,
    AuthDenied,
    AuthOk,
    KeyRing,
    answered_subprotocol,
    authenticate,
    offered_subprotocols,
    origin_allowed,
    presented_key,
    speaks_beta,
)
from server.client_secrets import ClientSecrets, Grant
from server.connection import Channel, Connection, Machine
from server.draining import Calls
from server.live import play
from server.refusal import Refusal
from server.waiting_room import Lost, WaitingRoom
from server.websocket import EXTENSION

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
    secrets: ClientSecrets
    live_paths: tuple[str, ...] = ("/v1/live/sessions", "/live/sessions")


@dataclass(frozen=True, slots=True)
class Guest:
    """Known and well-behaved: who, and the settings that their session would start with."""

    tenant: str
    config: SessionConfig


@dataclass(frozen=True, slots=True)
class Entry:
    """Let in: the place taken, and the settings the session starts with."""

    lease: Lease
    config: SessionConfig


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
        room: WaitingRoom,
        unix_now: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._machine = machine
        self.room = room
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
            entry = await self._let_in(knock, receive, send)
            if entry is None:
                return
            try:
                channel = Channel(receive, send, scope["extensions"][EXTENSION])
                await self._call(knock, entry.config, channel)
            finally:
                self.room.release(self._machine.clock.now(), entry.lease)
        except OSError:
            return  # the peer left during the handshake (ASGI 2.4)

    async def _let_in(self, knock: Knock, receive: Receive, send: Send) -> Entry | None:
        """A place taken; None: turned away, and told so, or gone."""
        with self.calls.at_the_door():
            guest = self._ask(knock)
            outcome = guest if isinstance(guest, Refusal) else await self._admit(guest, receive)
            if isinstance(outcome, Refusal):
                await _refuse(send, knock, outcome)
                return None
            return outcome

    async def _admit(self, guest: Guest, receive: Receive) -> Entry | Refusal | None:
        """A place taken, or why not; None: they have gone."""
        answer = await self.room.enter(Request(guest.tenant, self._policy.tick_s), receive)
        if isinstance(answer, Lost):
            return refusals.TOO_SOON if answer is Lost.SPOKE else None
        self._log_decision(guest.tenant, answer)
        if isinstance(answer, Rejection):
            self._machine.metrics.rejected(answer.reason)
            return refusals.of_admission(answer)
        return Entry(answer, guest.config)

    def _ask(self, knock: Knock) -> Guest | Refusal:
        """Who knocks, or why they have no business here."""
        policy, metrics = self._policy, self._machine.metrics
        now = self._machine.clock.now()
        if knock.path not in policy.paths + policy.live_paths:
            return refusals.NOT_FOUND
        if not origin_allowed(knock.headers, policy.allowed_origins, policy.ring):
            metrics.auth_failed("origin_not_allowed")
            return refusals.FOREIGN_ORIGIN
        who, config = self._identify(knock, now)
        if isinstance(who, AuthDenied):
            metrics.auth_failed(who.code)
            return refusals.of_auth(who)
        if speaks_beta(knock.headers, knock.offered):
            return refusals.BETA
        if "call_id" in knock.query:
            return refusals.SIDEBAND
        return Guest(who.tenant, config)

    def _log_decision(self, tenant: str, answer: Lease | Rejection) -> None:
        """One line per decision, made of names and values: who, what, and the bound that decided."""
        admission = self.room
        if isinstance(answer, Lease):
            line = "admission decision=admitted tenant=%s active=%d limit=%d"
            _log.info(line, tenant, admission.active, admission.limit)
            return
        _log.info(
            "admission decision=rejected tenant=%s active=%d limit=%d reason=%s bound=%s used=%.4g "
            "of=%.4g retry_after_s=%.1f",
            tenant,
            admission.active,
            admission.limit,
            answer.reason,
            answer.bound or answer.reason,
            answer.used,
            answer.limit,
            answer.retry_after_s,
        )

    def _identify(self, knock: Knock, now: float) -> tuple[AuthOk | AuthDenied, SessionConfig]:
        """Who knocks, and the settings that their session starts with: the deployment's, or a client secret's."""
        policy = self._policy
        key = presented_key(knock.headers, knock.offered)
        config = session_config.initial(policy.defaults)
        who: AuthOk | AuthDenied
        grant = None if key is None else policy.secrets.grant_of(key, now)
        if isinstance(grant, Grant):
            who, config = grant.who, grant.config
        else:
            who = grant or authenticate(policy.ring, key)
        if knock.query.get("intent") == "transcription":
            config = msgspec.structs.replace(config, type="transcription")
        return who, config

    async def _call(self, knock: Knock, config: SessionConfig, channel: Channel) -> None:
        await channel.send(
            {"type": "websocket.accept", "subprotocol": answered_subprotocol(knock.offered)}
        )
        ids = IdFactory()
        session_id = ids.new("sess")
        is_live = knock.path in self._policy.live_paths
        asked = knock.query.get("model", "")
        if asked != self._policy.model and not is_live:
            # Clients hard-code names such as gpt-realtime; there is one model here, and the session names it.
            _log.info("%s asked for model %r and gets %r", session_id, asked, self._policy.model)
        about: dict[str, Any] = {
            "session_id": session_id,
            "model": self._policy.model,
            "defaults": self._policy.defaults,
            "ids": ids,
            "expires_at": int(self._unix_now() + self._machine.limits.max_session_s),
        }
        if is_live:
            live = LiveConnection(**about)
            connection = Connection(session_id, live, self._machine, channel)
            player = functools.partial(play, live, connection, self._machine.clock)
            await self._run(connection, player)
        else:
            realtime = RealtimeConnection(**about, config=config)
            await self._run(Connection(session_id, realtime, self._machine, channel))

    async def _run(
        self, connection: Connection, helper: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.calls.add(connection)
        try:
            await connection.run(helper)
        finally:
            self.calls.discard(connection)


async def _refuse(send: Send, knock: Knock, refusal: Refusal) -> None:
    _log.info("refused %s: %s", knock.path, refusal.reason)
    if knock.is_browser or refusal is refusals.BETA:
        await refusals.show(send, refusal, answered_subprotocol(knock.offered))
    else:
        await refusals.deny(send, refusal)
