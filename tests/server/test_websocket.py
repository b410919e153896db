"""The short way through a WebSocket: the same messages and the same bytes as uvicorn's own protocol, however the stream
is cut."""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from server.frames import MAX_TEXT_BYTES, Kind, frame_at
from server.websocket import CallSocket

HANDSHAKE = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
MASK = b"\x01\x02\x03\x04"


def frame(first: int, payload: bytes, *, masked: bool = True) -> bytes:
    """A client's frame."""
    bit = 0x80 if masked else 0
    size = len(payload)
    if size < 126:
        head = bytes((first, bit | size))
    elif size < 65_536:
        head = bytes((first, bit | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, bit | 127)) + size.to_bytes(8, "big")
    if not masked:
        return head + payload
    return head + MASK + bytes(b ^ MASK[i % 4] for i, b in enumerate(payload))


class _Transport:
    """Keeps what is written; reading is never really paused."""

    def __init__(self) -> None:
        self.written = b""
        self.closing = False
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default


class _Relay:
    """The application of the one configuration here: loading one takes 20 ms."""

    app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


_RELAY = _Relay()
_CONFIG = uvicorn.Config(
    _RELAY, log_config=None, lifespan="off", ws_per_message_deflate=False, ws_max_size=100_000
)
_CONFIG.load()

P = TypeVar("P", bound=WebSocketsSansIOProtocol)


def _protocol(kind: type[P], app: Any) -> P:
    _RELAY.app = app
    return kind(_CONFIG, ServerState(), {}, asyncio.get_running_loop())


