"""A WebSocket client by hand: it can break every rule of RFC 6455, and reads what comes back frame by frame."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MASK = b"\x5a\xa5\x3c\xc3"
HANDSHAKE = (
    "GET /v1/realtime HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
CONT, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
FIN = 0x80


def frame(first: int, payload: bytes = b"", *, masked: bool = True, wide: int = 0) -> bytes:
    """A frame whose first byte is `first`; `wide` forces a length field of 2 or 8 bytes where fewer would do."""
    size, bit = len(payload), 0x80 if masked else 0
    if size < 126 and not wide:
        head = bytes((first, bit | size))
    elif size < 65_536 and wide != 8:
        head = bytes((first, bit | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, bit | 127)) + size.to_bytes(8, "big")
    if not masked:
        return head + payload
    return head + MASK + bytes(b ^ MASK[i % 4] for i, b in enumerate(payload))


def close(code: int | None = 1000, reason: bytes = b"") -> bytes:
    """A close frame."""
    return frame(FIN | CLOSE, b"" if code is None else code.to_bytes(2, "big") + reason)


class RawSocket:
    """An upgraded connection; on the socket itself, for asyncio's streams forget what came before a reset."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._received = b""

    async def send(self, *pieces: bytes, chop: int = 0) -> None:
        """Write the pieces, or all of them `chop` bytes at a time; what the server no longer takes is left out."""
        data = b"".join(pieces)
        parts = [data[i : i + chop] for i in range(0, len(data), chop)] if chop else pieces
        with contextlib.suppress(ConnectionError):
            for part in parts:
                await asyncio.get_running_loop().sock_sendall(self._sock, part)
                await asyncio.sleep(0)  # each is a packet of its own

    async def read(self, size: int) -> bytes:
        """The next bytes. Raises ConnectionError at the end of the stream, TimeoutError after five seconds."""
        async with asyncio.timeout(5):
            while len(self._received) < size:
                more = await asyncio.get_running_loop().sock_recv(self._sock, 1 << 20)
                if not more:
                    raise ConnectionError("the server has closed the connection")
                self._received += more
        data, self._received = self._received[:size], self._received[size:]
        return data

    async def head(self) -> str:
        """The head of the answer to the handshake."""
        found = b""
        while not found.endswith(b"\r\n\r\n"):
            found += await self.read(1)
        return found.decode()

    async def receive(self) -> tuple[int, bytes]:
        """Opcode and payload of the server's next frame, which must be whole, plain and unmasked. Raises as `read`."""
        first, second = await self.read(2)
        assert first & 0xF0 == FIN
        assert second < 0x80
        size = second
        if size >= 126:
            size = int.from_bytes(await self.read(2 if size == 126 else 8), "big")
        return first & 0x0F, await self.read(size)

    async def until(self, opcode: int) -> bytes:
        """The payload of the next frame of this kind."""
        while True:
            kind, payload = await self.receive()
            if kind == opcode:
                return payload

    async def close_code(self) -> int | None:
        """How the server ends the connection: the code in its close frame, None without one. Nothing follows it."""
        payload = await self.until(CLOSE)
        with contextlib.suppress(ConnectionError):
            raise AssertionError(f"after the close frame: {await self.read(1)!r}")
        return int.from_bytes(payload[:2], "big") if payload else None


@asynccontextmanager
async def raw_socket(port: int, extra: str = "") -> AsyncIterator[tuple[RawSocket, str]]:
    """An upgraded connection and the head of the answer; `extra`: more lines of the request."""
    with socket.socket() as sock:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        raw = RawSocket(sock)
        await raw.send(f"{HANDSHAKE}{extra}\r\n".encode())
        yield raw, await raw.head()
