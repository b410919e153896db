"""By what factor steps take longer than their law says, and since when: the engine's speed. Pure.

The gain follows measured/known within seconds: a noisy neighbour or a throttled device changes every step by one
factor. What the usual speed is: on a shared machine it changes by a third and by the minute, so a third slower is the
truth after ten seconds, and more than that is a fault, and the truth after two minutes. Faster is the truth only after
ten; who is let in for a lucky minute is there when it ends. Sooner where the engine was slower in between, and again:
then it is as fast as it is in its slow minutes, which is what counts.
"""

_BAND = (0.92, 1.18)  # of the gain: within it the law may follow, …
_BACK = (0.95, 1.08)  # … and here a change of regime is over
_FOLLOWED = 0.05  # the gain has caught up with the speed that it follows
_NEIGHBOUR = 1.35  # slower by no more than this: others on the same machine, who will come again
_NEIGHBOUR_S, _SLOWER_S, _FASTER_S, _TWO_SPEEDS_S = 10.0, 120.0, 600.0, 120.0
_SETTLED = 4  # intervals in a row with that, for a speed to be known
_APART, _ALIKE = 1.1, 1.05  # ratios of speeds


class Regime:
    """The gain, and how long it has been off."""

    def __init__(self) -> None:
        self.gain = 1.0
        self.lasts_s = 0.0  # how long the gain has been off to the same side; 0: it is not
        self._over()

    def _over(self) -> None:
        self.lasts_s = 0.0
        self._neighbour_s = 0.0  # how long it has been no further off than a neighbour takes it
        self._settled = 0  # intervals since the gain caught up with the speed
        self._slowest = 0.0  # largest gain that was settled
        self._was_faster = False  # since it was there
        self._came_back = False  # to that

    def has_followed(self, ratio: float) -> bool:
        """The gain is what was measured last."""
        return abs(ratio / self.gain - 1) < _FOLLOWED

    def follow(self, ratio: float, interval_s: float) -> float | None:
        """Known loads take `ratio` times what they took. By what factor the law has to change, if the speed is new."""
        was_slower = self.gain > 1
        self.gain += 0.4 * (min(4.0, max(0.25, ratio)) - self.gain)
        low, high = _BACK if self.lasts_s else _BAND
        if low < self.gain < high:
            self._over()
            return None
        if was_slower != (self.gain > 1):
            self._over()
        self.lasts_s += interval_s
        self._settled = self._settled + 1 if self.has_followed(ratio) else 0
        if self._settled >= _SETTLED:
            self._compare()
        factor = self._slower(interval_s) if self.gain > 1 else self._faster()
        if factor is not None:
            self.gain = 1.0
            self._over()
        return factor

    def _compare(self) -> None:
        """With the slowest of this regime."""
        if self._was_faster and self.gain > self._slowest / _ALIKE:
            self._came_back = self.gain < self._slowest * _ALIKE
            self._was_faster = False
        elif self.gain < self._slowest / _APART:
            self._was_faster = True
        self._slowest = max(self._slowest, self.gain)

    def _slower(self, interval_s: float) -> float | None:
        self._neighbour_s = self._neighbour_s + interval_s if self.gain <= _NEIGHBOUR else 0.0
        lasted = self.lasts_s >= _SLOWER_S or self._neighbour_s >= _NEIGHBOUR_S
        return self.gain if lasted else None

    def _faster(self) -> float | None:
        lasted = self.lasts_s >= (_TWO_SPEEDS_S if self._came_back else _FASTER_S)
        return max(self.gain, self._slowest) if lasted else None
