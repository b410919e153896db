"""The HTTP side: models, probes, metrics and the demo page, around the WebSocket door.

Errors have the API's shape everywhere: `{"error": {"message", "type", "param", "code"}}`.
"""

import mimetypes
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from admission.port import AdmissionPort
from engine.clock import Clock
from engine.models.base import ModelSpec
from protocol.errors import ProtocolError
from server.auth import AuthDenied, AuthOk, KeyRing, authenticate, origin_allowed, presented_key
from server.client_secrets import FULL, MAX_BODY_BYTES, PREFIX, SecretDesk
from server.gatekeeper import Gatekeeper
from server.health import Health
from server.metrics import Metrics
from server.realtime import RealtimeDoor, Receive, Scope, Send
from server.waiting_room import WaitingRoom

# Browsers refuse a module or worklet with the wrong type; not every machine's mime table knows these.
mimetypes.add_type("text/javascript", ".js")
mimetypes.add_type("image/svg+xml", ".svg")


@dataclass(frozen=True, slots=True)
class Surface:
    """What the HTTP side shows."""

    spec: ModelSpec
    ring: KeyRing
    health: Health
    admission: AdmissionPort
    metrics: Metrics
    created: int  # unix seconds: since when this server has been up
    desk: SecretDesk
    clock: Clock
    unix_now: Callable[[], float]  # only for what clients are told
    allowed_origins: tuple[str, ...] = ()
    keeper: Gatekeeper | None = None  # None: a door that does not learn
    room: WaitingRoom | None = None  # where callers wait


class App:
    """The whole ASGI application."""

    def __init__(self, surface: Surface, door: RealtimeDoor) -> None:
        self._http = build_http(surface)
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route by kind of connection: a call's messages pass through nothing but the door."""
        if scope["type"] == "websocket":
            await self._door(scope, receive, send)
        else:
            await self._http(scope, receive, send)