def _feed(
    kind: type[WebSocketsSansIOProtocol], pieces: Sequence[bytes], *, direct: bool
) -> tuple[list[Any], bytes]:
    """What an application receives from the pieces after the handshake, and the bytes written back."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        if direct:
            scope["extensions"]["metronome.socket"].listen(seen.append)
        while (message := await receive())["type"] != "websocket.disconnect":
            seen.append(
                message.get("text") if message.get("text") is not None else message["bytes"]
            )
        seen.append(("closed", message["code"]))

    async def main() -> bytes:
        protocol = _protocol(kind, app)
        transport = _Transport()
        protocol.connection_made(transport)  # type: ignore[arg-type]  # all of it that is used
        protocol.data_received(HANDSHAKE)
        for _ in range(5):
            await asyncio.sleep(0)  # the application accepts
        before = len(transport.written)
        for piece in pieces:
            if not transport.closing:
                protocol.data_received(piece)
        for _ in range(5):
            await asyncio.sleep(0)
        written = transport.written[before:]
        protocol.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
        return written

    written = asyncio.run(main())
    return seen, written


STREAMS: dict[str, list[bytes]] = {
    "texts": [
        frame(0x81, b"hello"),
        frame(0x81, b""),
        frame(0x81, "é€".encode()),
        frame(0x81, b"x" * 300),
    ],
    "binary": [frame(0x81, b"a"), frame(0x82, b"\x00\xff"), frame(0x81, b"b")],
    "ping": [frame(0x81, b"a"), frame(0x89, b"p"), frame(0x8A, b""), frame(0x81, b"b")],
    "fragments": [frame(0x01, b"he"), frame(0x89, b""), frame(0x80, b"llo"), frame(0x81, b"b")],
    "text in fragments": [frame(0x01, b"he"), frame(0x81, b"no"), frame(0x80, b"llo")],
    "close": [frame(0x81, b"a"), frame(0x88, b"\x03\xe8bye"), frame(0x81, b"late")],
    "unmasked": [frame(0x81, b"a"), frame(0x81, b"b", masked=False)],
    "reserved bit": [frame(0x81, b"a"), frame(0xC1, b"b")],
    "unknown opcode": [frame(0x81, b"a"), frame(0x83, b"b")],
    "long ping": [frame(0x89, b"x" * 126)],
    "fragmented ping": [frame(0x09, b"x")],
    "no UTF-8": [frame(0x81, b"a"), frame(0x81, b"\xff\xfe"), frame(0x81, b"b")],
    "stray continuation": [frame(0x80, b"x")],
}


@pytest.mark.parametrize("name", STREAMS)
def test_whole_halved_or_byte_by_byte_it_is_what_uvicorn_does(name: str) -> None:
    """The oracle is the unchanged protocol, fed one frame at a time.

    (Fed more at once it drops what comes in one piece with an error.)
    """
    expected = _feed(WebSocketsSansIOProtocol, STREAMS[name], direct=False)
    stream = b"".join(STREAMS[name])
    cuts = [[stream], STREAMS[name], [stream[i : i + 1] for i in range(len(stream))]]
    cuts += [[stream[:at], stream[at:]] for at in range(1, min(len(stream), 40))]
    for pieces in cuts:
        assert _feed(CallSocket, pieces, direct=True) == expected


FRAMES = st.builds(
    frame,
    st.sampled_from([0x81, 0x81, 0x81, 0x82, 0x01, 0x80, 0x89, 0x8A, 0x88, 0xC1]),
    st.binary(max_size=200) | st.text(max_size=60).map(str.encode),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(FRAMES, max_size=6), st.lists(st.integers(1, 400), max_size=8))
def test_any_stream_in_any_pieces_is_what_uvicorn_does(
    frames: list[bytes], sizes: list[int]
) -> None:
    """Messages in order, pongs and close codes to the byte."""
    stream, pieces = b"".join(frames), []
    for size in sizes:
        pieces.append(stream[:size])
        stream = stream[size:]
    pieces = [piece for piece in [*pieces, stream] if piece]
    expected = _feed(WebSocketsSansIOProtocol, frames, direct=False)
    assert _feed(CallSocket, pieces, direct=True) == expected


def test_a_text_longer_than_the_short_way_takes_arrives_whole() -> None:
    """The parser has it, and hands back to the short way behind it."""
    stream = frame(0x81, b"x" * (MAX_TEXT_BYTES + 1)) + frame(0x81, b"next")
    pieces = [stream[i : i + 10_000] for i in range(0, len(stream), 10_000)]
    seen, _ = _feed(CallSocket, pieces, direct=True)
    assert [len(text) for text in seen[:2]] == [MAX_TEXT_BYTES + 1, 4]


def test_a_message_over_the_limit_is_refused_by_its_header() -> None:
    """1009 before the payload has come."""
    header = frame(0x81, b"x" * 100_001)[:14]
    _, written = _feed(CallSocket, [header], direct=True)
    assert written[:4] == b"\x88" + bytes([written[1]]) + (1009).to_bytes(2, "big")


def test_a_peer_that_speaks_before_it_is_answered_is_heard_in_order() -> None:
    """Then the parser has everything, to the end."""
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        scope["extensions"]["metronome.socket"].listen(seen.append)
        while (message := await receive())["type"] != "websocket.disconnect":
            seen.append(message["text"])

    async def main() -> None:
        protocol = _protocol(CallSocket, app)
        protocol.connection_made(_Transport())  # type: ignore[arg-type]  # all of it that is used
        protocol.data_received(HANDSHAKE)
        early = frame(0x81, b"early")
        protocol.data_received(early[:3])
        for _ in range(5):
            await asyncio.sleep(0)
        protocol.data_received(early[3:] + frame(0x81, b"later"))
        for _ in range(5):
            await asyncio.sleep(0)
        protocol.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert seen == ["early", "later"]


def test_write_sends_what_the_parser_of_a_client_reads_back() -> None:
    """All three lengths of a length field."""
    from websockets.client import ClientProtocol
    from websockets.frames import Frame
    from websockets.protocol import OPEN
    from websockets.uri import parse_uri

    texts = ["", "x" * 125, "é" * 63, "x" * 65_535, "x" * 65_536]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        for text in texts:
            assert scope["extensions"]["metronome.socket"].write(text)
        await receive()

    async def main() -> bytes:
        protocol = _protocol(CallSocket, app)
        transport = _Transport()
        protocol.connection_made(transport)  # type: ignore[arg-type]  # all of it that is used
        protocol.data_received(HANDSHAKE)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not transport.closing
        written = transport.written.partition(b"\r\n\r\n")[2]
        protocol.writable.clear()
        assert not protocol.write("no room")
        protocol.writable.set()
        protocol.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not protocol.write("gone") or protocol.conn.state is OPEN
        return written

    client = ClientProtocol(parse_uri("ws://x"), state=OPEN)
    client.receive_data(asyncio.run(main()))
    frames = [event for event in client.events_received() if isinstance(event, Frame)]
    assert [event.data.decode() for event in frames] == texts


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", Kind.NEED_DATA),
        (b"\x81", Kind.NEED_DATA),
        (b"\x81\x85\x00", Kind.NEED_DATA),
        (frame(0x81, b"hello")[:-1], Kind.NEED_DATA),
        (frame(0x81, b"hello"), Kind.TEXT),
        (frame(0x82, b"hello")[:7], Kind.OTHER),
        (frame(0x81, b"x" * 65_536)[:14], Kind.OTHER),
        (b"\x81\x05", Kind.SUSPECT),
        (b"\xf1\x85", Kind.SUSPECT),
        (b"\x87\x85", Kind.SUSPECT),
        (b"\x89\xfe", Kind.SUSPECT),
        (b"\x08\x80", Kind.SUSPECT),
    ],
)
def test_frames_are_told_apart_by_their_first_bytes(data: bytes, kind: Kind) -> None:
    """Each as soon as it can be."""
    assert frame_at(data, 0)[0] is kind
