"""Qwen2-Audio: Whisper's encoder, pooled to 25 tokens a second, in front of Qwen-7B.

The stock encoder takes 30 s and nothing else; engine/vllm_adapter/short_audio.py runs it on what there is. For that the
features have a few frames more of what silence would be, because the convolutions look past the end.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from engine.models.audio_format import AudioFormat, Tensors
from engine.speech.mel import Features

ARCHITECTURE = "Qwen2AudioForConditionalGeneration"
PADDING = 4  # frames of silence behind each item


def tokens(frames: int) -> int:
    """Two strided halvings (transformers: Qwen2AudioEncoder._get_feat_extract_output_lengths)."""
    return ((frames - 1) // 2 - 1) // 2 + 1


def tensors(mel: Features, silence: float) -> Tensors:
    """float32[1, bins, frames + 4] and its mask."""
    frames = mel.shape[1]
    padded = np.full((1, len(mel), frames + PADDING), silence, np.float32)
    padded[0, :, :frames] = mel
    mask = np.zeros((1, frames + PADDING), np.int64)
    mask[0, :frames] = 1
    return {"input_features": padded, "feature_attention_mask": mask}


def audio_format(config: Mapping[str, Any], control: Callable[[str], int]) -> AudioFormat:
    """From config.json; `control` gives the id of a control token."""
    return AudioFormat(
        bins=config.get("audio_config", {}).get("num_mel_bins", 128),
        chunk_frames=100,
        min_frames=8,
        placeholder=config.get("audio_token_index", 151646),
        before=(control("<|audio_bos|>"),),
        after=(control("<|audio_eos|>"),),
        tokens=tokens,
        tensors=tensors,
    )
