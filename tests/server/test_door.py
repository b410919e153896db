"""The door: who is turned away, in which words, and that nothing is reserved before the last question."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from support.doors import nobody_waits
from support.fake_asgi import FakeSocket
from support.sim_engine import cascade, running

from admission.port import Lease, Reason, Rejection, Request
from admission.static_cap import StaticCap
from engine.clock import LoopClock
from engine.virtual_time import run_virtual
from protocol import session_config
from protocol.session_config import SessionDefaults
from server.auth import AuthOk, KeyRing
from server.client_secrets import ClientSecrets, Grant
from server.connection import Limits, Machine
from server.metrics import Metrics
from server.realtime import DoorPolicy, RealtimeDoor
from server.websocket import EXTENSION

BROWSER_KEY = "realtime, openai-insecure-api-key.sk-1"


def _scope(path: str = "/v1/realtime", query: str = "model=sim", **headers: str) -> dict[str, Any]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return {
        "type": "websocket",
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in names.items()],
        "extensions": {"websocket.http.response": {}},
    }


def _knock_of(socket: FakeSocket, **request: str) -> dict[str, Any]:
    scope = _scope(**request)
    scope["extensions"][EXTENSION] = socket
    return scope


class _Door:
    """A door with its machine, and the sockets that knocked."""

    def __init__(self, door: RealtimeDoor, admission: StaticCap, metrics: Metrics) -> None:
        self.door = door
        self.admission = admission
        self.metrics = metrics

    async def refuses(self, **request: str) -> FakeSocket:
        """Knock and be turned away; no place may be taken."""
        socket = FakeSocket()
        socket.knock()
        inside = self.admission.active
        await self.door(_knock_of(socket, **request), socket.receive, socket.send)
        assert self.admission.active == inside
        return socket


def _with_door(
    check: Any,
    keys: tuple[str, ...] = ("sk-1",),
    places: int = 1,
    secrets: ClientSecrets | None = None,
    **more: Any,
) -> None:
    async def main() -> None:
        async with running(cascade()) as (engine, _, _backend):
            admission, metrics = StaticCap(places), Metrics("sim", 0.16)
            policy = DoorPolicy(
                ("/v1/realtime", "/realtime"),
                KeyRing(keys),
                (),
                "sim",
                0.16,
                SessionDefaults(),
                secrets or ClientSecrets(b"k"),
            )
            machine = Machine(engine, LoopClock(), metrics, Limits())
            door = RealtimeDoor(policy, machine, nobody_waits(admission, metrics), lambda: 1000.0)
            await check(_Door(door, admission, metrics))
            assert (len(door.calls), admission.active) == (0, 0)

    run_virtual(main())


def _error(socket: FakeSocket) -> Any:
    return json.loads(socket.body)["error"]


def _headers(socket: FakeSocket) -> dict[str, str]:
    assert socket.response is not None
    return {name.decode(): value.decode() for name, value in socket.response["headers"]}


def test_a_program_without_a_key_gets_401_before_the_upgrade() -> None:
    """Status, JSON body and the challenge; the socket is never accepted."""

    async def check(door: _Door) -> None:
        socket = await door.refuses()
        assert socket.response is not None
        assert (socket.response["status"], socket.accepted) == (401, None)
        assert _error(socket)["code"] == "missing_api_key"
        assert _headers(socket)["www-authenticate"] == "Bearer"

    _with_door(check)


def test_a_browser_with_a_wrong_key_is_shown_an_error_event_and_1008() -> None:
    """A page cannot read the status of a refused upgrade; the subprotocol is answered without the key."""

    async def check(door: _Door) -> None:
        offered = "realtime, openai-insecure-api-key.sk-wrong"
        socket = await door.refuses(sec_websocket_protocol=offered)
        assert socket.accepted is not None
        assert socket.accepted["subprotocol"] == "realtime"
        assert socket.events[0]["error"]["code"] == "invalid_api_key"
        assert socket.closed == (1008, "invalid_api_key")

    _with_door(check)


def test_a_page_of_another_origin_is_refused_before_its_key_is_looked_at() -> None:
    """A visitor's browser is not a way in."""

    async def check(door: _Door) -> None:
        socket = await door.refuses(
            origin="https://evil.example", host="127.0.0.1:8000", sec_websocket_protocol=BROWSER_KEY
        )
        assert socket.events[0]["error"]["code"] == "origin_not_allowed"
        assert socket.closed == (1008, "origin_not_allowed")

    _with_door(check)


