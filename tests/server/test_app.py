"""The HTTP side: models, probes, metrics, ticks and the page, with errors in the API's shape."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from admission.port import Request
from admission.static_cap import StaticCap
from engine.clock import LoopClock
from engine.models.base import ModelSpec
from engine.observer import TickStats
from protocol.ids import IdFactory
from protocol.session_config import SessionDefaults
from server.app import Surface, build_http
from server.auth import KeyRing
from server.client_secrets import ClientSecrets, SecretDesk
from server.health import Health, Phase
from server.metrics import TICKS_KEPT, Metrics

SPEC = ModelSpec("tiny", 160, 24_000, 24_000, 4, decides_turns=False, quality="demo")

Check = Callable[[httpx.AsyncClient, Surface], Awaitable[None]]


def _browse(check: Check, *keys: str) -> None:
    async def main() -> None:
        surface = Surface(
            spec=SPEC,
            ring=KeyRing(keys),
            health=Health(),
            admission=StaticCap(1),
            metrics=Metrics("tiny", 0.16),
            created=1_800_000_000,
            desk=SecretDesk(ClientSecrets(b"k"), "tiny", SessionDefaults(), IdFactory()),
            clock=LoopClock(),
            unix_now=lambda: 1_800_000_000.0,
        )
        transport = httpx.ASGITransport(build_http(surface))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await check(client, surface)

    asyncio.run(main())


def test_models_lists_the_one_model_with_its_label() -> None:
    """The API's list shape; what is ours is under one key."""

    async def check(client: httpx.AsyncClient, surface: Surface) -> None:
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert (model["id"], model["object"], model["created"]) == ("tiny", "model", 1_800_000_000)
        assert (model["metronome"]["quality"], model["metronome"]["tick_ms"]) == ("demo", 160)
        assert (await client.get("/v1/models/tiny")).json() == model

    _browse(check)


def test_a_model_that_is_not_there_is_404() -> None:
    """In the API's error shape."""

    async def check(client: httpx.AsyncClient, surface: Surface) -> None:
        answer = await client.get("/v1/models/gpt-realtime")
        assert answer.status_code == 404
        assert answer.json()["error"]["message"] == "The model 'gpt-realtime' does not exist."

    _browse(check)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny", "/v1/metronome/ticks"])
def test_with_keys_the_api_asks_for_one(path: str) -> None:
    """Probes and metrics stay open: they are for the operator's network."""

    async def check(client: httpx.AsyncClient, surface: Surface) -> None:
        refused = await client.get(path)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "missing_api_key"
        assert refused.headers["www-authenticate"] == "Bearer"
        granted = await client.get(path, headers={"Authorization": "Bearer sk-1"})
        assert granted.status_code == 200
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/metrics")).status_code == 200

    _browse(check, "sk-1")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing/here", 404, "not_found"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/v1/realtime/calls", 501, "not_implemented"),
        ("GET", "/v1/realtime", 426, "upgrade_required"),
        ("GET", "/v1/metronome/ticks?since=x", 400, "bad_request"),
        ("GET", "/v1/metronome/ticks?since=-1", 400, "bad_request"),
    ],
)
def test_errors_have_the_shape_of_the_api(method: str, path: str, status: int, code: str) -> None:
    """`{"error": {"message", "type", "param", "code"}}`, whoever made the mistake."""

    async def check(client: httpx.AsyncClient, surface: Surface) -> None:
        answer = await client.request(method, path)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, code)
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]

    _browse(check)


def test_probes_follow_the_phase() -> None:
    """Live from the start, ready in between, live to the end of a drain, dead with the engine."""

    async def check(client: httpx.AsyncClient, surface: Surface) -> None:
        async def codes() -> tuple[int, int]:
            return (await client.get("/livez")).status_code, (
                await client.get("/readyz")
            ).status_code

        assert await codes() == (200, 503)
        surface.health.become(Phase.READY)
        assert await codes() == (200, 200)
        assert (await client.get("/health")).status_code == 200
        surface.health.become(Phase.DRAINING)
        assert await codes() == (200, 503)
        assert (await client.get("/readyz")).json()["status"] == "draining"
        surface.health.become(Phase.DEAD)
        assert await codes() == (503, 503)

    _browse(check)


def test_a_full_server_is_ready_unless_asked_about_capacity() -> None:
    """Full is not broken: only a balancer that asks hears of it."""

    async def check(client: httpx.AsyncClient, surface: Surface) -> None:
        surface.health.become(Phase.READY)
        assert (await client.get("/readyz?capacity=1")).status_code == 200
        surface.admission.try_admit(0.0, Request())
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.get("/readyz?capacity=1")).status_code == 503

    _browse(check)


def _tick(at: float) -> TickStats:
    return TickStats("speak", "on_time", at - 0.02, at, at + 0.1)


def test_ticks_are_read_from_a_number_on() -> None:
    """The page polls with the number it has not seen yet and gets nothing twice."""

    async def check(client: httpx.AsyncClient, surface: Surface) -> None:
        async def read(since: int) -> Any:
            return (await client.get(f"/v1/metronome/ticks?since={since}")).json()

        assert await read(0) == {"tick_ms": 160, "next": 0, "ticks": []}
        for i in range(3):
            surface.metrics.tick(_tick(10.0 + i))
        answer = await read(1)
        assert answer["next"] == 3
        assert answer["ticks"] == [
            [1, 11.0, "speak", "on_time", 20.0],
            [2, 12.0, "speak", "on_time", 20.0],
        ]
        assert (await read(3))["ticks"] == []

    _browse(check)


def test_ticks_that_are_gone_are_left_out_and_a_number_from_another_life_starts_anew() -> None:
    """The record is a ring; a page that outlived a restart is given everything."""

    async def check(client: httpx.AsyncClient, surface: Surface) -> None:
        for i in range(TICKS_KEPT + 10):
            surface.metrics.tick(_tick(float(i)))
        first = (await client.get("/v1/metronome/ticks?since=0")).json()
        assert (len(first["ticks"]), first["ticks"][0][0]) == (TICKS_KEPT, 10)
        anew = (await client.get("/v1/metronome/ticks?since=99999")).json()
        assert len(anew["ticks"]) == TICKS_KEPT

    _browse(check)


def test_the_page_and_its_modules_are_served_with_types_that_browsers_take() -> None:
    """A module of the wrong type is refused by the browser."""

    async def check(client: httpx.AsyncClient, surface: Surface) -> None:
        page = await client.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        module = await client.get("/realtime/socket.js")
        assert module.status_code == 200
        assert module.headers["content-type"].startswith("text/javascript")

    _browse(check)


@pytest.mark.parametrize(
    "path", ["/../config.py", "/%2e%2e/config.py", "/..%2fconfig.py", "/view/../../cli.py"]
)
def test_nothing_beside_the_page_is_served(path: str) -> None:
    """No path is built from a request."""

    async def check(client: httpx.AsyncClient, surface: Surface) -> None:
        assert (await client.get(path)).status_code == 404

    _browse(check)
