"""The client half of RFC 6455 that a load generator needs: masked frames out, frame headers in."""

import base64
import os
from collections.abc import Iterator

TEXT, CLOSE, PING, PONG = 0x1, 0x8, 0x9, 0xA
_FIN = 0x80
_MASKED = 0x80


def masked(opcode: int, payload: bytes, key: bytes | None = None) -> bytes:
    """One complete client frame (RFC 6455 §5.2), masked with `key` (4 bytes) or a random one."""
    key = key or os.urandom(4)
    size = len(payload)
    if size < 126:
        header = bytes((_FIN | opcode, _MASKED | size))
    elif size < 1 << 16:
        header = bytes((_FIN | opcode, _MASKED | 126)) + size.to_bytes(2, "big")
    else:
        header = bytes((_FIN | opcode, _MASKED | 127)) + size.to_bytes(8, "big")
    pad = (key * (size // 4 + 1))[:size]
    body = (int.from_bytes(payload, "big") ^ int.from_bytes(pad, "big")).to_bytes(size, "big")
    return header + key + body


def frames(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Opcode, start and stop of the payload of every whole unmasked frame at the start of `data`.

    The bytes after the last `stop` belong to a frame that has not arrived in full.
    """
    offset, end = 0, len(data)
    while end - offset >= 2:
        size, start = data[offset + 1], offset + 2
        if size == 126:
            start = offset + 4
            size = int.from_bytes(data[offset + 2 : start], "big")
        elif size == 127:
            start = offset + 10
            size = int.from_bytes(data[offset + 2 : start], "big")
        if end < start + size or end < start:
            return
        yield data[offset] & 0xF, start, start + size
        offset = start + size


def handshake(host: str, port: int, path: str, key: str) -> bytes:
    """The opening request, with `key` as bearer token where there is one."""
    nonce = base64.b64encode(os.urandom(16)).decode("ascii")
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {host}:{port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {nonce}",
        "Sec-WebSocket-Version: 13",
    ]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")