def build_http(surface: Surface) -> FastAPI:
    """The HTTP application."""
    app = FastAPI(title="Metronome", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(HTTPException, _http_error)
    routes = Routes(surface)
    for path, endpoint, methods in (
        ("/v1/models", routes.models, ["GET"]),
        ("/v1/models/{model_id:path}", routes.model, ["GET"]),
        ("/v1/realtime/client_secrets", routes.client_secrets, ["POST"]),
        ("/realtime/client_secrets", routes.client_secrets, ["POST"]),
        ("/v1/realtime/calls", routes.not_served, ["POST"]),
        ("/realtime/calls", routes.not_served, ["POST"]),
        ("/v1/realtime", routes.upgrade_required, ["GET"]),
        ("/realtime", routes.upgrade_required, ["GET"]),
        ("/v1/metronome/ticks", routes.ticks, ["GET"]),
        ("/livez", routes.livez, ["GET"]),
        ("/readyz", routes.readyz, ["GET"]),
        ("/health", routes.livez, ["GET"]),
        ("/metrics", routes.metrics, ["GET"]),
        ("/debug/admission", routes.admission, ["GET"]),
    ):
        app.add_api_route(path, endpoint, methods=methods)
    for path, file in _page_files(Path(str(resources.files("server"))) / "web"):
        app.add_api_route(path, _sender_of(file), methods=["GET", "HEAD"])
    return app


class Routes:
    """One method per path."""

    def __init__(self, surface: Surface) -> None:
        self._surface = surface

    async def models(self, request: Request) -> Response:
        """What is served here: one model."""
        self._require_key(request)
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request, model_id: str) -> Response:
        self._require_key(request)
        if model_id != self._surface.spec.id:
            raise HTTPException(404, f"The model '{model_id}' does not exist.")
        return JSONResponse(self._model())

    async def client_secrets(self, request: Request) -> Response:
        """Mint an ephemeral key."""
        surface = self._surface
        if not origin_allowed(request.headers, surface.allowed_origins, surface.ring):
            surface.metrics.auth_failed("origin_not_allowed")
            raise HTTPException(403, "Pages of this origin may not use this server.")
        who = self._require_key(request)
        body = await _body(request)
        value = PREFIX + secrets.token_urlsafe(32)
        answer = surface.desk.issue(body, value, who, surface.clock.now(), surface.unix_now())
        if isinstance(answer, ProtocolError):
            detail = {
                "message": answer.message,
                "type": answer.type,
                "param": answer.param,
                "code": answer.code,
            }
            raise HTTPException(503 if answer is FULL else 400, detail)  # type: ignore[arg-type]  # any JSON value
        return JSONResponse(answer, headers={"cache-control": "no-store"})

    async def not_served(self, request: Request) -> Response:
        """Paths of the API that are known and not built."""
        self._require_key(request)
        message = f"{request.url.path} is not served: connect to /v1/realtime over a WebSocket."
        raise HTTPException(501, message)

    async def upgrade_required(self, request: Request) -> Response:
        """A plain GET where a WebSocket is meant."""
        message = "This is a WebSocket: connect with the upgrade handshake."
        raise HTTPException(426, message, headers={"upgrade": "websocket"})

    async def ticks(self, request: Request, since: str = "0") -> Response:
        """The last ticks from number `since` on: [number, done_at, kind, outcome, latency in ms].

        Times are in seconds on the engine's clock.
        """
        self._require_key(request)
        if not since.isascii() or not since.isdigit():
            raise HTTPException(400, "'since' must be a whole number.")
        metrics = self._surface.metrics
        first = metrics.ticks_seen - len(metrics.ticks)
        skip = max(0, int(since) - first) if int(since) <= metrics.ticks_seen else 0
        ticks = [
            [first + place, tick.done_at, tick.kind, tick.outcome, round(1000 * tick.latency_s, 3)]
            for place, tick in enumerate(metrics.ticks)
            if place >= skip
        ]
        return JSONResponse(
            {"tick_ms": self._surface.spec.tick_ms, "next": metrics.ticks_seen, "ticks": ticks}
        )

    async def livez(self) -> Response:
        """200 unless the engine is lost."""
        return self._probe(self._surface.health.is_live)

    async def readyz(self, capacity: str = "") -> Response:
        """200 while new sessions are welcome; with `capacity=1`, only while there is room as well."""
        admission = self._surface.admission
        has_room = capacity in ("", "0") or admission.active < admission.limit
        return self._probe(self._surface.health.is_ready and has_room)

    async def metrics(self) -> Response:
        """Prometheus' text."""
        return Response(self._surface.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    async def admission(self, request: Request) -> Response:
        """Why the next session would be let in or not: every bound, and which one binds."""
        self._require_key(request)
        surface = self._surface
        waiting = {} if surface.room is None else surface.room.explain()
        if surface.keeper is not None:
            return JSONResponse(surface.keeper.explain() | waiting)
        active, limit = surface.admission.active, surface.admission.limit
        return JSONResponse({"active": active, "limit": limit, "binding": "places"} | waiting)

    def _probe(self, ok: bool) -> Response:
        health, admission = self._surface.health, self._surface.admission
        body = {
            "status": health.phase.value,
            "note": health.note,
            "sessions": admission.active,
            "max_sessions": admission.limit,
        }
        return JSONResponse(body, 200 if ok else 503)

    def _model(self) -> dict[str, Any]:
        spec = self._surface.spec
        return {
            "id": spec.id,
            "object": "model",
            "created": self._surface.created,
            "owned_by": spec.owned_by,
            "metronome": {
                "quality": spec.quality,
                "tick_ms": spec.tick_ms,
                "input_rate": spec.input_rate,
                "output_rate": spec.output_rate,
                "full_duplex": spec.decides_turns,
            },
        }

    def _require_key(self, request: Request) -> AuthOk:
        """Who asks. Raises HTTPException 401."""
        who = authenticate(self._surface.ring, presented_key(request.headers, ()))
        if isinstance(who, AuthDenied):
            self._surface.metrics.auth_failed(who.code)
            detail = {"message": who.message, "type": who.type, "code": who.code}
            raise HTTPException(who.status, detail, headers={"www-authenticate": "Bearer"})  # type: ignore[arg-type]  # any JSON value
        return who


async def _body(request: Request) -> bytes:
    """The request's body. Raises HTTPException 413 as soon as it is longer than it may be."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"The body is larger than {MAX_BODY_BYTES} bytes.")
    return bytes(body)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), error
    phrase = HTTPStatus(error.status_code).phrase
    detail: Any = error.detail
    body = {"message": str(detail), "type": "invalid_request_error", "param": None}
    body["code"] = phrase.lower().replace(" ", "_")
    if isinstance(detail, dict):
        body |= detail
    elif detail == phrase:
        body["message"] = f"{phrase}: {request.method} {request.url.path}"
    return JSONResponse({"error": body}, error.status_code, error.headers)


def _page_files(folder: Path) -> list[tuple[str, Path]]:
    """(path, file) of the demo page. Exactly these are served: no path is ever built from a request."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    pages = [(f"/{path.relative_to(folder).as_posix()}", path) for path in files]
    return pages + [("/", path) for path in files if path == folder / "index.html"]


def _sender_of(file: Path) -> Callable[[], Awaitable[Response]]:
    async def send_file() -> Response:
        return FileResponse(file, headers={"cache-control": "no-cache"})

    return send_file