@pytest.mark.parametrize(
    "headers",
    [
        {"openai_beta": "realtime=v1"},
        {"sec_websocket_protocol": "realtime, openai-beta.realtime-v1"},
    ],
)
def test_the_beta_shape_is_closed_with_4000(headers: dict[str, str]) -> None:
    """As the API does: accepted, then closed with the reason."""

    async def check(door: _Door) -> None:
        socket = await door.refuses(authorization="Bearer sk-1", **headers)
        assert socket.closed == (4000, "invalid_request_error.beta_api_shape_disabled")

    _with_door(check)


def test_an_unknown_path_is_404() -> None:
    """In the API's error shape."""

    async def check(door: _Door) -> None:
        socket = await door.refuses(path="/v2/realtime", authorization="Bearer sk-1")
        assert socket.response is not None
        assert (socket.response["status"], _error(socket)["code"]) == (404, "not_found")

    _with_door(check)


def test_a_sideband_to_a_call_is_404() -> None:
    """There are no WebRTC calls to join."""

    async def check(door: _Door) -> None:
        socket = await door.refuses(query="call_id=rtc_1", authorization="Bearer sk-1")
        assert _error(socket)["code"] == "call_not_found"

    _with_door(check)


async def _enter(door: _Door, **headers: str) -> tuple[FakeSocket, "asyncio.Task[None]"]:
    socket = FakeSocket()
    socket.knock()
    scope = _knock_of(socket, **headers)
    task = asyncio.create_task(door.door(scope, socket.receive, socket.send))
    await socket.until("session.created")
    return socket, task


def test_a_full_house_answers_503_with_retry_after_and_a_reason() -> None:
    """And has room again when somebody leaves."""

    async def check(door: _Door) -> None:
        inside, task = await _enter(door, authorization="Bearer sk-1")
        socket = await door.refuses(authorization="Bearer sk-1")
        assert socket.response is not None
        assert (socket.response["status"], _error(socket)["code"]) == (503, "capacity_exceeded")
        assert int(_headers(socket)["retry-after"]) >= 1
        assert _headers(socket)["x-metronome-reason"] == "capacity"
        inside.leave()
        await task
        again, task = await _enter(door, authorization="Bearer sk-1")
        again.leave()
        await task

    _with_door(check)


def test_a_browser_at_a_full_house_gets_an_error_event_and_1013() -> None:
    """1013 is the code that clients reconnect on."""

    async def check(door: _Door) -> None:
        inside, task = await _enter(door, authorization="Bearer sk-1")
        socket = await door.refuses(
            origin="http://127.0.0.1:8000",
            host="127.0.0.1:8000",
            sec_websocket_protocol=BROWSER_KEY,
        )
        assert socket.events[0]["error"]["code"] == "capacity_exceeded"
        assert socket.closed == (1013, "capacity")
        inside.leave()
        await task

    _with_door(check)


@pytest.mark.parametrize(
    ("reason", "code"), [("draining", "server_draining"), ("engine_down", "engine_unavailable")]
)
def test_a_closed_door_says_why(reason: Reason, code: str) -> None:
    """A server that goes down is not merely full."""

    async def check(door: _Door) -> None:
        door.admission.close(reason)
        socket = await door.refuses(authorization="Bearer sk-1")
        assert (_error(socket)["code"], _headers(socket)["x-metronome-reason"]) == (code, reason)
        assert f'rejections_total{{reason="{reason}"}} 1.0' in door.metrics.render().decode()

    _with_door(check)


