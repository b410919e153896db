"""How one model family takes still images: which tokens stand for one, and which tensors its encoder wants."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from engine.models.audio_format import Tensors
from engine.models.base import AudioChunk
from engine.models.picture import (
    PictureError,
    merged_patches,
    opened,
    patch_strip,
    scaled,
    whole_squares,
)
from engine.work import Feature


@dataclass(frozen=True, slots=True)
class ImageFormat:
    """Pure functions and constants; shared by all sessions."""

    placeholder: int  # token id
    before: tuple[int, ...]  # around each image
    after: tuple[int, ...]
    max_tokens: int  # placeholders of the largest image
    encode: Callable[[Any], tuple[int, Tensors]]  # a Pillow image: placeholders, and tensors

    @property
    def cost(self) -> int:
        """Context tokens that an image takes at most, the tokens around it included."""
        return len(self.before) + self.max_tokens + len(self.after)

    def item(self, data: bytes) -> AudioChunk:
        """An image file as tokens and features. Milliseconds: for a pool thread.

        Raises:
            PictureError: it cannot be shown.
        """
        length, tensors = self.encode(opened(data))
        assert length <= self.max_tokens, (length, self.max_tokens)
        tokens = (*self.before, *[self.placeholder] * length, *self.after)
        feature = Feature("image", len(self.before), length, tensors)
        return AudioChunk(tokens, 1, features=(feature,))

    def content(
        self, parts: tuple[str | bytes, ...], spell: Callable[[str], tuple[int, ...]]
    ) -> AudioChunk:
        """Words and images as one stretch of tokens, in order.

        Raises:
            PictureError: one of the images cannot be shown.
        """
        tokens: list[int] = []
        features: list[Feature] = []
        for part in parts:
            chunk = AudioChunk(spell(part), 1) if isinstance(part, str) else self.item(part)
            features += [moved(feature, len(tokens)) for feature in chunk.features]
            tokens += chunk.token_ids
        return AudioChunk(tuple(tokens), 1, features=tuple(features))


def moved(feature: Feature, by: int) -> Feature:
    """The feature, so many tokens further on."""
    return Feature(
        feature.modality, feature.offset + by, feature.length, feature.tensors, feature.key
    )


@dataclass(frozen=True, slots=True)
class _QwenPatches:
    """What Qwen's image processors read from preprocessor_config.json."""

    patch: int  # pixels, the side of a patch
    merge: int  # patches to a token, per side
    frames: int  # that a still image stands for
    least: int  # pixels
    mean: tuple[float, ...]
    std: tuple[float, ...]


def qwen_images(
    vision: Mapping[str, Any], folder: Path, placeholder: int, around: tuple[int, int], most: int
) -> ImageFormat:
    """Of a Qwen vision encoder: `vision` is its configuration, `most` the tokens that an image may take.

    preprocessor_config.json of the model folder has the last word, where there is one.
    """
    chosen = {**vision, **_preprocessor(folder)}
    size = chosen.get("size", {})
    patches = _QwenPatches(
        chosen["patch_size"],
        chosen.get("merge_size", chosen.get("spatial_merge_size", 2)),
        chosen.get("temporal_patch_size", 2),
        chosen.get("min_pixels", size.get("shortest_edge", 56 * 56)),
        tuple(chosen["image_mean"]),
        tuple(chosen["image_std"]),
    )
    before, after = around
    return ImageFormat(placeholder, (before,), (after,), most, partial(_encode_qwen, patches, most))


def _encode_qwen(patches: _QwenPatches, most: int, image: Any) -> tuple[int, Tensors]:
    side = patches.patch * patches.merge
    least = min(most, -(-patches.least // side**2))
    width, height = whole_squares(image.size, side, least, most)
    mean, std = np.array(patches.mean, np.float32), np.array(patches.std, np.float32)
    pixels = scaled(image, width, height, mean, std)
    grid = np.array([[1, height // patches.patch, width // patches.patch]], np.int64)
    tensors = {
        "pixel_values": merged_patches(pixels, patches.patch, patches.merge, patches.frames),
        "image_grid_thw": grid,
    }
    return (width // side) * (height // side), tensors


_MINICPM_SIDE = 448  # pixels: an image is scaled to about so much squared
_MINICPM_PATCH = 14


def minicpm_images(queries: int, placeholder: int, around: tuple[int, int]) -> ImageFormat:
    """Of MiniCPM's encoder: one slice whatever the size of the image, resampled to `queries` tokens."""
    before, after = around
    return ImageFormat(placeholder, (before,), (after,), queries, partial(_encode_minicpm, queries))


def _encode_minicpm(queries: int, image: Any) -> tuple[int, Tensors]:
    ratio = image.size[0] / image.size[1]
    height = int(_MINICPM_SIDE / ratio**0.5)
    rows = max(1, round(height / _MINICPM_PATCH))
    columns = max(1, round(int(height * ratio) / _MINICPM_PATCH))
    half = np.full(3, 0.5, np.float32)
    pixels = scaled(image, columns * _MINICPM_PATCH, rows * _MINICPM_PATCH, half, half)
    return queries, {
        "pixel_values": [[patch_strip(pixels, _MINICPM_PATCH)]],
        "tgt_sizes": np.array([[[rows, columns]]], np.int64),
    }


def _preprocessor(folder: Path) -> dict[str, Any]:
    """preprocessor_config.json of a model folder; empty if there is none.

    Raises:
        ValueError: it is not JSON.
    """
    path = folder / "preprocessor_config.json"
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    return content if isinstance(content, dict) else {}


__all__ = ["ImageFormat", "PictureError", "minicpm_images", "moved", "qwen_images"]
