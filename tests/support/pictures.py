"""Image files made of a few coloured squares."""

import io

import numpy as np
import pytest


def picture(seed: int, width: int = 160, height: int = 120, kind: str = "PNG") -> bytes:
    """Different for every seed; skips the test without Pillow."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(seed)
    small = image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    file = io.BytesIO()
    small.resize((width, height), image.Resampling.NEAREST).save(file, kind)
    return file.getvalue()
