"""The bfloat16 writer against known bit patterns and the format's own reader."""

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from engine.weights.safetensors_writer import to_bfloat16, write_bfloat16


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x3F800000, 0x3F80),  # 1.0 is exact
        (0x3F808000, 0x3F80),  # a tie goes to the even neighbour, down
        (0x3F818000, 0x3F82),  # and up
        (0x3F808001, 0x3F81),  # just above a tie goes up
        (0x3F817FFF, 0x3F81),  # just below a tie goes down
        (0xBF808001, 0xBF81),  # the sign does not matter
        (0x00000001, 0x0000),  # the smallest subnormal
        (0x7F7FFFFF, 0x7F80),  # the largest float32 rounds to infinity
        (0xFF800000, 0xFF80),  # infinity stays
        (0x7F800001, 0x7FC0),  # a NaN whose payload would be cut off stays a NaN
        (0xFFFFFFFF, 0x7FC0),
    ],
)
def test_rounding_is_to_nearest_even(bits: int, expected: int) -> None:
    """Bit patterns of IEEE 754 binary32 and their bfloat16 neighbours."""
    weights = np.array([bits], np.uint32).view(np.float32)
    assert to_bfloat16(weights)[0] == expected


def test_the_formats_own_reader_finds_names_shapes_and_values(tmp_path: Path) -> None:
    """What is written is a safetensors file to the safetensors package."""
    path = tmp_path / "model.safetensors"
    first, second = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([0.5], np.float32)
    write_bfloat16(path, {"a": (2, 3), "b.weight": (1,)}, iter([first, second]))
    with safe_open(path, framework="numpy") as file:
        assert set(file.keys()) == {"a", "b.weight"}
        assert file.metadata() == {"format": "pt"}
        assert file.get_slice("a").get_shape() == [2, 3]
        assert file.get_slice("a").get_dtype() == "BF16"
    raw = np.frombuffer(path.read_bytes()[-14:], "<u2").astype(np.uint32) << 16
    np.testing.assert_array_equal(raw.view(np.float32), [0, 1, 2, 3, 4, 5, 0.5])


def test_a_tensor_of_another_shape_than_announced_is_an_error(tmp_path: Path) -> None:
    """The header is written first, so a shape that differs would be a lie."""
    with pytest.raises(ValueError, match="a has shape"):
        write_bfloat16(tmp_path / "x", {"a": (2,)}, iter([np.zeros(3, np.float32)]))
