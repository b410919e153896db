"""Write bfloat16 weights in the safetensors format with numpy alone: converting needs no torch.

The format is a u64 header size, a JSON header, and the tensors' bytes back to back. The
safetensors package's own numpy writer has no bfloat16, and its lower call takes raw pointers and
changes between releases.
"""

import json
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_ALIGN = 8  # the format pads the header with spaces so that tensor data starts aligned


def to_bfloat16(weights: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of float32 bit patterns, rounded to nearest, ties to even, as torch does.

    Infinities stay, a NaN becomes the quiet NaN 0x7FC0.
    """
    bits = np.ascontiguousarray(weights, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(weights), np.uint16(0x7FC0), rounded.astype(np.uint16))


def write_bfloat16(
    path: Path,
    shapes: dict[str, tuple[int, ...]],
    tensors: Iterable[NDArray[np.float32]],
) -> None:
    """Write `tensors`, in the order of `shapes`, to `path`; one tensor is in memory at a time.

    Raises:
        ValueError: a tensor has not the shape announced for it, or their number differs.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for (name, shape), tensor in zip(shapes.items(), tensors, strict=True):
            if tensor.shape != shape:
                raise ValueError(f"{name} has shape {tensor.shape}, announced as {shape}")
            file.write(to_bfloat16(tensor).astype("<u2", copy=False).data)
