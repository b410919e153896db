"""Images as models take them: the same pixels as their own image processors make, within bounds."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.pictures import picture

from engine.models.image_format import ImageFormat, minicpm_images, qwen_images
from engine.models.picture import MAX_SIDE, PictureError, opened

SIZES = [(640, 480), (100, 90), (1920, 1080), (300, 1500), (28, 40)]
CLIP = {
    "patch_size": 14,
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
HALF_PRECISION = 3e-3  # of values up to 2.7


def qwen(most: int = 256) -> ImageFormat:
    return qwen_images(CLIP, Path("/none"), 5, (1, 2), most)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_qwens_patches_are_those_of_its_own_processor(size: tuple[int, int]) -> None:
    """Same grid, same order, same values as far as half precision goes."""
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    data = picture(1, *size)
    least, most = 56 * 56, 28 * 28 * 256
    stock = module.Qwen2VLImageProcessorPil(size={"shortest_edge": least, "longest_edge": most})
    wanted = stock(opened(data), return_tensors="np")
    (feature,) = qwen().item(data).features
    np.testing.assert_array_equal(feature.tensors["image_grid_thw"], wanted["image_grid_thw"])
    ours = feature.tensors["pixel_values"]
    assert ours.dtype == np.float16
    np.testing.assert_allclose(ours, wanted["pixel_values"], atol=HALF_PRECISION)
    assert feature.length == wanted["image_grid_thw"].prod() // 4


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_minicpms_strip_is_that_of_its_family(size: tuple[int, int]) -> None:
    """As of MiniCPM-V 4.6 in transformers, but for sides that are multiples of one patch instead of four."""
    module = pytest.importorskip("transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6")

    class Stock(module.MiniCPMV4_6ImageProcessorPil):  # type: ignore[misc,name-defined]
        def find_best_resize(self, image_size: Any, *args: Any, **more: Any) -> tuple[int, int]:
            ratio = image_size[1] / image_size[0]
            height = int(448 / ratio**0.5)
            return 14 * round(height / 14), 14 * round(int(height * ratio) / 14)

    data = picture(2, *size)
    wanted = Stock(slice_mode=False)(opened(data), return_tensors="np")
    (feature,) = minicpm_images(64, 5, (1, 2)).item(data).features
    assert feature.length == 64
    np.testing.assert_array_equal(feature.tensors["tgt_sizes"][0], wanted["target_sizes"])
    ((strip,),) = feature.tensors["pixel_values"]
    np.testing.assert_allclose(strip, wanted["pixel_values"][0], atol=HALF_PRECISION)


@pytest.mark.parametrize("most", [1, 7, 64, 256])
@pytest.mark.parametrize("size", [*SIZES, (16, 250), (4000, 300), (1, 1)])
def test_an_image_takes_no_more_tokens_than_it_may(size: tuple[int, int], most: int) -> None:
    """Whatever its size and shape; and as many as are announced around it."""
    chunk = qwen(most).item(picture(3, *size))
    (feature,) = chunk.features
    assert 1 <= feature.length <= most
    assert chunk.token_ids == (1, *[5] * feature.length, 2)
    assert len(chunk.token_ids) <= qwen(most).cost


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_every_kind_of_file_is_read(kind: str) -> None:
    """Into three channels."""
    assert opened(picture(4, kind=kind)).mode == "RGB"


def test_transparency_and_palettes_become_rgb() -> None:
    """What is not three channels is converted."""
    image = pytest.importorskip("PIL.Image")
    for mode in ("RGBA", "L", "P", "1"):
        file = io.BytesIO()
        image.new(mode, (40, 30)).save(file, "PNG")
        assert opened(file.getvalue()).mode == "RGB"


def test_words_and_images_keep_their_order() -> None:
    """And each feature stands where its placeholders are."""
    parts = ("ab", picture(5, 100, 50), "c", picture(6, 56, 56))
    chunk = qwen().content(parts, lambda text: tuple(map(ord, text)))
    assert chunk.token_ids[:3] == (97, 98, 1)
    for feature in chunk.features:
        run = chunk.token_ids[feature.offset : feature.offset + feature.length]
        assert set(run) == {5}
    assert chunk.token_ids.count(5) == sum(feature.length for feature in chunk.features)


def bomb() -> bytes:
    """A small file of a huge image."""
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new("1", (MAX_SIDE, MAX_SIDE)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (lambda: picture(7)[:200], "damaged"),
        (lambda: b"\x89PNG\r\n\x1a\n" + bytes(50), "damaged"),
        (lambda: b"", "damaged"),
        (bomb, "67,108,864|pixels"),
        (lambda: picture(8, 1700, 100), "over 16 times"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_a_reason(data: Any, reason: str) -> None:
    """Before anything large is decoded."""
    with pytest.raises(PictureError, match=reason):
        opened(data())
