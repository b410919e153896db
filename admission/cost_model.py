"""What a step costs, learned while serving. Pure.

    step(n, kv) = gain · (θ0 + θ1·n + θ2·kv + θ3·kv^CURVE)      n sessions in the step, kv tokens read by it

Two time scales. The shape θ is a ridge regression whose prior is a calibration where there was one. Its samples are
kept as sums by cell of (n, kv), each cell with a bounded weight: what is seen again replaces what was seen there
before, and what was seen at other loads is not forgotten, because the curvature of the law shows only between loads.
The gain follows measured/known within seconds, where loads are known: a noisy neighbour or a throttled device changes
every step by one factor. While it is off, known loads stay as they are and new ones are learned as they would be at the
usual speed, so that a passing fault does not rewrite the shape; but not while the gain lags behind, or they would be
known wrong by as much, and whatever follows be measured against that. What the usual speed is: on a shared machine it
changes by a third and by the minute, so a third slower is the truth after ten seconds, and faster again only after ten
minutes; who is let in for a lucky minute is there when it ends. More than a third is a fault, and the truth after two
minutes.
"""

from collections import deque
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from admission.projection import CURVE

Vector = npt.NDArray[np.floating[Any]]
Mask = npt.NDArray[np.bool_]

TERMS = 4
_SESSIONS = 100.0  # one unit of n; of kv: as many full windows
_CELL_WEIGHT = 800.0  # samples that one cell counts for at most, …
_WELL_KNOWN = 50.0  # … and after which it knows its own misfit
_CELL_RATIO = (1.2, 1.5)  # width of a cell: of n, of kv
_MAX_CELLS = 512
_ENOUGH = 150.0  # samples until a shape without a prior is believed
_KEPT_SAMPLES = 64  # of one interval
_NOISE_SAMPLES = 400  # that tell by how much steps vary: a few are alike now and then, and who is let in then stays
_COARSE = 0.5  # of the longest step: what two steps differ by however short they are
_OUTLIER = 3.0  # × the median ratio: a step that also read somebody's long header
_BAND = (0.92, 1.18)  # of the gain: within it the shape may follow, …
_BACK = (0.95, 1.08)  # … and here a change of regime is over
_STILL = 1.08  # … and below this it is noise, or luck
_FOLLOWED = 0.05  # the gain has caught up with the speed that it follows
_SAME_FLEET = 0.15
_NEIGHBOUR = 1.35  # slower by no more than this: others on the same machine, who will come again
_ABSORB_NEIGHBOUR_S, _ABSORB_SLOWER_S, _ABSORB_FASTER_S = 10.0, 120.0, 600.0
_TRUSTED_WEIGHT = 2000.0  # samples that a remembered shape counts for at most


@dataclass(frozen=True, slots=True)
class StepSample:
    """One step of the engine thread."""

    sessions: int
    seconds: float
    kv_tokens: float  # read by it


@dataclass(slots=True)
class _Cell:
    """Sums over the samples of one neighbourhood of loads."""

    a: Vector
    b: Vector
    weight: float = 0.0


