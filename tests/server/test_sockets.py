"""The real server on real sockets: unmodified clients, refusals that reach them, TLS, peers that stall or vanish."""

import asyncio
import datetime
import ipaddress
import json
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from openai import AsyncOpenAI
from support.server_process import DUPLEX, SIM, Running, run_server
from websockets.exceptions import ConnectionClosed, InvalidStatus

from server.listening import CannotListen, addresses, bound_socket
from server.config import ServerConfig

pytestmark = [pytest.mark.socket, pytest.mark.slow]

APPEND = json.dumps({"type": "input_audio_buffer.append", "audio": "A" * 1280})  # 20 ms of silence
ANSWER_AT_LENGTH = json.dumps(
    {
        "type": "response.create",
        "response": {
            "input": [
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "tell me everything"}],
                }
            ]
        },
    }
)


async def _event(socket: websockets.ClientConnection, kind: str) -> Any:
    async for text in socket:
        event = json.loads(text)
        if event["type"] == kind:
            return event
    raise AssertionError(f"closed before {kind}: {socket.close_code}")


async def _closed(socket: websockets.ClientConnection) -> tuple[int | None, str | None]:
    async for _ in socket:
        pass
    return socket.close_code, socket.close_reason


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
                await _event(inside, "session.created")
                with pytest.raises(InvalidStatus) as full:
                    await websockets.connect(server.ws, additional_headers=key)
            response = full.value.response
            assert response.status_code == 503
            assert int(response.headers["Retry-After"]) >= 1
            assert json.loads(response.body)["error"]["code"] == "capacity_exceeded"
            await server.settled()
            async with websockets.connect(server.ws, additional_headers=key) as again:
                await _event(again, "session.created")

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
                await _event(socket, "session.created")
            async with httpx.AsyncClient(verify=context) as client:
                assert (await client.get(f"{server.http}/readyz")).status_code == 200

    asyncio.run(main())


