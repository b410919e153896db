"""The thinkers of Qwen2.5-Omni and Qwen3-Omni: they hear (and could see); their talkers are not run.

Both encoders work in blocks that do not look at each other (2 s of Qwen2.5-Omni; 1 s of convolution and 8 s of
attention in Qwen3-Omni), and keep nothing from one item to the next. So chunks of 1 s are encoded as they come, and
what differs from encoding the whole turn at once is that attention ends at the chunk's edges.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from engine.models.audio_format import AudioFormat, Tensors
from engine.models.qwen2_audio import tokens as tokens_2_5
from engine.speech.mel import Features

ARCHITECTURES_2_5 = ("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration")
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
