"""The real server on real sockets: unmodified clients, refusals that reach them, TLS, a drain."""

import asyncio
import datetime
import ipaddress
import json
import ssl
from pathlib import Path

import httpx
import pytest
import websockets
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from openai import AsyncOpenAI
from support.server_process import SIM, run_server
from support.wire import ask, last, until
from websockets.exceptions import InvalidStatus

from server.config import ServerConfig
from server.listening import CannotListen, addresses, bound_socket

pytestmark = [pytest.mark.socket, pytest.mark.slow]


def test_the_stock_openai_client_holds_a_typed_turn() -> None:
    """Nothing but its base URL is changed."""

    async def main() -> None:
        async with run_server() as server:
            client = AsyncOpenAI(base_url=f"{server.http}/v1", api_key="any")
            async with client.realtime.connect(model="gpt-realtime") as connection:
                await connection.conversation.item.create(
                    item={
                        "type": "message",
                        "role": "user",
                        "content": [{"type": "input_text", "text": "hello"}],
                    }
                )
                await connection.response.create()
                async for event in connection:
                    if event.type == "response.done":
                        assert event.response.status == "completed"
                        break
            models = await client.models.list()
            assert [model.id for model in models.data] == ["sim"]
            await client.close()
            await server.settled()

    asyncio.run(main())


def test_the_realtime_subprotocol_is_answered_and_deflate_refused() -> None:
    """A browser fails without the one; the other costs up to twelve times the CPU."""

    async def main() -> None:
        async with run_server() as server:
            offered = ["realtime", "openai-insecure-api-key.sk-1"]
            async with websockets.connect(server.ws, subprotocols=offered) as socket:  # type: ignore[arg-type]  # plain strings do
                assert socket.subprotocol == "realtime"
                assert socket.response is not None
                assert "Sec-WebSocket-Extensions" not in socket.response.headers

    asyncio.run(main())


def test_a_refusal_reaches_a_program_with_status_body_and_retry_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full server and a missing key, over the wire."""
    monkeypatch.setenv("METRONOME_API_KEYS", "sk-1")

    async def main() -> None:
        key = {"Authorization": "Bearer sk-1"}
        async with run_server(engine__max_sessions=1) as server:
            with pytest.raises(InvalidStatus) as refused:
                await websockets.connect(server.ws)
            assert refused.value.response.status_code == 401
            async with websockets.connect(server.ws, additional_headers=key) as inside:
                await until(inside, "session.created")
                with pytest.raises(InvalidStatus) as full:
                    await websockets.connect(server.ws, additional_headers=key)
            response = full.value.response
            assert response.status_code == 503
            assert int(response.headers["Retry-After"]) >= 1
            assert json.loads(response.body)["error"]["code"] == "capacity_exceeded"
            await server.settled()
            async with websockets.connect(server.ws, additional_headers=key) as again:
                await until(again, "session.created")

    asyncio.run(main())


def _certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return cert_file, key_file


def test_wss_works_with_a_certificate(tmp_path: Path) -> None:
    """One client over TLS for both the WebSocket and HTTP, verifying the certificate."""
    cert, key = _certificate(tmp_path)

    async def main() -> None:
        files = {"server.ssl_certfile": str(cert), "server.ssl_keyfile": str(key)}
        async with run_server({**SIM, **files}) as server:
            context = ssl.create_default_context(cafile=str(cert))
            async with websockets.connect(server.ws, ssl=context) as socket:
                await until(socket, "session.created")
            async with httpx.AsyncClient(verify=context) as client:
                assert (await client.get(f"{server.http}/readyz")).status_code == 200

    asyncio.run(main())


def test_a_drain_in_this_process_ends_calls_with_1012_and_refuses_new_ones() -> None:
    """/readyz and the door say so while the reply in progress goes on."""

    async def main() -> None:
        async with (
            run_server({**SIM, "engine.sim.fixed_s": 0.05}) as server,
            httpx.AsyncClient() as client,
            websockets.connect(server.ws) as socket,
        ):
            await socket.send(ask())
            await until(socket, "response.output_audio.delta")
            server.runtime.request_exit()
            while (await client.get(f"{server.http}/readyz")).status_code != 503:
                pass
            assert (await client.get(f"{server.http}/livez")).status_code == 200
            with pytest.raises(InvalidStatus) as refused:
                await websockets.connect(server.ws)
            assert refused.value.response.headers["X-Metronome-Reason"] == "draining"
            done = await until(socket, "response.done")
            assert done["response"]["status"] == "completed"
            assert (await last(socket))[1:] == (1012, "the server is shutting down")

    asyncio.run(main())


def test_a_taken_port_is_one_line() -> None:
    """No traceback, and before anything is loaded."""
    first = bound_socket(ServerConfig(port=0))
    first.listen()
    with pytest.raises(CannotListen, match="Address already in use"):
        bound_socket(ServerConfig(port=first.getsockname()[1]))
    first.close()
    with pytest.raises(CannotListen, match=r"no-such-host\.invalid"):
        bound_socket(ServerConfig(host="no-such-host.invalid"))


def test_addresses_are_ones_that_a_person_can_open() -> None:
    """A wildcard is not an address; IPv6 wants brackets; TLS changes both schemes."""
    assert addresses(ServerConfig(host="0.0.0.0"), 8000)[1] == "http://127.0.0.1:8000"
    assert addresses(ServerConfig(host="::1"), 8000)[0] == "ws://[::1]:8000/v1/realtime"
    tls = ServerConfig(ssl_certfile="c", ssl_keyfile="k")
    assert addresses(tls, 1)[0].startswith("wss://")
