"""Ephemeral keys end to end: minted with the stock client, used with each of the ways to present a key."""

import asyncio
import json
import logging
from pathlib import Path

import httpx
import pytest
import websockets
from openai import AsyncOpenAI
from support.server_process import Running, run_server
from support.wire import until
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

pytestmark = pytest.mark.socket

KEY = "sk-canary-77aa"


@pytest.fixture
def keyfile(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(KEY + "\n")
    return path


def _openai(server: Running, key: str = KEY) -> AsyncOpenAI:
    return AsyncOpenAI(api_key=key, base_url=f"{server.http}/v1", max_retries=0)


async def test_a_secret_opens_the_session_it_was_minted_for(
    keyfile: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the stock client, by header and by the browser's subprotocol; no key is ever logged."""
    caplog.set_level(logging.WARNING, "uvicorn.error")  # as `server.logs` has it at any level
    caplog.set_level(logging.DEBUG)
    async with run_server(server__api_keys_file=str(keyfile)) as server:
        client = _openai(server)
        secret = await client.realtime.client_secrets.create(
            expires_after={"anchor": "created_at", "seconds": 60},
            session={"type": "realtime", "instructions": "Speak like a pirate."},
        )
        assert secret.value.startswith("ek_")
        assert secret.session.type == "realtime"
        async with _openai(server, secret.value).realtime.connect(model="sim") as call:
            created = await call.recv()
            assert created.type == "session.created"
            assert created.session.type == "realtime"
            assert created.session.instructions == "Speak like a pirate."
        offered = [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{secret.value}")]
        async with websockets.connect(server.ws, subprotocols=offered) as socket:
            assert socket.subprotocol == "realtime"
            session = (await until(socket, "session.created"))["session"]
            assert session["instructions"] == "Speak like a pirate."
        await server.settled()
        await client.close()
    clients = ("openai", "httpx", "httpcore", "websockets.client")  # they run in this process, too
    ours = [r.getMessage() for r in caplog.records if not r.name.startswith(clients)]
    assert any("sess_" in line for line in ours)
    assert not [line for line in ours if secret.value in line or KEY in line]


async def test_a_secret_bound_to_transcription_opens_a_transcription_session(
    keyfile: Path,
) -> None:
    """The type is part of what is bound."""
    async with run_server(server__api_keys_file=str(keyfile)) as server:
        client = _openai(server)
        secret = await client.realtime.client_secrets.create(session={"type": "transcription"})
        assert secret.session.type == "transcription"
        headers = {"Authorization": f"Bearer {secret.value}"}
        async with websockets.connect(server.ws, additional_headers=headers) as socket:
            assert json.loads(await socket.recv())["session"]["type"] == "transcription"
        await client.close()


async def test_an_unknown_secret_is_refused_with_401(keyfile: Path) -> None:
    """Before the upgrade; what has expired is tested at the door, where time is virtual."""
    async with run_server(server__api_keys_file=str(keyfile)) as server:
        headers = {"Authorization": "Bearer ek_unknown"}
        with pytest.raises(InvalidStatus) as refused:
            await websockets.connect(server.ws, additional_headers=headers)
        assert refused.value.response.status_code == 401


async def test_minting_takes_an_api_key_and_a_secret_is_none(keyfile: Path) -> None:
    """A page that was given a secret cannot renew it by itself."""
    async with (
        run_server(server__api_keys_file=str(keyfile)) as server,
        httpx.AsyncClient() as http,
    ):
        url = f"{server.http}/v1/realtime/client_secrets"
        assert (await http.post(url)).json()["error"]["code"] == "missing_api_key"
        minted = await http.post(url, headers={"api-key": KEY})
        assert minted.headers["cache-control"] == "no-store"
        again = await http.post(url, headers={"api-key": minted.json()["value"]})
        assert (again.status_code, again.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_what_cannot_be_minted_is_explained() -> None:
    """Too long a body, too long a life, and a page of another origin on a server without keys."""
    async with run_server() as server, httpx.AsyncClient() as http:
        url = f"{server.http}/v1/realtime/client_secrets"
        answers = await asyncio.gather(
            http.post(url, content=b" " * 300_000),
            http.post(url, json={"expires_after": {"anchor": "created_at", "seconds": 7201}}),
            http.post(url, headers={"origin": "https://evil.example"}),
            http.post(f"{server.http}/v1/realtime/calls", content=b"v=0"),
        )
        assert [answer.status_code for answer in answers] == [413, 400, 403, 501]
        assert answers[1].json()["error"]["param"] == "expires_after.seconds"
        assert all(answer.json()["error"]["message"] for answer in answers)
