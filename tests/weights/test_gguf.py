"""The GGUF reader against files written by hand."""

from pathlib import Path

import numpy as np
import pytest
from weights.gguf_writer import F32, Q4_1, Q8_0, llama_metadata, q4_1, q8_0, write_gguf

from engine.weights.gguf import GgufError, GgufFile


def test_metadata_of_every_written_type_comes_back(tmp_path: Path) -> None:
    """Numbers, flags, strings and lists of them are read as Python values."""
    path = tmp_path / "a.gguf"
    written = {"n": 7, "x": 0.5, "on": True, "s": "Ġhé", "list": ["a", "b"], "ids": [3, 1]}
    write_gguf(path, written, {})
    with GgufFile(path) as file:
        assert file.metadata == written


def test_float_tensors_keep_order_and_shape(tmp_path: Path) -> None:
    """Dimensions are stored fastest first; the reader turns them back into rows and columns."""
    path = tmp_path / "a.gguf"
    weights = np.arange(6, dtype="<f4").reshape(2, 3)
    write_gguf(path, {}, {"pad": (F32, (1,), b"\0" * 4), "w": (F32, (2, 3), weights.tobytes())})
    with GgufFile(path) as file:
        assert file.tensors["w"].shape == (2, 3)
        np.testing.assert_array_equal(file.tensor("w"), weights)


def test_q8_0_is_scale_times_signed_byte(tmp_path: Path) -> None:
    """Each block of 32 has its own half-precision scale."""
    path = tmp_path / "a.gguf"
    blocks = np.arange(-32, 32, dtype=np.int8).reshape(2, 32)
    write_gguf(path, {}, {"w": (Q8_0, (1, 64), q8_0(blocks, [0.5, -2.0]))})
    with GgufFile(path) as file:
        expected = blocks.astype(np.float32) * np.array([[0.5], [-2.0]], np.float32)
        np.testing.assert_array_equal(file.tensor("w"), expected.reshape(1, 64))


def test_q4_1_unpacks_low_nibbles_first_and_adds_the_minimum(tmp_path: Path) -> None:
    """The 16 low nibbles are the first half of a block, the 16 high ones the second."""
    path = tmp_path / "a.gguf"
    blocks = np.stack([np.arange(32) // 2, np.arange(31, -1, -1) // 2]).astype(np.uint8)
    write_gguf(path, {}, {"w": (Q4_1, (2, 32), q4_1(blocks, [0.25, 1.0], [-1.0, 3.0]))})
    with GgufFile(path) as file:
        scale, minimum = np.array([[0.25], [1.0]]), np.array([[-1.0], [3.0]])
        np.testing.assert_array_equal(file.tensor("w"), blocks * scale + minimum)


def test_the_alignment_named_in_the_file_is_used(tmp_path: Path) -> None:
    """general.alignment moves where tensor data starts."""
    path = tmp_path / "a.gguf"
    write_gguf(path, {"general.alignment": 64}, {"w": (F32, (2,), b"\0\0\x80?\0\0\0@")})
    raw = path.read_bytes()
    header = raw[: raw.index(b"\0\0\x80?")].rstrip(b"\0")
    start = -(-len(header) // 64) * 64
    path.write_bytes(header.ljust(start, b"\0") + b"\0\0\x80?\0\0\0@")
    with GgufFile(path) as file:
        np.testing.assert_array_equal(file.tensor("w"), [1.0, 2.0])


@pytest.mark.parametrize("length", [0, 3, 10, 30, 400])
def test_a_file_cut_inside_its_header_is_refused_by_name(tmp_path: Path, length: int) -> None:
    """Cutting anywhere before the tensors is a GgufError that names the file, never a crash."""
    path = tmp_path / "cut.gguf"
    write_gguf(path, llama_metadata(), {})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(GgufError, match=r"cut\.gguf"):
        GgufFile(path)


def test_a_file_cut_inside_a_tensor_is_refused_by_name(tmp_path: Path) -> None:
    """A tensor whose data passes the end of the file is named."""
    path = tmp_path / "cut.gguf"
    write_gguf(path, {}, {"w": (F32, (64,), b"\0" * 256)})
    path.write_bytes(path.read_bytes()[:-1])
    with GgufFile(path) as file, pytest.raises(GgufError, match="w lies beyond the end"):
        file.tensor("w")


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"PK\3\4" + b"\0" * 40, "not a GGUF file"),
        (b"GGUF\2\0\0\0" + b"\0" * 40, "version 2, not 3"),
        (b"GGUF\3\0\0\0" + b"\0" * 8 + b"\1" + b"\0" * 7 + b"\0" * 8 + b"\x63\0\0\0", "type 99"),
    ],
)
def test_what_the_reader_does_not_know_is_refused(
    tmp_path: Path, raw: bytes, complaint: str
) -> None:
    """Another format, another version and an unknown metadata type each say so."""
    path = tmp_path / "other.gguf"
    path.write_bytes(raw)
    with pytest.raises(GgufError, match=complaint):
        GgufFile(path)


def test_an_unknown_tensor_type_is_refused_when_it_is_read(tmp_path: Path) -> None:
    """Type 12 (Q4_K) is not handled."""
    path = tmp_path / "a.gguf"
    write_gguf(path, {}, {"w": (12, (256,), b"\0" * 144)})
    with GgufFile(path) as file, pytest.raises(GgufError, match="tensor type 12"):
        file.tensor("w")


def test_a_row_of_broken_blocks_is_refused(tmp_path: Path) -> None:
    """Quantised rows are whole blocks of 32."""
    path = tmp_path / "a.gguf"
    write_gguf(path, {}, {"w": (Q8_0, (2, 16), b"\0" * 34)})
    with GgufFile(path) as file, pytest.raises(GgufError, match="not whole blocks"):
        file.tensor("w")
