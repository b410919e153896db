"""Turning somebody away so that they learn why, whoever they are.

Programs get it before the upgrade, as an HTTP status with a JSON body and `Retry-After` (ASGI's denial response).
A browser shows a page neither, so there the upgrade succeeds, an `error` event says why, and the close code follows.
Pure, but for the two coroutines at the end.
"""

import math
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from admission.port import Reason, Rejection
from protocol.codec import encode
from protocol.errors import ProtocolError
from protocol.ids import IdFactory
from protocol.server_events import ServerEvents
from server.auth import AuthDenied

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

CLOSE_POLICY = 1008  # not one that clients reconnect on
CLOSE_TRY_LATER = 1013
CLOSE_BETA = 4000

_CODES: dict[Reason, str] = {
    "draining": "server_draining",
    "engine_down": "engine_unavailable",
    "engine_stalled": "engine_unavailable",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not, in the words of both worlds."""

    status: int
    close_code: int
    code: str
    message: str
    reason: str  # short: the close reason, and the X-Metronome-Reason header
    type: str = "invalid_request_error"
    retry_after_s: float | None = None
    position: int = 0  # in the line; 0: there was none to stand in

    @property
    def error(self) -> dict[str, Any]:
        """The error object, as in an HTTP body."""
        return {"message": self.message, "type": self.type, "param": None, "code": self.code}

    @property
    def headers(self) -> dict[str, str]:
        """Of the HTTP response."""
        headers = {"x-metronome-reason": self.reason}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.position:
            headers["x-metronome-queue-position"] = str(self.position)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


NOT_FOUND = Refusal(
    404, CLOSE_POLICY, "not_found", "There is no WebSocket at this path.", "not_found"
)
FOREIGN_ORIGIN = Refusal(
    403,
    CLOSE_POLICY,
    "origin_not_allowed",
    "Pages of this origin may not use this server; see server.allowed_origins.",
    "origin_not_allowed",
)
SIDEBAND = Refusal(
    404,
    CLOSE_POLICY,
    "call_not_found",
    "Calls over WebRTC or SIP are not served here, so there is none to join by 'call_id'.",
    "call_not_found",
)
BETA = Refusal(
    400,
    CLOSE_BETA,
    "beta_api_shape_disabled",
    "The beta shape of the Realtime API is not served: drop the 'OpenAI-Beta' header and the "
    "'openai-beta.realtime-v1' subprotocol, and use the GA events.",
    "invalid_request_error.beta_api_shape_disabled",
)

TOO_SOON = Refusal(
    400,
    CLOSE_POLICY,
    "bad_handshake",
    "Nothing may be sent before the handshake is answered (RFC 6455, 4.1).",
    "bad_handshake",
)


def of_auth(denied: AuthDenied) -> Refusal:
    """The key was missing or wrong."""
    return Refusal(
        denied.status, CLOSE_POLICY, denied.code, denied.message, denied.code, denied.type
    )


def of_admission(rejection: Rejection) -> Refusal:
    """There is no place now, or the key has all the sessions it may have."""
    if rejection.reason == "quota":
        return Refusal(
            429,
            CLOSE_TRY_LATER,
            "rate_limit_exceeded",
            rejection.message,
            rejection.reason,
            "rate_limit_error",
            rejection.retry_after_s,
        )
    return Refusal(
        503,
        CLOSE_TRY_LATER,
        _CODES.get(rejection.reason, "capacity_exceeded"),
        rejection.message,
        rejection.reason,
        "server_error",
        rejection.retry_after_s,
        rejection.position,
    )


async def deny(send: Send, refusal: Refusal) -> None:
    """Refuse before the upgrade."""
    headers = {"content-type": "application/json", **refusal.headers}
    await send(
        {
            "type": "websocket.http.response.start",
            "status": refusal.status,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
    )
    body = encode({"error": refusal.error}).encode()
    await send({"type": "websocket.http.response.body", "body": body})


async def show(send: Send, refusal: Refusal, subprotocol: str | None) -> None:
    """Accept, say why not, and close."""
    await send({"type": "websocket.accept", "subprotocol": subprotocol})
    events = ServerEvents(IdFactory())
    events.error(ProtocolError(refusal.code, refusal.message, type=refusal.type))
    for text in events.take():
        await send({"type": "websocket.send", "text": text})
    await send({"type": "websocket.close", "code": refusal.close_code, "reason": refusal.reason})
