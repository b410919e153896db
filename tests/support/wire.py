"""A client of the real server, for tests: the stock `websockets` library and a few lines."""

import asyncio
import base64
import contextlib
import json
import socket as sockets
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

RATE = 24_000


def event(kind: str, **fields: Any) -> str:
    """A client event as text."""
    return json.dumps({"type": kind, **fields})


def append(ms: int = 20) -> str:
    """An append of silence."""
    return event(
        "input_audio_buffer.append", audio=base64.b64encode(bytes(2 * RATE * ms // 1000)).decode()
    )


def ask(text: str = "tell me everything", **response: Any) -> str:
    """A response.create that brings its own question."""
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    return event("response.create", response={"input": [item], **response})


async def enter(url: str, **options: Any) -> ClientConnection:
    """A call that has begun."""
    socket = await websockets.connect(url, compression=None, **options)
    await until(socket, "session.created")
    return socket


async def until(socket: ClientConnection, kind: str) -> Any:
    """The next event of this type."""
    async for text in socket:
        found = json.loads(text)
        if found["type"] == kind:
            return found
    raise AssertionError(f"closed with {socket.close_code} before {kind}")


async def last(socket: ClientConnection) -> tuple[Any, int | None, str | None]:
    """Wait for the end: the last event, the close code and the reason."""
    found: Any = None
    with contextlib.suppress(ConnectionClosed):
        async for text in socket:
            found = json.loads(text)
    return found, socket.close_code, socket.close_reason


async def raw_call(
    port: int, receive_buffer: int = 0
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A WebSocket by hand, upgraded by the time the server answers: nothing reads behind our back."""
    sock = sockets.socket()
    if receive_buffer:
        sock.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    writer.write(
        b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    return reader, writer


def frame(text: str) -> bytes:
    """A masked text frame; the mask is zeros."""
    data = text.encode()
    if len(data) < 126:
        return b"\x81" + bytes([128 + len(data)]) + bytes(4) + data
    return b"\x81\xfe" + len(data).to_bytes(2, "big") + bytes(4) + data