def test_any_model_name_is_served_and_the_session_names_the_one_there_is() -> None:
    """Clients hard-code gpt-realtime."""

    async def check(door: _Door) -> None:
        for query in ("model=gpt-realtime", ""):
            socket, task = await _enter(door, query=query, authorization="Bearer sk-1")
            session = socket.events[0]["session"]
            assert (session["model"], session["expires_at"]) == ("sim", 4600)
            socket.leave()
            await task

    _with_door(check)


def test_intent_transcription_opens_a_transcription_session() -> None:
    """The query, not only session.update, may choose the kind."""

    async def check(door: _Door) -> None:
        socket, task = await _enter(door, query="intent=transcription", api_key="sk-1")
        assert socket.events[0]["session"]["type"] == "transcription"
        socket.leave()
        await task

    _with_door(check)


def test_a_peer_that_leaves_during_the_handshake_holds_nothing() -> None:
    """The place is given back whenever the socket dies."""

    async def check(door: _Door) -> None:
        socket = FakeSocket()
        socket.knock()
        socket.leave()
        await door.door(_knock_of(socket, authorization="Bearer sk-1"), socket.receive, socket.send)
        assert socket.accepted is None

    _with_door(check)


class _Ledger:
    """An admission port that only records."""

    active, limit = 0, 1

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.released: list[Lease] = []

    def try_admit(self, now: float, request: Request) -> Lease | Rejection:
        self.asked.append(request)
        return Lease(request.tenant, now)

    def release(self, now: float, lease: Lease) -> None:
        self.released.append(lease)

    def close(self, reason: Reason) -> None: ...


def test_admission_is_asked_last_and_its_lease_is_released_once() -> None:
    """A refused key costs the controller nothing; the tenant stands for the key without being it."""

    async def main() -> None:
        async with running(cascade()) as (engine, _, _backend):
            ledger = _Ledger()
            policy = DoorPolicy(
                ("/v1/realtime",),
                KeyRing(["sk-1"]),
                (),
                "sim",
                0.16,
                SessionDefaults(),
                ClientSecrets(b"k"),
            )
            machine = Machine(engine, LoopClock(), Metrics("sim", 0.16), Limits())
            door = RealtimeDoor(policy, machine, nobody_waits(ledger, machine.metrics), lambda: 0.0)
            for key in ("sk-wrong", "sk-1"):
                socket = FakeSocket()
                socket.knock()
                task = asyncio.create_task(
                    door(
                        _knock_of(socket, authorization=f"Bearer {key}"),
                        socket.receive,
                        socket.send,
                    )
                )
                if key == "sk-1":
                    await socket.until("session.created")
                    socket.leave()
                await task
            assert [request.tick_s for request in ledger.asked] == [0.16]
            assert "sk-1" not in ledger.asked[0].tenant
            assert len(ledger.released) == 1

    run_virtual(main())


def test_a_client_secret_opens_the_door_until_it_expires() -> None:
    """In the session it was bound to; afterwards it is refused by name, with keys configured and without."""
    config = msgspec.structs.replace(session_config.initial(SessionDefaults()), instructions="Hum.")
    secrets = ClientSecrets(b"k")
    secrets.add("ek_1", Grant(AuthOk("t_minter"), config, 10.0, 2), 0.0)

    async def check(door: _Door) -> None:
        socket = FakeSocket()
        socket.knock()
        scope = _knock_of(socket, authorization="Bearer ek_1")
        call = asyncio.create_task(door.door(scope, socket.receive, socket.send))
        session = (await socket.until("session.created"))["session"]
        assert session["instructions"] == "Hum."
        socket.leave()
        await call
        await asyncio.sleep(10.0)
        refused = await door.refuses(authorization="Bearer ek_1")
        assert refused.response is not None
        assert (refused.response["status"], _error(refused)["code"]) == (401, "token_expired")

    _with_door(check, secrets=secrets)
    _with_door(check, keys=(), secrets=secrets)
