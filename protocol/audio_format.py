"""The three audio formats of the API, and what converting between them and pcm16 takes.

G.711 is a table: 256 codes one way, 65,536 samples the other. The tables follow ITU-T G.711 (11/88): mu-law is a
14-bit magnitude biased by 33 (here in 16-bit units: 132), A-law a 13-bit one; both have 8 segments of 16 steps.
"""

from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

PCM_RATE = 24_000  # Hz; the only pcm rate the API knows
G711_RATE = 8_000  # Hz

_MU_BIAS = 132
_MU_CLIP = 32_635


def _mu_law_values() -> npt.NDArray[np.int16]:
    """pcm16 for each mu-law code (int16, shape (256,))."""
    inverted = ~np.arange(256, dtype=np.int32) & 0xFF
    exponent, mantissa = (inverted >> 4) & 7, inverted & 15
    magnitude = (((mantissa << 3) + _MU_BIAS) << exponent) - _MU_BIAS
    return np.where(inverted & 0x80, -magnitude, magnitude).astype(np.int16)


def _a_law_values() -> npt.NDArray[np.int16]:
    """pcm16 for each A-law code (int16, shape (256,))."""
    toggled = np.arange(256, dtype=np.int32) ^ 0x55
    exponent, mantissa = (toggled >> 4) & 7, toggled & 15
    linear = (mantissa << 4) + 8
    magnitude = np.where(exponent == 0, linear, (linear + 256) << np.maximum(exponent - 1, 0))
    return np.where(toggled & 0x80, magnitude, -magnitude).astype(np.int16)


def _segment(magnitude: npt.NDArray[np.int32], first: int) -> npt.NDArray[np.int32]:
    """Which of 8 doubling segments a magnitude lies in, the first ending below `first`."""
    bounds = first << np.arange(7)
    return np.searchsorted(bounds, magnitude, side="right").astype(np.int32)


def _mu_law_codes() -> npt.NDArray[np.uint8]:
    """The mu-law code of each pcm16 sample, indexed by the sample as uint16 (uint8, shape (65536,))."""
    samples = np.arange(65_536, dtype=np.uint16).view(np.int16).astype(np.int32)
    magnitude = np.minimum(np.abs(samples), _MU_CLIP) + _MU_BIAS
    exponent = _segment(magnitude, 256)
    mantissa = (magnitude >> (exponent + 3)) & 15
    sign = np.where(samples < 0, 0x80, 0)
    codes: npt.NDArray[np.int32] = ~(sign | (exponent << 4) | mantissa) & 0xFF
    return codes.astype(np.uint8)


def _a_law_codes() -> npt.NDArray[np.uint8]:
    """The A-law code of each pcm16 sample, indexed by the sample as uint16 (uint8, shape (65536,))."""
    samples = np.arange(65_536, dtype=np.uint16).view(np.int16).astype(np.int32)
    magnitude = np.where(samples < 0, -samples - 1, samples)
    exponent = _segment(magnitude, 256)
    mantissa = (magnitude >> (np.maximum(exponent, 1) + 3)) & 15
    sign = np.where(samples < 0, 0, 0x80)
    codes: npt.NDArray[np.int32] = (sign | (exponent << 4) | mantissa) ^ 0x55
    return codes.astype(np.uint8)


class AudioFormat(Enum):
    """A format by its name on the wire."""

    PCM = "audio/pcm"
    MU_LAW = "audio/pcmu"
    A_LAW = "audio/pcma"

    @property
    def rate(self) -> int:
        """Samples per second."""
        return PCM_RATE if self is AudioFormat.PCM else G711_RATE

    @property
    def sample_bytes(self) -> int:
        """Bytes per sample on the wire."""
        return 2 if self is AudioFormat.PCM else 1

    @property
    def wire(self) -> dict[str, Any]:
        """The format as the API's objects show it; only pcm has a rate there."""
        if self is AudioFormat.PCM:
            return {"type": self.value, "rate": PCM_RATE}
        return {"type": self.value}

    def to_pcm(self, audio: bytes) -> bytes:
        """Wire audio as pcm16, same rate."""
        if self is AudioFormat.PCM:
            return audio
        return _VALUES[self][np.frombuffer(audio, np.uint8)].tobytes()

    def from_pcm(self, pcm: bytes) -> bytes:
        """pcm16 of this format's rate as wire audio."""
        if self is AudioFormat.PCM:
            return pcm
        return _CODES[self][np.frombuffer(pcm, np.dtype("<u2"))].tobytes()


_VALUES = {AudioFormat.MU_LAW: _mu_law_values(), AudioFormat.A_LAW: _a_law_values()}
_CODES = {AudioFormat.MU_LAW: _mu_law_codes(), AudioFormat.A_LAW: _a_law_codes()}


def pcm_ms(byte_count: int, rate: int) -> int:
    """Whole milliseconds in that many bytes of pcm16."""
    return byte_count * 500 // rate
