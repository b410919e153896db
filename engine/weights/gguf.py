"""A reader for the GGUF files fetched here: version 3, little-endian, F32, Q4_1 and Q8_0.

The layout is the one of the GGUF specification (ggml, docs/gguf.md):

    # [0, 4)       "GGUF"
    # [4, 24)      u32 version · u64 tensor count · u64 metadata count
    # [24, a)      metadata: string key · u32 value type · value
    # [a, b)       per tensor: string name · u32 rank · u64 dims[rank] · u32 type · u64 offset
    # [b, base)    padding up to a multiple of general.alignment (32 unless the file says otherwise)
    # [base, end)  tensor data, each at base + its offset

A string is a u64 byte count and UTF-8. Dimensions are written fastest-varying first, the reverse
of numpy's order.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

Value: TypeAlias = "int | float | bool | str | list[Value]"

_STRING, _ARRAY = 8, 9
_SCALARS = {  # value type of the specification -> struct format
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i",
    6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip

_F32, _Q4_1, _Q8_0 = 0, 3, 8
_BLOCK = 32  # weights per quantised block
_BLOCK_BYTES = {
    _F32: 4 * _BLOCK,
    _Q4_1: 2 + 2 + 16,  # f16 scale, f16 minimum, 32 nibbles
    _Q8_0: 2 + 32,  # f16 scale, 32 signed bytes
}


class GgufError(ValueError):
    """The file is not a GGUF file this reader understands."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies and how it is packed."""

    shape: tuple[int, ...]  # numpy order, slowest-varying first
    kind: int  # tensor type of the specification
    start: int  # byte offset in the file


class GgufFile:
    """An open GGUF file: its metadata in memory, its tensors unpacked one at a time on request.

    Raises:
        GgufError: the file is cut short, of another version, or not GGUF.
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Value] = {}
        self.tensors: dict[str, TensorInfo] = {}
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise GgufError(f"{path.name}: empty file")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0  # read position while the header is parsed
        try:
            self._read_header()
        except (struct.error, UnicodeDecodeError) as error:
            self.close()
            raise GgufError(f"{path.name}: header cut short or damaged ({error})") from error
        except GgufError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the file. Idempotent."""
        self._map.close()

    def tensor(self, name: str) -> NDArray[np.float32]:
        """The weights of one tensor, unpacked to float32 in numpy's dimension order.

        Raises:
            KeyError: no such tensor.
            GgufError: its type is not handled, or its data lies beyond the end of the file.
        """
        info = self.tensors[name]
        count = int(np.prod(info.shape))
        if info.kind not in _BLOCK_BYTES:
            raise GgufError(f"{self.path.name}: {name} has tensor type {info.kind}, not handled")
        if info.kind != _F32 and info.shape[-1] % _BLOCK:
            raise GgufError(f"{self.path.name}: rows of {name} are not whole blocks of {_BLOCK}")
        size = count * _BLOCK_BYTES[info.kind] // _BLOCK
        raw = self._map[info.start : info.start + size]
        if len(raw) != size:
            raise GgufError(f"{self.path.name}: {name} lies beyond the end of the file")
        return _unpack(raw, info.kind).reshape(info.shape)

    def _read_header(self) -> None:
        if self._map[:4] != b"GGUF":
            raise GgufError(f"{self.path.name}: not a GGUF file")
        self._at = 4
        version = self._number("<I")
        if version != 3:
            raise GgufError(f"{self.path.name}: GGUF version {version}, not 3")
        tensor_count, metadata_count = self._number("<Q"), self._number("<Q")
        for _ in range(metadata_count):
            key = self._string()
            self.metadata[key] = self._value(self._number("<I"))
        found = [self._tensor_info() for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise GgufError(f"{self.path.name}: alignment {alignment!r}")
        base = -(-self._at // alignment) * alignment
        for name, info in found:
            self.tensors[name] = TensorInfo(info.shape, info.kind, base + info.start)

    def _tensor_info(self) -> tuple[str, TensorInfo]:
        name = self._string()
        dims = [self._number("<Q") for _ in range(self._number("<I"))]
        kind, offset = self._number("<I"), self._number("<Q")
        return name, TensorInfo(tuple(reversed(dims)), kind, offset)

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            item, count = self._number("<I"), self._number("<Q")
            return [self._value(item) for _ in range(count)]
        if kind not in _SCALARS:
            raise GgufError(f"{self.path.name}: metadata type {kind} is not in the specification")
        return self._unpack_scalar(_SCALARS[kind])

    def _string(self) -> str:
        size = self._number("<Q")
        text = self._map[self._at : self._at + size]
        if len(text) != size:
            raise GgufError(f"{self.path.name}: a string of {size} bytes passes the end")
        self._at += size
        return text.decode("utf-8")

    def _number(self, form: str) -> int:
        return int(self._unpack_scalar(form))

    def _unpack_scalar(self, form: str) -> int | float | bool:
        value: int | float | bool = struct.unpack_from(form, self._map, self._at)[0]
        self._at += struct.calcsize(form)
        return value


def _unpack(raw: bytes, kind: int) -> NDArray[np.float32]:
    """The float32 weights of whole blocks, in file order; shapes are the caller's.

    Q8_0: w = scale * q. Q4_1: w = scale * q + minimum, where the low nibbles of a block's
    16 bytes are its weights 0..15 and the high nibbles 16..31 (ggml-quants.c, dequantize_row_q4_1).
    """
    if kind == _F32:
        return np.frombuffer(raw, dtype="<f4").astype(np.float32)
    weights: NDArray[np.float32]
    blocks = np.frombuffer(raw, dtype=np.uint8).reshape(-1, _BLOCK_BYTES[kind])
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    if kind == _Q8_0:
        weights = scale * blocks[:, 2:].view(np.int8)
        return weights
    minimum = blocks[:, 2:4].copy().view("<f2").astype(np.float32)
    nibbles = blocks[:, 4:]
    weights = scale * np.concatenate([nibbles & 15, nibbles >> 4], axis=1) + minimum
    return weights
