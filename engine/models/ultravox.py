"""Ultravox: Whisper's encoder, eight frames stacked to one token, in front of a text model.

About 6 tokens a second. The encoder is not causal and keeps nothing between items, so chunks of 1 s are encoded as they
come. (transformers has no code for it: the checkpoint brings its processor, which is not needed here, and vLLM its
configuration class.)
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from engine.models.audio_format import AudioFormat, Tensors
from engine.speech.mel import Features

ARCHITECTURE = "UltravoxModel"


def audio_format(config: Mapping[str, Any], control: Callable[[str], int]) -> AudioFormat:
    """From config.json; `control` gives the id of a control token."""
    stack: int = config.get("stack_factor", 8)

    def tokens(frames: int) -> int:
        return -(-frames // (2 * stack))  # Whisper halves the frames

    def tensors(mel: Features, silence: float) -> Tensors:
        frames = mel.shape[1]
        return {
            "audio_features": mel[None],
            "audio_lens": np.array([frames], np.int64),
            "audio_token_len": np.array([tokens(frames)], np.int64),
            "audio_num_chunks": np.array([1], np.int64),
        }

    return AudioFormat(
        bins=config.get("audio_config", {}).get("num_mel_bins", 80),
        chunk_frames=100,
        min_frames=8,
        placeholder=config.get("audio_token_index", 32000),
        before=(),
        after=(),
        tokens=tokens,
        tensors=tensors,
    )