class CostModel:
    """Learns θ and the gain. `budget_s` is the time a step may take at most (sets the scale of the vague prior)."""

    def __init__(self, budget_s: float, plateau_tokens: float) -> None:
        self._kv_unit = _SESSIONS * plateau_tokens
        self._coarse_s = _COARSE * budget_s
        self._prior: Vector = budget_s * np.array([0.1, 0.3, 0.3, 0.0])
        # A priori standard deviations: a factor of ten either way, but hardly any curvature.
        spread = budget_s * np.array([1.0, 3.0, 3.0, 0.3])
        self.noise = 0.05  # relative standard deviation of one step, …
        self._noise_weight = 30.0  # … and the samples that it rests on
        self._ridge: Vector = np.diag((self.noise / spread) ** 2)
        self._floor = budget_s * np.array([1e-4, 1e-5, 1e-5, 0.0])
        self._cells: dict[tuple[int, int], _Cell] = {}
        self._a = np.zeros((TERMS, TERMS))  # sums over all cells
        self._b: Vector = np.zeros(TERMS)
        self.theta: Vector = self._prior.copy()
        self._cov: Vector = _inverse(self._ridge)
        self.weight = 0.0  # samples in all cells
        self.calibrated = False  # the prior was measured
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
        x = self._features([s.sessions for s in samples], [s.kv_tokens for s in samples])
        y = np.array([s.seconds for s in samples])
        self.median_s = float(np.median(y))
        misfits, known = self._misfits(x)
        expected = np.maximum(x @ self.theta * misfits, 1e-9)
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

    def _misfits(self, x: Vector) -> tuple[Vector, Mask]:
        """By what factor the shape is off where each row is, and whether that is known.

        No law fits every load, and that is not a new regime.
        """
        factors, known = np.ones(len(x)), np.zeros(len(x), dtype=bool)
        for key, here in _by_cell(x):
            cell = self._cells.get(key)
            if cell is not None and cell.weight >= _WELL_KNOWN:
                factors[here] = cell.b[0] / (cell.a[0] @ self.theta)
                known |= here
        return factors, known

    def _speed(self, ratio: Vector, weights: Vector, kept: Mask, known: Mask) -> float | None:
        """How many times longer steps took than they should have; None: nobody can tell."""
        if known.any():
            return float(np.average(ratio[known], weights=weights[known]))
        if not self._same_fleet():  # the load changed with it: the shape is to blame
            return None
        # Everybody is in every step, where nobody ever was: behind, because the engine is slower. Of loads that are
        # faster than the shape says it is the shape that is wrong, and a lucky minute is not the reason.
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
            self._rescale(self.gain)

    def _same_fleet(self) -> bool:
        (n0, kv0), (n1, kv1) = self._fleets[0], self._fleets[-1]
        full = len(self._fleets) == self._fleets.maxlen
        steady = abs(n1 - n0) <= _SAME_FLEET * n1 and abs(kv1 - kv0) <= _SAME_FLEET * kv1
        return full and steady

    def _rescale(self, factor: float) -> None:
        """The new speed is the truth."""
        self.theta, self._prior = self.theta * factor, self._prior * factor
        self._ridge = self._ridge / factor**2
        for cell in self._cells.values():
            cell.a, cell.b = cell.a / factor**2, cell.b / factor
        self._total()
        self.gain, self.regime_s, self._neighbour_s = 1.0, 0.0, 0.0

    def _learn(self, x: Vector, y: Vector, weight: float) -> None:
        # Errors relative to a long step: what small ones take beside others says little about large ones. Relative to
        # what was expected, not to what was measured, or a step that happened to be short would count more, and the fit
        # come out short.
        expected = x @ self.theta if self.ready else y
        scale = np.hypot(expected, self._coarse_s)
        rows, targets = x / scale[:, None], y / scale
        for key, here in _by_cell(x):
            self._put(key, rows[here], targets[here], weight)
        self._total()
        self._solve()

    def _put(self, key: tuple[int, int], rows: Vector, targets: Vector, weight: float) -> None:
        cell = self._cells.pop(key, None) or _Cell(np.zeros((TERMS, TERMS)), np.zeros(TERMS))
        new = weight * len(targets)
        kept = min(1.0, max(0.0, _CELL_WEIGHT - new) / max(1.0, cell.weight))
        cell.a = kept * cell.a + weight * rows.T @ rows
        cell.b = kept * cell.b + weight * rows.T @ targets
        cell.weight = kept * cell.weight + new
        self._cells[key] = cell  # the newest last: the bound drops the one unseen for longest
        if len(self._cells) > _MAX_CELLS:
            del self._cells[next(iter(self._cells))]

    def _total(self) -> None:
        self._a, self._b, self.weight = np.zeros((TERMS, TERMS)), np.zeros(TERMS), 0.0
        for cell in self._cells.values():
            self._a += cell.a
            self._b += cell.b
            self.weight += cell.weight

    def _solve(self) -> None:
        """Ridge, with coefficients below their floor held there and the others solved again."""
        a, b = self._a + self._ridge, self._b + self._ridge @ self._prior
        free = np.ones(TERMS, dtype=bool)
        theta = self._floor.copy()
        for _ in range(TERMS):
            rest = b[free] - a[np.ix_(free, ~free)] @ theta[~free]
            theta[free] = _inverse(a[np.ix_(free, free)]) @ rest
            below = free & (theta < self._floor)
            if not below.any():
                break
            theta[below] = self._floor[below]
            free &= ~below
        self.theta, self._cov = theta, _inverse(a)

    # -- asking ----------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """True once the shape means something."""
        return self.calibrated or self.weight >= _ENOUGH

    def _features(self, sessions: Any, kv_tokens: Any) -> Vector:
        n, z = np.asarray(sessions, float) / _SESSIONS, np.asarray(kv_tokens, float) / self._kv_unit
        return np.stack([np.ones_like(n), n, z, z**CURVE], axis=-1)

    def coefficients(self) -> tuple[float, float, float, float]:
        """(seconds, per session, per token, per token^CURVE), gain included."""
        t, u = self.theta * (self.gain if self.gain > _STILL else 1.0), self._kv_unit
        return float(t[0]), float(t[1]) / _SESSIONS, float(t[2]) / u, float(t[3]) / u**CURVE

    def doubt(self, sessions: float, kv_tokens: float) -> float:
        """Two standard errors of the shape at this point, as a share of its value."""
        x = self._features(sessions, kv_tokens)
        sd = self.noise * sqrt(max(0.0, float(x @ self._cov @ x)))
        return min(2.0, 2.0 * sd / max(1e-9, float(x @ self.theta)))

    # -- memory ----------------------------------------------------------------

    def export(self, most: float = _TRUSTED_WEIGHT) -> dict[str, Any]:
        """What `restore` takes: numbers and lists only. It will count for `most` samples at most."""
        a = self._a + self._ridge
        scale = min(1.0, most / max(1.0, self.weight))
        return {"theta": self.theta.tolist(), "precision": (a * scale).tolist()}

    def restore(self, state: dict[str, Any]) -> None:
        """Start from what was learned before. Raises ValueError if it is not that."""
        theta, precision = np.array(state["theta"], float), np.array(state["precision"], float)
        if theta.shape != (TERMS,) or precision.shape != (TERMS, TERMS):
            raise ValueError("the remembered cost model has another shape")
        if not (np.isfinite(theta).all() and np.isfinite(precision).all() and theta[0] > 0):
            raise ValueError("the remembered cost model is not finite")
        self.theta, self._prior = theta.copy(), theta.copy()
        self._ridge = precision
        self._cov = _inverse(self._ridge)
        self._cells.clear()
        self._a, self._b = np.zeros((TERMS, TERMS)), np.zeros(TERMS)
        self.calibrated = True


def _by_cell(x: Vector) -> list[tuple[tuple[int, int], Mask]]:
    """The cells that these rows are in, and which of them are there."""
    places = np.floor(np.log(np.maximum(x[:, 1:3], 1e-9)) / np.log(_CELL_RATIO)).astype(int)
    cells = np.unique(places, axis=0)
    return [((int(n), int(kv)), (places == (n, kv)).all(axis=1)) for n, kv in cells]


def _median(values: Vector, weights: Vector) -> float:
    """The value that half of the weight does not exceed."""
    order = np.argsort(values)
    sums = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(sums, sums[-1] / 2)]])


def _inverse(a: Vector) -> Vector:
    """Of a symmetric positive matrix whose rows differ by many orders of magnitude, or hardly at all."""
    scale = np.sqrt(np.maximum(np.diag(a), 1e-300))
    alike = a / np.outer(scale, scale) + 1e-9 * np.eye(len(a))
    return np.linalg.inv(alike) / np.outer(scale, scale)