async def _raw(server: Running, receive_buffer: int = 0) -> tuple[Any, Any]:
    """A WebSocket by hand, so that nothing reads behind our back."""
    import socket as sockets

    sock = sockets.socket()
    if receive_buffer:
        sock.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    writer.write(
        b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    return reader, writer


def _masked(text: str) -> bytes:
    data = text.encode()
    size = bytes([254]) + len(data).to_bytes(2, "big") if len(data) > 125 else bytes([128 + len(data)])
    return b"\x81" + size + bytes(4) + data  # a mask of zeros


def test_a_client_that_never_reads_is_closed_and_its_memory_freed() -> None:
    """However much the kernel takes at first; nobody else is disturbed."""

    async def main() -> None:
        async with run_server({**DUPLEX, "server.outbox_s": 5.0}) as server:
            reader, writer = await _raw(server, receive_buffer=4096)
            async with websockets.connect(server.ws) as other:
                await _event(other, "session.created")
                with pytest.raises(ConnectionError):
                    while True:
                        writer.write(_masked(APPEND) * 50)
                        await writer.drain()
                        await asyncio.sleep(0)
                await other.send(APPEND)
                await _event(other, "response.output_audio.delta")
            await server.settled()
            rendered = server.runtime.parts.metrics.render().decode()
            assert 'sessions_ended_total{reason="slow_consumer"} 1.0' in rendered
            writer.close()

    asyncio.run(main())


def test_a_client_that_vanishes_in_the_middle_of_a_reply_leaves_nothing() -> None:
    """A reset, not a close: session, lease and KV blocks all come back."""

    async def main() -> None:
        async with run_server({**SIM, "engine.sim.fixed_s": 0.02}) as server:
            socket = await websockets.connect(server.ws)
            await socket.send(ANSWER_AT_LENGTH)
            await _event(socket, "response.output_audio.delta")
            assert server.held_blocks > 0
            socket.transport.abort()
            await server.settled()

    asyncio.run(main())


@pytest.mark.parametrize("said", [b"", b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\n", b"GET /livez"])
def test_a_half_sent_handshake_is_cut(said: bytes) -> None:
    """Silent sockets and slow headers do not stay."""

    async def main() -> None:
        async with run_server(server__handshake_timeout_s=0.2) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(said)
            async with asyncio.timeout(5):
                with pytest.raises(ConnectionResetError):
                    assert await reader.read() != b""
                    raise AssertionError("closed politely, or answered")
            writer.close()

    asyncio.run(main())


def test_a_slow_second_request_on_a_kept_connection_is_cut_too() -> None:
    """The deadline starts again with each request."""

    async def main() -> None:
        async with run_server(server__handshake_timeout_s=0.2) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b"}")
            writer.write(b"GET /livez HTTP/1.1\r\nHost:")
            async with asyncio.timeout(5):
                with pytest.raises(ConnectionResetError):
                    await reader.read()
            writer.close()

    asyncio.run(main())


def test_an_upgraded_connection_has_no_handshake_deadline() -> None:
    """A call may be silent for longer than a handshake may take."""

    async def main() -> None:
        async with run_server(server__handshake_timeout_s=0.1) as server:
            async with websockets.connect(server.ws) as socket:
                await _event(socket, "session.created")
                await asyncio.sleep(0.3)  # real time: the deadline is uvicorn's, on a real socket
                await socket.send(ANSWER_AT_LENGTH)
                await _event(socket, "response.done")

    asyncio.run(main())


def test_five_hundred_calls_come_and_go_and_leave_nothing() -> None:
    """Sessions, leases, blocks and tasks are back where they were; every call was answered."""

    async def main() -> None:
        async with run_server(engine__max_sessions=64) as server:
            before = len(asyncio.all_tasks())

            async def come_and_go(number: int) -> None:
                async with websockets.connect(server.ws, compression=None) as socket:
                    await _event(socket, "session.created")
                    if number % 3 == 0:
                        await socket.send(APPEND)
                    if number % 5 == 0:
                        await socket.send(ANSWER_AT_LENGTH)
                    if number % 7 == 0:
                        socket.transport.abort()

            for first in range(0, 500, 25):
                async with asyncio.TaskGroup() as group:
                    for number in range(first, first + 25):
                        group.create_task(come_and_go(number))
            await server.settled()
            rendered = server.runtime.parts.metrics.render().decode()
            assert "metronome_sessions_started_total 500.0" in rendered
            assert 'metronome_sessions_ended_total{reason="client"} 500.0' in rendered
            while len(asyncio.all_tasks()) > before:
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_drain_in_this_process_ends_calls_with_1012_and_refuses_new_ones() -> None:
    """/readyz and the door say so while the reply in progress goes on."""

    async def main() -> None:
        async with run_server({**SIM, "engine.sim.fixed_s": 0.05}) as server:
            async with httpx.AsyncClient() as client, websockets.connect(server.ws) as socket:
                await socket.send(ANSWER_AT_LENGTH)
                await _event(socket, "response.output_audio.delta")
                server.runtime.request_exit()
                while (await client.get(f"{server.http}/readyz")).status_code != 503:
                    pass
                assert (await client.get(f"{server.http}/livez")).status_code == 200
                with pytest.raises(InvalidStatus) as refused:
                    await websockets.connect(server.ws)
                assert refused.value.response.headers["X-Metronome-Reason"] == "draining"
                done = await _event(socket, "response.done")
                assert done["response"]["status"] == "completed"
                assert await _closed(socket) == (1012, "the server is shutting down")

    asyncio.run(main())


def test_a_taken_port_is_one_line() -> None:
    """No traceback, and before anything is loaded."""
    first = bound_socket(ServerConfig(port=0))
    first.listen()
    with pytest.raises(CannotListen, match="Address already in use"):
        bound_socket(ServerConfig(port=first.getsockname()[1]))
    first.close()
    with pytest.raises(CannotListen, match="no-such-host.invalid"):
        bound_socket(ServerConfig(host="no-such-host.invalid"))


def test_addresses_are_ones_that_a_person_can_open() -> None:
    """A wildcard is not an address; IPv6 wants brackets; TLS changes both schemes."""
    assert addresses(ServerConfig(host="0.0.0.0"), 8000)[1] == "http://127.0.0.1:8000"
    assert addresses(ServerConfig(host="::1"), 8000)[0] == "ws://[::1]:8000/v1/realtime"
    tls = ServerConfig(ssl_certfile="c", ssl_keyfile="k")
    assert addresses(tls, 1)[0].startswith("wss://")


def test_a_message_larger_than_the_limit_is_closed_with_1009() -> None:
    """uvicorn's own answer, and the session is gone."""

    async def main() -> None:
        async with run_server(server__ws_max_bytes=65_536) as server:
            async with websockets.connect(server.ws) as socket:
                await _event(socket, "session.created")
                with pytest.raises(ConnectionClosed):
                    await socket.send("x" * 70_000)
                    await _closed(socket)
                    await socket.send("x")
            assert socket.close_code in (1009, 1006)
            await server.settled()

    asyncio.run(main())
