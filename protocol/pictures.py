"""Images in a client's item: base64 in a data URL, bounded, and of a kind that models are fed with. Pure.

Only what is wrong on the face of it is found here. Whether the file is whole shows when it is decoded, off the loop.
"""

import re

import pybase64

from protocol.errors import ProtocolError, invalid_value

MAX_IMAGE_BYTES = 8 * 1024 * 1024  # decoded; more than a phone's camera writes
MAX_IMAGES = 8  # in one item

_DATA_URL = re.compile(r"data:image/(png|jpeg|webp);base64,")
_MAX_HEAD = 32  # characters; longer than any head that is accepted


def image_in(url: str, param: str) -> bytes | ProtocolError:
    """The file in an `image_url`: PNG, JPEG or WebP. Nothing is ever fetched."""
    head = _DATA_URL.match(url[:_MAX_HEAD])
    if head is None:
        return invalid_value(
            "An image is accepted as a data URL only: 'data:image/png;base64,…', or jpeg or webp. "
            "The server fetches nothing.",
            param,
        )
    start = head.end()
    if (len(url) - start) // 4 * 3 > MAX_IMAGE_BYTES:
        return invalid_value(f"The image is larger than {MAX_IMAGE_BYTES // 2**20} MiB.", param)
    try:
        data = pybase64.b64decode(url[start:], validate=True)
    except ValueError:
        return invalid_value("The image is not valid base64.", param)
    kind = head[1]
    if not _is(kind, data):
        return invalid_value(f"The data is not a {kind.upper()} file.", param)
    return data


def _is(kind: str, data: bytes) -> bool:
    if kind == "png":
        return data.startswith(b"\x89PNG\r\n\x1a\n")
    if kind == "jpeg":
        return data.startswith(b"\xff\xd8\xff")
    return data[:4] == b"RIFF" and data[8:12] == b"WEBP"
