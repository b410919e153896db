"""Making synthetic speech ready for a call: no dead air around it, and loud enough. Pure."""

import numpy as np

from engine.speech.ports import Samples

LEAD_MS = 40
TAIL_MS = 80
_WINDOW_MS = 5
_FLOOR = 0.02  # of the loudest window: 34 dB under it counts as silence
_KNEE = 0.7  # of full scale; the limiter bends what is above


def trim_silence(samples: Samples, rate: int) -> Samples:
    """`samples` with at most 40 ms of silence before and 80 ms after the sound; empty if there is no sound."""
    window = rate * _WINDOW_MS // 1000
    whole = len(samples) // window
    if not whole:
        return samples[:0]
    levels = np.sqrt(np.square(samples[: whole * window]).reshape(whole, window).mean(axis=1))
    loud = np.flatnonzero(levels > max(float(levels.max()) * _FLOOR, 1e-4))
    if not len(loud):
        return samples[:0]
    start = int(loud[0]) * window - rate * LEAD_MS // 1000
    stop = (int(loud[-1]) + 1) * window + rate * TAIL_MS // 1000
    return samples[max(0, start) : stop]


def amplify(samples: Samples, gain_db: float) -> Samples:
    """`samples` louder by `gain_db`, peaks bent smoothly so that none reaches full scale."""
    scaled = samples * np.float32(10 ** (gain_db / 20))
    over = np.abs(scaled) > _KNEE
    if over.any():
        bent = _KNEE + (1 - _KNEE) * np.tanh((np.abs(scaled[over]) - _KNEE) / (1 - _KNEE))
        scaled[over] = np.copysign(np.minimum(bent, 0.999), scaled[over])
    return scaled


def to_pcm16(samples: Samples) -> bytes:
    """float32 at full scale ±1 as mono pcm16, little endian."""
    return (np.clip(samples, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()
