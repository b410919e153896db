"""When to knock again. Pure."""

BASE_S = 2.0  # a call lasts minutes, a place that frees up does so within seconds on average
MAX_S = 30.0
STALLED_S = 5.0
_GOLDEN = 0.6180339887498949


class RetryAdvice:
    """Grows with the crowd, and differs from caller to caller so that they do not come back together."""

    def __init__(self) -> None:
        self._refused = 0  # since the last admission
        self._ever = 0

    def admitted(self) -> None:
        self._refused = 0

    def after_s(self, house: float, *, stalled: bool = False, pacing: bool = False) -> float:
        """Seconds for the caller refused now; doubled for every full house refused since the last admission.

        Who is only paced (`pacing`) could enter in a moment: that does not grow.
        """
        self._ever += 1
        spread = 1.0 + 0.5 * (self._ever * _GOLDEN % 1.0)  # evenly over [1, 1.5) in any order
        if pacing:
            return spread
        doublings = min(self._refused // max(1, int(house)), 8)
        self._refused += 1
        return min((STALLED_S if stalled else BASE_S) * 2.0**doublings * spread, MAX_S)
