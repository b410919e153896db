"""Still pictures that a client shows: decoded within bounds, scaled and cut into patches, as numpy arrays.

What a model's own image processor does (transformers: Qwen2VLImageProcessorPil, MiniCPMV4_6ImageProcessorPil), without
transformers: it must not be imported outside the engine's adapter. tests/models compares the pixels.
"""

import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.float32]

MAX_SIDE = 8192  # pixels; a camera's full resolution
MAX_PIXELS = 24_000_000  # of a picture before it is scaled: 72 MB as RGB
MAX_RATIO = 16  # of the longer side to the shorter


class PictureError(ValueError):
    """A picture that cannot be shown; the message is for the client."""


def opened(data: bytes) -> Any:
    """The picture in a PNG, JPEG or WebP file, as a Pillow image in RGB. Milliseconds: for a pool thread.

    Raises:
        PictureError: it is damaged, too large or too elongated, or Pillow is missing.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise PictureError("The server lacks the package that reads images (pillow).") from error
    try:
        image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "WEBP"))  # reads the head only
        _check(*image.size)
        if image.format == "JPEG":
            image.draft("RGB", (1024, 1024))  # skips detail that scaling would throw away
        return image.convert("RGB")
    except PictureError:
        raise
    except Exception as error:  # Pillow raises whatever its decoders do: OSError, SyntaxError …
        raise PictureError("The image is damaged.") from error


def _check(width: int, height: int) -> None:
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        raise PictureError(
            f"The image has {width} x {height} pixels; {MAX_PIXELS:,} are allowed, "
            f"{MAX_SIDE} to a side."
        )
    if max(width, height) > MAX_RATIO * min(width, height):
        raise PictureError(f"One side of the image is over {MAX_RATIO} times the other.")


def scaled(image: Any, width: int, height: int, mean: Pixels, std: Pixels) -> Pixels:
    """float32[3, height, width]: the picture in that size, each channel less its mean and over its deviation."""
    from PIL import Image

    raw = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC), np.float32)
    return ((raw / np.float32(255) - mean) / std).transpose(2, 0, 1)


def whole_squares(size: tuple[int, int], side: int, least: int, most: int) -> tuple[int, int]:
    """Width and height nearest to a picture's in whole squares of `side` pixels, `least` to `most` of them."""
    width, height = size
    columns, rows = max(1, round(width / side)), max(1, round(height / side))
    area = width * height / side**2
    if columns * rows > most:
        shrink = math.sqrt(area / most)
        columns = math.floor(width / shrink / side)
        rows = math.floor(height / shrink / side)
    elif columns * rows < least:
        grow = math.sqrt(least / area)
        columns, rows = math.ceil(width * grow / side), math.ceil(height * grow / side)
    columns = min(max(1, columns), most)
    rows = min(max(1, rows), most // columns)
    return columns * side, rows * side


def merged_patches(pixels: Pixels, patch: int, merge: int, frames: int) -> NDArray[np.float16]:
    """float16[patches, 3 * frames * patch * patch] in the order of Qwen's vision encoders.

    Patches that become one token lie together. A still picture stands for `frames` equal ones. Half precision, because
    sessions keep pictures, and the encoder works in no more.
    """
    channels, height, width = pixels.shape
    rows, columns = height // (patch * merge), width // (patch * merge)
    grid = pixels.reshape(channels, rows, merge, patch, columns, merge, patch)
    grid = grid.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]
    grid = np.repeat(grid, frames, axis=5)
    return grid.reshape(rows * columns * merge**2, -1).astype(np.float16)


def patch_strip(pixels: Pixels, patch: int) -> NDArray[np.float16]:
    """float16[3, patch, patches * patch]: the patches side by side, as MiniCPM's vision encoder takes them."""
    channels, height, width = pixels.shape
    grid = pixels.reshape(channels, height // patch, patch, width // patch, patch)
    return grid.transpose(0, 2, 1, 3, 4).reshape(channels, patch, -1).astype(np.float16)
