"""Whisper's log-mel features, made as the audio comes in. Pure.

What the models' own feature extractor makes of a whole clip, this makes of its pieces, frame by frame:

* A frame looks 12.5 ms to both sides of its middle, so the newest frames wait for what follows them. Only the ends of a
  turn are mirrored at, not the ends of each piece.
* The extractor raises everything to at most 8 (decades of power) below the loudest value of the clip. Here it is the
  loudest value *so far*, which can only rise. That is the one difference to the whole clip that remains, and only for
  frames before the loudest sound (docs/models.md gives what was measured).
"""

import functools

import numpy as np
from numpy.typing import NDArray

from engine.speech.ports import SPEECH_RATE, Samples

HOP = 160  # samples between two frames: 100 frames a second
_WINDOW = 400
_HALF = _WINDOW // 2
_RANGE = 8.0  # decades below the loudest value
QUIET = -10.0  # log10 power of digital silence

Features = NDArray[np.float32]


class StreamingMel:
    """Features of one turn; float32[bins, frames] comes out."""

    def __init__(self, bins: int, loudest: float = QUIET) -> None:
        """`loudest` is the caller's loudest value in earlier turns."""
        self.loudest = loudest
        self._filters = mel_filters(bins)
        self._tail: Samples | None = None  # samples that frames to come need; None before the first
        self._early = np.zeros(0, np.float32)  # too few samples to mirror the turn's start
        self._ready = np.zeros((0, bins), np.float32)  # log power of frames nobody has taken

    @property
    def ready(self) -> int:
        """Frames that can be taken."""
        return len(self._ready)

    @property
    def floor(self) -> float:
        """The value that digital silence would have now."""
        return (max(QUIET, self.loudest - _RANGE) + 4.0) / 4.0

    def push(self, samples: Samples) -> None:
        """Add float32[n] at 16 kHz, full scale ±1."""
        if self._tail is None:
            self._early = np.concatenate([self._early, samples])
            if len(self._early) <= _HALF:
                return
            mirrored = self._early[_HALF:0:-1]
            self._tail, samples = mirrored, self._early
        self._append(np.concatenate([self._tail, samples]))

    def take(self, frames: int) -> Features:
        """The oldest `frames` frames; fewer where there are not so many."""
        taken, self._ready = self._ready[:frames], self._ready[frames:]
        raised = np.maximum(taken, np.float32(self.loudest - _RANGE))
        features: Features = np.ascontiguousarray((raised.T + np.float32(4)) / np.float32(4))
        return features

    def finish(self) -> Features:
        """The turn is over: all frames that are left, its last ones mirrored at the end."""
        if self._tail is None:
            return self.take(0)
        if len(self._tail) > _HALF + 1:
            mirrored = self._tail[-2 : -_HALF - 2 : -1]
            # As many frames as whole hops of audio: the extractor leaves out the last one, too.
            self._append(np.concatenate([self._tail, mirrored]), spare=1)
        return self.take(len(self._ready))

    def _append(self, stretch: Samples, spare: int = 0) -> None:
        """Make the frames that lie within `stretch`, but for `spare` of them."""
        count = max(0, (len(stretch) - _WINDOW) // HOP + 1 - spare)
        self._tail = stretch[count * HOP :]
        if not count:
            return
        windows = np.lib.stride_tricks.sliding_window_view(stretch, _WINDOW)[: count * HOP : HOP]
        spectrum = np.fft.rfft(windows * _hann(), axis=1)
        power = spectrum.real**2 + spectrum.imag**2
        log = np.log10(np.maximum(power @ self._filters, np.float32(1e-10)))
        self.loudest = max(self.loudest, float(log.max()))
        self._ready = np.concatenate([self._ready, log.astype(np.float32)])


@functools.cache
def _hann() -> Samples:
    """Periodic, as for spectra."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW)
    single: Samples = window.astype(np.float32)
    return single


@functools.lru_cache(maxsize=4)
def mel_filters(bins: int) -> Samples:
    """float32[201, bins]: triangles on Slaney's mel scale up to 8 kHz, each of area 1 (his "norm")."""
    edges = _hertz(np.linspace(0.0, _mel(SPEECH_RATE / 2), bins + 2))
    hertz = np.linspace(0.0, SPEECH_RATE / 2, _WINDOW // 2 + 1)[:, None]
    rising = (hertz - edges[:-2]) / np.diff(edges)[:-1]
    falling = (edges[2:] - hertz) / np.diff(edges)[1:]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    filters: Samples = (triangles * (2.0 / (edges[2:] - edges[:-2]))).astype(np.float32)
    return filters


_LINEAR_HZ = 200.0 / 3  # per mel, below 1 kHz
_LOG_FROM_HZ, _LOG_FROM_MEL = 1000.0, 15.0
_LOG_STEP = np.log(6.4) / 27.0  # per mel, above


def _mel(hertz: float) -> float:
    """Above 1 kHz."""
    return _LOG_FROM_MEL + float(np.log(hertz / _LOG_FROM_HZ)) / float(_LOG_STEP)


def _hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    above = _LOG_FROM_HZ * np.exp(_LOG_STEP * (mel - _LOG_FROM_MEL))
    return np.where(mel >= _LOG_FROM_MEL, above, mel * _LINEAR_HZ)
