"""What a step costs, learned while serving. Pure.

    step(n, kv) = gain · law(n, kv)      n sessions in the step, kv tokens read by it

Two time scales. The law (step_law.py) is a regression over what was seen at every load. The gain follows measured/known
within seconds, where loads are known: a noisy neighbour or a throttled device changes every step by one factor. While
it is off, known loads stay as they are and new ones are learned as they would be at the usual speed, so that a passing
fault does not rewrite the law; but not while the gain lags behind, or they would be known wrong by as much, and
whatever follows be measured against that. What the usual speed is: on a shared machine it changes by a third and by the
minute, so a third slower is the truth after ten seconds, and faster again only after ten minutes; who is let in for a
lucky minute is there when it ends. More than a third is a fault, and the truth after two minutes.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from admission.step_law import TRUSTED_WEIGHT, Mask, StepLaw, Vector

_ENOUGH = 150.0  # samples until a law without a prior is believed
_KEPT_SAMPLES = 64  # of one interval
_NOISE_SAMPLES = 400  # that tell by how much steps vary: a few are alike now and then, and who is let in then stays
_COARSE = 0.5  # of the longest step: what two steps differ by however short they are
_OUTLIER = 3.0  # × the median ratio: a step that also read somebody's long header
_BAND = (0.92, 1.18)  # of the gain: within it the law may follow, …
_BACK = (0.95, 1.08)  # … and here a change of regime is over
_STILL = 1.08  # … and below this it is noise, or luck
_FOLLOWED = 0.05  # the gain has caught up with the speed that it follows
_SAME_FLEET = 0.15
_NEIGHBOUR = 1.35  # slower by no more than this: others on the same machine, who will come again
_ABSORB_NEIGHBOUR_S, _ABSORB_SLOWER_S, _ABSORB_FASTER_S = 10.0, 120.0, 600.0


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
        self.gain = 1.0
        self.regime_s = 0.0  # how long the gain has been off, …
        self._neighbour_s = 0.0  # … and no further than a neighbour takes it
        self._samples: list[StepSample] = []
        self._seen = 0
        self._fleets: deque[tuple[float, float]] = deque(maxlen=6)
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
        is_serving = self.ready and interval_s > 0
        speed = self._speed(ratio, weights, kept, known) if is_serving else None
        if speed is not None:
            self._follow(speed, interval_s)
        if self.regime_s:
            if speed is not None and known.any() and abs(speed / self.gain - 1) < _FOLLOWED:
                new = kept & ~known  # what was not known yet is learned at the usual speed
                self._learn(x[new], y[new] / self.gain, weight)
        elif speed is None or _BAND[0] < speed < _BAND[1]:
            self._learn(x[kept], y[kept], weight)
        spread = _median(np.abs(ratio[kept] / median - 1), weights[kept]) * 1.48
        self._noise_weight = min(_NOISE_SAMPLES, self._noise_weight + len(samples))
        self.noise += len(samples) / self._noise_weight * (min(0.5, max(0.01, spread)) - self.noise)

    def _speed(self, ratio: Vector, weights: Vector, kept: Mask, known: Mask) -> float | None:
        """How many times longer steps took than they should have; None: nobody can tell."""
        if known.any():
            return float(np.average(ratio[known], weights=weights[known]))
        if not self._same_fleet():  # the load changed with it: the law is to blame
            return None
        # Everybody is in every step, where nobody ever was: behind, because the engine is slower. Of loads that are
        # faster than the law says it is the law that is wrong, and a lucky minute is not the reason.
        return max(1.0, float(np.average(ratio[kept], weights=weights[kept])))

    def _follow(self, ratio: float, interval_s: float) -> None:
        """Known loads take `ratio` times what they took. Enter, stay in or leave a regime."""
        self.gain += 0.4 * (min(4.0, max(0.25, ratio)) - self.gain)
        low, high = _BACK if self.regime_s else _BAND
        if low < self.gain < high:
            self.regime_s = self._neighbour_s = 0.0
            return
        self.regime_s += interval_s
        is_neighbour = 1 < self.gain <= _NEIGHBOUR
        self._neighbour_s = self._neighbour_s + interval_s if is_neighbour else 0.0
        lasting_s = _ABSORB_SLOWER_S if self.gain > 1 else _ABSORB_FASTER_S
        if self.regime_s >= lasting_s or self._neighbour_s >= _ABSORB_NEIGHBOUR_S:
            self.law.rescale(self.gain)  # the new speed is the truth
            self.gain, self.regime_s, self._neighbour_s = 1.0, 0.0, 0.0

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
        return self.gain if self.gain > _STILL else 1.0

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
