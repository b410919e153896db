"""Brings caller audio to the rate of speech models without holding any of it back. Pure.

A block-based resampler lags by its block: soxr's streams were measured to hold back up to 37 ms of
24 kHz and 112 ms of 8 kHz audio, which would come out one tick late. This polyphase filter answers every
`down` samples with `up` of them at once; its own delay is 16 input samples (0.7 ms at 24 kHz), so a
160 ms tick is exactly five voice activity frames.
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray

from engine.speech.ports import Samples

_TAPS = 32  # per phase, in input samples
_KAISER_BETA = 6.0  # side lobes 60 dB down
_PASS = 0.92  # of the lower Nyquist frequency


class Resampler:
    """Converts one stream of pcm16 at `rate` to float32 at `target`, statefully."""

    def __init__(self, rate: int, target: int) -> None:
        divisor = math.gcd(rate, target)
        self._up, self._down = target // divisor, rate // divisor
        self._past = np.zeros(_TAPS - 1, np.float32)  # input that the next outputs still need
        self._bank = None if self._up == self._down else _filter_bank(self._up, self._down)

    def push(self, pcm: bytes) -> Samples:
        """float32 at full scale ±1 for mono little-endian pcm16; input short of a block waits for more."""
        fresh = np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32768)
        if self._bank is None:
            return fresh
        stretch = np.concatenate([self._past, fresh])
        blocks = (len(stretch) - _TAPS + 1) // self._down
        self._past = stretch[blocks * self._down :]
        if not blocks:
            return np.zeros(0, np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(stretch, len(self._bank))
        # Copied, because a product with strided rows takes three times as long as copy and product.
        rows = np.ascontiguousarray(windows[:: self._down][:blocks])
        return (rows @ self._bank).reshape(-1)


@functools.lru_cache(maxsize=16)
def _filter_bank(up: int, down: int) -> NDArray[np.float32]:
    """float32[31 + down, up]: times a window of input, the `up` outputs that its last `down` samples complete.

    Column j is the low-pass filter at the common rate, sampled where output j sees each input: tap
    j·down − q·up for the input q samples after the block's first.
    """
    length = up * _TAPS
    centred = np.arange(length) - (length - 1) / 2
    cutoff = _PASS / max(up, down)  # of the common rate's Nyquist frequency
    low_pass = up * cutoff * np.sinc(cutoff * centred) * np.kaiser(length, _KAISER_BETA)
    inputs = np.arange(down + _TAPS - 1)[:, None] - (_TAPS - 1)
    taps = np.arange(up)[None, :] * down - inputs * up
    inside = (taps >= 0) & (taps < length)
    return np.where(inside, low_pass[np.clip(taps, 0, length - 1)], 0.0).astype(np.float32)
