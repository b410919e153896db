"""What a step costs, learned while serving. Pure.

    step(n, kv) = gain · law(n, kv)      n sessions in the step, kv tokens read by it

Two time scales. The law (step_law.py) is a regression over what was seen at every load. The gain (regime.py) follows
measured/known within seconds, where loads are known. While it is off, known loads stay as they are and new ones are
learned as they would be at the usual speed, so that a passing fault does not rewrite the law; but not while the gain
lags behind, or they would be known wrong by as much, and whatever follows be measured against that.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from admission.regime import Regime
from admission.step_law import TRUSTED_WEIGHT, Mask, StepLaw, Vector

_ENOUGH = 150.0  # samples until a law without a prior is believed
_KEPT_SAMPLES = 64  # of one interval
_NOISE_SAMPLES = 400  # that tell by how much steps vary: a few are alike now and then, and who is let in then stays
_COARSE = 0.5  # of the longest step: what two steps differ by however short they are
_OUTLIER = 3.0  # × the median ratio: a step that also read somebody's long header
_FOLLOWS = (0.92, 1.18)  # of the speed: within it the law does
_STILL = 1.08  # below this gain it is noise, or luck
_SAME_FLEET = 0.15
_SMALLER = 0.9  # × as many in a step: not by chance


@dataclass(frozen=True, slots=True)
class StepSample:
    """One step of the engine thread."""

    sessions: int
    seconds: float
    kv_tokens: float  # read by it


class CostModel:
    """Learns the law and the gain. `budget_s` is the time a step may take at most."""

    def __init__(self, budget_s: float, plateau_tokens: float) -> None:
        self._coarse_s = _COARSE * budget_s
        self.law = StepLaw(budget_s, self._coarse_s, plateau_tokens)
        self.noise = 0.05  # relative standard deviation of one step, …
        self._noise_weight = 30.0  # … and the samples that it rests on
        self.calibrated = False  # the law's prior was measured
        self.regime = Regime()
        self._samples: list[StepSample] = []
        self._seen = 0
        self._fleets: deque[tuple[float, float]] = deque(maxlen=6)
        # Which share of this fleet was in a step lately, at the usual speed and where most loads were known.
        self._crowds: deque[float] = deque(maxlen=6)
        self.median_s = 0.0  # of the last interval with steps

    # -- learning ------------------------------------------------------------

    def add(self, sample: StepSample) -> None:
        """One step. The newest few of an interval are kept."""
        if len(self._samples) < _KEPT_SAMPLES:
            self._samples.append(sample)
        else:
            self._samples[self._seen % _KEPT_SAMPLES] = sample
        self._seen += 1

    def forget_recent(self) -> None:
        """The steps of this interval were those of a fault."""
        self._samples, self._seen = [], 0

    def fit(self, fleet: tuple[float, float], interval_s: float, *, weight: float = 1.0) -> None:
        """Digest an interval's steps, each counting `weight` times. `fleet`: sessions and tokens resident now.

        An interval of no time is a measurement of its own, and no change of speed whatever it says.
        """
        samples = [s for s in self._samples if s.sessions > 0 and s.seconds > 0]
        self._samples, self._seen = [], 0
        if not samples:
            return
        x = self.law.features([s.sessions for s in samples], [s.kv_tokens for s in samples])
        y = np.array([s.seconds for s in samples])
        self.median_s = float(np.median(y))
        misfits, known = self.law.misfits(x)
        expected = np.maximum(x @ self.law.theta * misfits, 1e-9)
        ratio, weights = y / expected, 1 / (1 + (self._coarse_s / expected) ** 2)
        median = _median(ratio, weights)
        kept = ratio <= _OUTLIER * median
        known &= kept
        self._fleets.append(fleet)
        speed = (
            self._speed(x, ratio, weights, kept, known) if self.ready and interval_s > 0 else None
        )
        factor = self.regime.follow(speed, interval_s) if speed is not None else None
        if factor is not None:
            self.law.rescale(factor)
        if self.regime.lasts_s:
            if speed is not None and self.regime.has_followed(speed):
                new = kept & ~known  # what was not known yet is learned at the usual speed
                self._learn(x[new], y[new] / self.regime.gain, weight)
        elif speed is None or _FOLLOWS[0] < speed < _FOLLOWS[1]:
            self._learn(x[kept], y[kept], weight)
        spread = _median(np.abs(ratio[kept] / median - 1), weights[kept]) * 1.48
        self._noise_weight = min(_NOISE_SAMPLES, self._noise_weight + len(samples))
        self.noise += len(samples) / self._noise_weight * (min(0.5, max(0.01, spread)) - self.noise)

    def _speed(
        self, x: Vector, ratio: Vector, weights: Vector, kept: Mask, known: Mask
    ) -> float | None:
        """How many times longer steps took than they should have; None: nobody can tell."""
        crowd = float(x[:, 1].mean()) / max(1.0, self._fleets[-1][0])
        same_fleet = self._same_fleet()
        if not same_fleet:
            self._crowds.clear()
        if known.mean() > 0.5 and not self.regime.lasts_s:
            self._crowds.append(crowd)
        if known.any():
            return float(np.average(ratio[known], weights=weights[known]))
        if not same_fleet:  # the load changed with it: the law is to blame
            return None
        speed = float(np.average(ratio[kept], weights=weights[kept]))
        # Where nobody ever was: more in every step than usual, because the engine is slower, or fewer, because it is
        # faster (by Little's law as many as begin their tick while a step lasts). Else it is the law that is wrong of
        # loads that are faster than it says, and a lucky minute is not the reason.
        usual = float(np.median(self._crowds)) if self._crowds else 0.0
        return speed if crowd < _SMALLER * usual else max(1.0, speed)

    def _same_fleet(self) -> bool:
        (n0, kv0), (n1, kv1) = self._fleets[0], self._fleets[-1]
        full = len(self._fleets) == self._fleets.maxlen
        steady = abs(n1 - n0) <= _SAME_FLEET * n1 and abs(kv1 - kv0) <= _SAME_FLEET * kv1
        return full and steady

    def _learn(self, x: Vector, y: Vector, weight: float) -> None:
        self.law.learn(x, y, weight, believed=self.ready)

    # -- asking ----------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """True once the law means something."""
        return self.calibrated or self.law.weight >= _ENOUGH

    def coefficients(self) -> tuple[float, float, float, float]:
        """(seconds, per session, per token, per token^CURVE), gain included."""
        return self.law.coefficients(self.law.theta, self._speed_now)

    def careful(self, sessions: float, kv_tokens: float) -> tuple[float, float, float, float]:
        """`coefficients` of the slowest law that is likely, judged by steps like this one."""
        theta = self.law.careful(self.law.features(sessions, kv_tokens), self.noise)
        return self.law.coefficients(theta, self._speed_now)

    @property
    def _speed_now(self) -> float:
        return self.regime.gain if self.regime.gain > _STILL else 1.0

    # -- memory ----------------------------------------------------------------

    def export(self, most: float = TRUSTED_WEIGHT) -> dict[str, Any]:
        """What `restore` takes: numbers and lists only. It will count for `most` samples at most."""
        return self.law.export(most)

    def restore(self, state: dict[str, Any]) -> None:
        """Start from what was learned before. Raises ValueError if it is not that."""
        self.law.restore(state)
        self.calibrated = True


def _median(values: Vector, weights: Vector) -> float:
    """The value that half of the weight does not exceed."""
    order = np.argsort(values)
    sums = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(sums, sums[-1] / 2)]])
