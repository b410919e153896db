"""The abuse list, frames: what RFC 6455 forbids ends the call with the right code, what it allows is understood.

The cases are those of the Autobahn test suite that matter to a server which refuses compression. Where that suite has
its server echo, an event is padded with blanks to the length wanted: it is answered if it arrived whole.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from support.raw_socket import (
    BINARY,
    CLOSE,
    CONT,
    FIN,
    PING,
    PONG,
    TEXT,
    RawSocket,
    close,
    frame,
    raw_socket,
)
from support.server_process import run_server
from support.wire import enter, until

pytestmark = [pytest.mark.socket, pytest.mark.slow]

EVENT = b'{"type":"input_audio_buffer.clear"}'
ANSWER = b'"input_audio_buffer.cleared"'
UNKNOWN = '{"type":"κόσμε\U0001f600"}'.encode()  # two, three and four bytes a letter
MAX_BYTES = 100_000


def on_a_socket(talk: Callable[[RawSocket], Awaitable[None]]) -> None:
    """Talk to a server of its own; whatever was done to it, the call is gone and the next one is well."""

    async def main() -> None:
        async with run_server(server__ws_max_bytes=MAX_BYTES) as server:
            async with raw_socket(server.port) as (socket, _):
                assert b'"session.created"' in await socket.until(TEXT)
                await talk(socket)
            await server.settled()
            following = await enter(server.ws)
            await following.send(EVENT.decode())
            await until(following, "input_audio_buffer.cleared")
            await following.close()
            await server.settled()

    asyncio.run(main())


def ends_with(code: int | None, *pieces: bytes, chop: int = 0) -> None:
    """The server ends a connection on which these were sent with this code."""

    async def talk(socket: RawSocket) -> None:
        await socket.send(*pieces, chop=chop)
        assert await socket.close_code() == code

    on_a_socket(talk)


def is_answered(answer: bytes, *pieces: bytes, chop: int = 0) -> None:
    """The message that these make is understood, and so is a plain one after it."""

    async def talk(socket: RawSocket) -> None:
        await socket.send(*pieces, chop=chop)
        assert answer in await socket.until(TEXT)
        await socket.send(frame(FIN | TEXT, EVENT))
        assert ANSWER in await socket.until(TEXT)

    on_a_socket(talk)


@pytest.mark.parametrize("chop", [0, 1])
@pytest.mark.parametrize("size", [125, 126, 127, 128, 300])
def test_every_length_of_text(size: int, chop: int) -> None:
    """Around each form of the length field, in one packet or byte by byte (1.1)."""
    is_answered(ANSWER, frame(FIN | TEXT, EVENT.ljust(size)), chop=chop)


@pytest.mark.parametrize("size", [65_535, 65_536, MAX_BYTES])
def test_long_texts(size: int) -> None:
    """Past what is short-cut, up to the limit (1.1, 9.1)."""
    is_answered(ANSWER, frame(FIN | TEXT, EVENT.ljust(size)), chop=997)


@pytest.mark.parametrize("wide", [2, 8])
def test_a_length_in_more_bytes_than_it_needs(wide: int) -> None:
    """Forbidden (5.2: the minimal number of bytes), and harmless: understood as by other servers."""
    is_answered(ANSWER, frame(FIN | TEXT, EVENT, wide=wide))


@pytest.mark.parametrize("first", [FIN | TEXT, TEXT, FIN | BINARY])
@pytest.mark.parametrize("length", [MAX_BYTES + 1, 1 << 31, (1 << 63) - 1])
def test_a_message_too_long_is_refused_at_its_head(first: int, length: int) -> None:
    """1009 before the rest has come, whatever is announced: nothing is set aside for it (9.x)."""
    head = bytes((first, 0xFF)) + length.to_bytes(8, "big") + bytes(4)
    ends_with(1009, head)


def test_fragments_that_are_too_long_together() -> None:
    """The limit is on the message, not on its frames."""
    half = bytes(MAX_BYTES // 2 + 1)
    ends_with(1009, frame(TEXT, half), frame(CONT, half), frame(FIN | CONT, half))


def test_a_length_with_its_highest_bit_set() -> None:
    """More than any length can be (5.2)."""
    head = bytes((FIN | TEXT, 0xFF)) + (1 << 63).to_bytes(8, "big") + bytes(4)

    async def talk(socket: RawSocket) -> None:
        await socket.send(head)
        assert await socket.close_code() in (1002, 1009)

    on_a_socket(talk)


@pytest.mark.parametrize("chop", [0, 1])
@pytest.mark.parametrize("size", [0, 1, 125])
def test_pings(size: int, chop: int) -> None:
    """Answered with what they brought, in order; pongs that nobody asked for are passed over (2.1-2.11)."""

    async def talk(socket: RawSocket) -> None:
        said = bytes(range(size))
        await socket.send(frame(FIN | PONG, said), *[frame(FIN | PING, said)] * 10, chop=chop)
        for _ in range(10):
            assert await socket.receive() == (PONG, said)

    on_a_socket(talk)


@pytest.mark.parametrize("chop", [0, 1, 7])
def test_fragmented_text_with_pings_between(chop: int) -> None:
    """Fragments of all sizes, empty ones too; a ping between them is answered before the message (5.3-5.8)."""
    pieces = [frame(TEXT), *(frame(CONT, bytes([b])) for b in EVENT[:5]), frame(FIN | PING, b"?")]
    pieces += [frame(CONT, EVENT[5:]), frame(CONT), frame(FIN | CONT)]

    async def talk(socket: RawSocket) -> None:
        await socket.send(*pieces, chop=chop)
        assert await socket.receive() == (PONG, b"?")
        assert ANSWER in await socket.until(TEXT)

    on_a_socket(talk)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([frame(FIN | CONT, EVENT)], id="nothing to continue, final"),
        pytest.param([frame(CONT, EVENT)], id="nothing to continue"),
        pytest.param([frame(TEXT, b"{"), frame(FIN | TEXT, EVENT)], id="a text in a text"),
        pytest.param([frame(TEXT, b"{"), frame(BINARY, EVENT)], id="a binary message in a text"),
        pytest.param([frame(FIN | TEXT, EVENT), frame(FIN | CONT)], id="continued after the end"),
        pytest.param([frame(PING, b"?")], id="a ping in fragments"),
        pytest.param([frame(CLOSE, b"")], id="a close in fragments"),
        pytest.param([frame(FIN | PING, bytes(126))], id="a ping of 126 bytes"),
        pytest.param([frame(FIN | CLOSE, (1000).to_bytes(2, "big") + bytes(124))], id="a close of 126"),
        pytest.param([frame(FIN | TEXT, EVENT, masked=False)], id="text without a mask"),
        pytest.param([frame(FIN | PING, b"?", masked=False)], id="a ping without a mask"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("chop", [0, 1])
def test_frames_out_of_order(pieces: list[bytes], chop: int) -> None:
    """1002 (5.1, 5.4, 5.5)."""
    ends_with(1002, *pieces, chop=chop)


@pytest.mark.parametrize("bits", [0x10, 0x20, 0x40, 0x70])
@pytest.mark.parametrize("opcode", [TEXT, BINARY, PING, CLOSE])
def test_reserved_bits(bits: int, opcode: int) -> None:
    """1002: no extension was agreed on, compression neither (3.x)."""
    ends_with(1002, frame(FIN | bits | opcode))


@pytest.mark.parametrize("opcode", [3, 7, 0xB, 0xF])
def test_reserved_opcodes(opcode: int) -> None:
    """1002 (4.x)."""
    ends_with(1002, frame(FIN | opcode))


@pytest.mark.parametrize("chop", [0, 1])
@pytest.mark.parametrize("cut", [9, 10, 12, 19, 20])
def test_letters_cut_in_two(cut: int, chop: int) -> None:
    """A letter of several bytes may be spread over frames and packets (6.2)."""
    is_answered(
        "κόσμε".encode(), frame(TEXT, UNKNOWN[:cut]), frame(FIN | CONT, UNKNOWN[cut:]), chop=chop
    )


INVALID = {
    "a lone continuation byte": b"\x80",
    "an overlong slash": b"\xc0\xaf",
    "a surrogate": b"\xed\xa0\x80",
    "past the last letter": b"\xf4\x90\x80\x80",
    "an impossible byte": b"\xff",
    "a letter without its end": b"\xce",
}


@pytest.mark.parametrize("wrong", INVALID.values(), ids=INVALID)
@pytest.mark.parametrize("fragments", [1, 2])
def test_text_that_is_none(wrong: bytes, fragments: int) -> None:
    """1007, whole or in fragments (6.3-6.22)."""
    said = b'{"type":"' + wrong
    if fragments == 1:
        ends_with(1007, frame(FIN | TEXT, said))
    else:
        ends_with(1007, frame(TEXT, said[:-1]), frame(FIN | CONT, said[-1:]))


@pytest.mark.parametrize(
    "code", [None, 1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999]
)  # fmt: skip
def test_good_closes(code: int | None) -> None:
    """Answered with the same code, or with none (7.1, 7.7)."""
    ends_with(code, close(code))


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999])
def test_close_codes_that_nobody_may_send(code: int) -> None:
    """1002 (7.9)."""
    ends_with(1002, close(code))


def test_a_close_of_one_byte() -> None:
    """1002: a code has two (7.3.2)."""
    ends_with(1002, frame(FIN | CLOSE, b"\x03"))


def test_a_close_with_a_reason_that_is_no_text() -> None:
    """1007 or 1002 (7.5.1)."""

    async def talk(socket: RawSocket) -> None:
        await socket.send(close(1000, b"\xce\xba\xff"))
        assert await socket.close_code() in (1002, 1007)

    on_a_socket(talk)


def test_what_follows_a_close_is_not_read() -> None:
    """Neither events nor a second close nor rubbish (7.1.2-7.1.6)."""
    ends_with(1000, close(1000), frame(FIN | TEXT, EVENT), close(1002), b"\xff" * 100)


def test_compression_is_not_agreed_on() -> None:
    """Offered in every form, it is refused, and a compressed frame is an error (12, 13)."""
    offers = (
        "permessage-deflate",
        "permessage-deflate; client_max_window_bits; server_no_context_takeover",
        "x-webkit-deflate-frame, permessage-deflate; server_max_window_bits=8",
    )

    async def main() -> None:
        async with run_server() as server:
            for offer in offers:
                extra = f"Sec-WebSocket-Extensions: {offer}\r\n"
                async with raw_socket(server.port, extra) as (socket, head):
                    assert head.startswith("HTTP/1.1 101")
                    assert "extensions" not in head.lower()
                    await socket.send(frame(FIN | 0x40 | TEXT, b"\xaa\x02\x00"))
                    assert await socket.close_code() == 1002
            await server.settled()

    asyncio.run(main())


def test_a_binary_message_is_answered_in_words() -> None:
    """It breaks no rule of the transport: an error event, and the call goes on."""
    is_answered(b'"type":"error"', frame(BINARY, b"\x00" * 10), frame(FIN | CONT, b"\xff"))
