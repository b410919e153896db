"""The caller's recent audio, addressed by position. Pure.

    # [0, start)  forgotten · [start, end)  kept · [end, …)  not yet heard

Positions count all samples ever pushed. Past its capacity the oldest audio is dropped and counted.
"""

from collections import deque

import numpy as np

from engine.speech.ports import Samples


class UtteranceBuffer:
    """A bounded run of float32 samples that ends with the newest one."""

    def __init__(self, capacity_samples: int) -> None:
        self.start = 0  # position of the oldest sample kept; may lie ahead of `end` after `forget`
        self.end = 0  # position after the newest sample
        self.dropped_samples = 0  # lost to the bound, ever
        self._capacity = capacity_samples
        self._pieces: deque[Samples] = deque()  # the last of them ends at `end`
        self._held = 0  # samples in _pieces; those before `start` are not readable

    def push(self, samples: Samples) -> None:
        """Append float32[n]; drop the oldest samples beyond the capacity."""
        if not len(samples):
            return
        self._pieces.append(samples)
        self._held += len(samples)
        self.end += len(samples)
        excess = self.end - self._capacity - self.start
        if excess > 0:
            self.dropped_samples += excess
            self.start += excess
        self._release()

    def forget(self, before: int) -> None:
        """Drop everything before the position `before`, also samples that are still to come."""
        self.start = max(self.start, before)
        self._release()

    def read(self, start: int, stop: int) -> Samples:
        """A copy of the kept samples in [start, stop); shorter where they are gone or not there yet."""
        start, stop = max(start, self.start), min(stop, self.end)
        if start >= stop:
            return np.zeros(0, np.float32)
        first = self.end - self._held
        return np.concatenate(self._pieces)[start - first : stop - first]

    def _release(self) -> None:
        """Let go of pieces that lie wholly before `start`."""
        while self._pieces and self.end - self._held + len(self._pieces[0]) <= self.start:
            self._held -= len(self._pieces.popleft())
