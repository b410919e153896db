"""Where the frames of a WebSocket client's byte stream begin and end, and which of them are plain text. Pure.

Nine in ten frames of a call are whole, final, masked text frames of a few KiB. Those can be unmasked on the spot, in
1 us where the `websockets` parser, written in Python for every case there is, takes 9. All others, and whatever looks
wrong, are that parser's: it decides what is an error (RFC 6455, 5.2).
"""

from enum import Enum, auto

from websockets.frames import apply_mask  # type: ignore[attr-defined]  # the C one, if it was built

# Longer text frames are the parser's too, so that what waits for its rest stays small.
MAX_TEXT_BYTES = 65_535

_TEXT = 0x81  # final, no extension bits, opcode 1
_OPCODES = frozenset({0x0, 0x1, 0x2, 0x8, 0x9, 0xA})
_CONTROL = 0x8


class Kind(Enum):
    """What begins at an offset."""

    TEXT = auto()  # a whole plain text frame
    OTHER = auto()  # another frame, whole or not
    NEED_DATA = auto()  # not enough bytes to tell, or not all of a plain text frame
    SUSPECT = auto()  # an error, or something whose length cannot be told


def frame_at(data: bytes, start: int) -> tuple[Kind, int, int]:
    """(kind, offset of the payload, offset of the frame's end); the offsets mean nothing for the last two kinds."""
    available = len(data) - start
    if available < 2:
        return Kind.NEED_DATA, 0, 0
    first, second = data[start], data[start + 1]
    size = second & 0x7F
    if first != _TEXT or second < 0x80:
        opcode = first & 0x0F
        if second < 0x80 or first & 0x70 or opcode not in _OPCODES:
            return Kind.SUSPECT, 0, 0
        if opcode & _CONTROL and (size > 125 or first < 0x80):
            return Kind.SUSPECT, 0, 0
    wide = 0 if size < 126 else 2 if size == 126 else 8
    body = start + 6 + wide
    if len(data) < body:
        return Kind.NEED_DATA, 0, 0
    if wide:
        size = int.from_bytes(data[start + 2 : start + 2 + wide], "big")
    stop = body + size
    if first != _TEXT or size > MAX_TEXT_BYTES:
        return Kind.OTHER, body, stop
    return (Kind.TEXT if stop <= len(data) else Kind.NEED_DATA), body, stop


def unmasked(data: bytes, body: int, stop: int) -> bytes:
    """The payload between `body` and `stop`, whose mask is the four bytes before it."""
    return apply_mask(data[body:stop], data[body - 4 : body])
