"""The thinkers of Qwen2.5-Omni and Qwen3-Omni: they hear and see still images; their talkers are not run.

Both encoders work in blocks that do not look at each other (2 s of Qwen2.5-Omni; 1 s of convolution and 8 s of
attention in Qwen3-Omni), and keep nothing from one item to the next. So chunks of 1 s are encoded as they come, and
what differs from encoding the whole turn at once is that attention ends at the chunk's edges.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine.models.audio_format import AudioFormat, Tensors
from engine.models.image_format import ImageFormat, qwen_images
from engine.models.qwen2_audio import tokens as tokens_2_5
from engine.speech.mel import Features

ARCHITECTURES_2_5 = ("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration")
# What their image processors do where preprocessor_config.json is silent: transformers' Qwen2VLImageProcessor, and for
# Qwen3-Omni what Qwen3-VL's has (from memory: the published file was not at hand).
_CLIP = {
    "patch_size": 14,
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
_HALF = {"patch_size": 16, "image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)}
ARCHITECTURE_3 = "Qwen3OmniMoeForConditionalGeneration"


def tokens_3(frames: int) -> int:
    """13 tokens for each whole second; the rest goes through three strided convolutions."""
    rest = frames % 100
    for _ in range(3):
        rest = (rest + 1) // 2
    return rest + frames // 100 * 13


def tensors(mel: Features, silence: float) -> Tensors:
    """float32[bins, frames] as it is: neither encoder needs padding."""
    frames = mel.shape[1]
    return {
        "input_audio_features": mel,
        "audio_feature_lengths": np.array([frames], np.int64),
        "feature_attention_mask": np.ones((1, frames), np.int64),
    }


def audio_format_2_5(config: Mapping[str, Any], control: Callable[[str], int]) -> AudioFormat:
    """From config.json; `control` gives the id of a control token."""
    thinker = config.get("thinker_config", {})
    return AudioFormat(
        bins=thinker.get("audio_config", {}).get("num_mel_bins", 128),
        chunk_frames=100,
        min_frames=8,
        placeholder=thinker.get("audio_token_index", 151646),
        before=(control("<|audio_bos|>"),),
        after=(control("<|audio_eos|>"),),
        tokens=tokens_2_5,
        tensors=tensors,
    )


def audio_format_3(config: Mapping[str, Any], control: Callable[[str], int]) -> AudioFormat:
    """From config.json; `control` gives the id of a control token."""
    thinker = config.get("thinker_config", {})
    return AudioFormat(
        bins=thinker.get("audio_config", {}).get("num_mel_bins", 128),
        chunk_frames=100,
        min_frames=8,
        placeholder=thinker.get("audio_token_id", 151675),
        before=(control("<|audio_start|>"),),
        after=(control("<|audio_end|>"),),
        tokens=tokens_3,
        tensors=tensors,
    )


def image_format_2_5(
    config: Mapping[str, Any], folder: Path, control: Callable[[str], int], most: int
) -> ImageFormat:
    """From config.json and preprocessor_config.json in `folder`; an image takes `most` tokens at most."""
    thinker = config.get("thinker_config", {})
    placeholder = thinker.get("image_token_index", 151655)
    around = control("<|vision_bos|>"), control("<|vision_eos|>")
    vision = _CLIP | thinker.get("vision_config", {})
    return qwen_images(vision, folder, placeholder, around, most)


def image_format_3(
    config: Mapping[str, Any], folder: Path, control: Callable[[str], int], most: int
) -> ImageFormat:
    """From config.json and preprocessor_config.json in `folder`; an image takes `most` tokens at most."""
    thinker = config.get("thinker_config", {})
    placeholder = thinker.get("image_token_id", 151655)
    around = control("<|vision_start|>"), control("<|vision_end|>")
    vision = _HALF | thinker.get("vision_config", {})
    return qwen_images(vision, folder, placeholder, around, most)
