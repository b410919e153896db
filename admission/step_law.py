"""The law of a step's time: a ridge regression over what steps took, by neighbourhood of load. Pure.

    law(n, kv) = θ0 + θ1·n + θ2·kv + θ3·kv^CURVE      n sessions in the step, kv tokens read by it

Its prior is a calibration where there was one. Samples are kept as sums by cell of (n, kv), each cell with a bounded
weight: what is seen again replaces what was seen there before, and what was seen at other loads is not forgotten,
because the curvature of the law shows only between loads.
"""

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
_PRIOR_NOISE = 0.05  # relative standard deviation of a step that the prior is weighed against
TRUSTED_WEIGHT = 2000.0  # samples that a remembered law counts for at most


@dataclass(slots=True)
class _Cell:
    """Sums over the samples of one neighbourhood of loads."""

    a: Vector
    b: Vector
    weight: float = 0.0


class StepLaw:
    """θ. `budget_s` is the time a step may take at most (sets the scale of the vague prior), `coarse_s` what two steps
    differ by however short they are."""

    def __init__(self, budget_s: float, coarse_s: float, plateau_tokens: float) -> None:
        self._kv_unit = _SESSIONS * plateau_tokens
        self._coarse_s = coarse_s
        self._prior: Vector = budget_s * np.array([0.1, 0.3, 0.3, 0.0])
        # A priori standard deviations: a factor of ten either way, but hardly any curvature.
        spread = budget_s * np.array([1.0, 3.0, 3.0, 0.3])
        self._ridge: Vector = np.diag((_PRIOR_NOISE / spread) ** 2)
        self._floor = budget_s * np.array([1e-4, 1e-5, 1e-5, 0.0])
        self._cells: dict[tuple[int, int], _Cell] = {}
        self._a = np.zeros((TERMS, TERMS))  # sums over all cells
        self._b: Vector = np.zeros(TERMS)
        self.theta: Vector = self._prior.copy()
        self._precision: Vector = self._ridge
        self._covariances: dict[bytes, Vector] = {}
        self.weight = 0.0  # samples in all cells

    def features(self, sessions: Any, kv_tokens: Any) -> Vector:
        """A row per step: shape (steps, TERMS), or (TERMS,) for one step."""
        n, z = np.asarray(sessions, float) / _SESSIONS, np.asarray(kv_tokens, float) / self._kv_unit
        return np.stack([np.ones_like(n), n, z, z**CURVE], axis=-1)

    def misfits(self, x: Vector) -> tuple[Vector, Mask]:
        """By what factor the law is off where each row is, and whether that is known.

        No law fits every load, and that is not a new regime.
        """
        factors, known = np.ones(len(x)), np.zeros(len(x), dtype=bool)
        for key, here in _by_cell(x):
            cell = self._cells.get(key)
            if cell is not None and cell.weight >= _WELL_KNOWN:
                factors[here] = cell.b[0] / (cell.a[0] @ self.theta)
                known |= here
        return factors, known

    def learn(self, x: Vector, y: Vector, weight: float, *, believed: bool) -> None:
        """Steps took `y` seconds, each counting `weight` times. `believed`: the law means something already."""
        # Errors relative to a long step: what small ones take beside others says little about large ones. Relative to
        # what was expected, not to what was measured, or a step that happened to be short would count more, and the fit
        # come out short.
        expected = x @ self.theta if believed else y
        scale = np.hypot(expected, self._coarse_s)
        rows, targets = x / scale[:, None], y / scale
        for key, here in _by_cell(x):
            self._put(key, rows[here], targets[here], weight)
        self._total()
        self._solve()

    def rescale(self, factor: float) -> None:
        """Every step takes so many times what it took."""
        self.theta, self._prior = self.theta * factor, self._prior * factor
        self._ridge = self._ridge / factor**2
        for cell in self._cells.values():
            cell.a, cell.b = cell.a / factor**2, cell.b / factor
        self._total()

    def coefficients(self, theta: Vector, gain: float) -> tuple[float, float, float, float]:
        """(seconds, per session, per token, per token^CURVE) of θ, where every step takes `gain` times as long."""
        t, u = theta * gain, self._kv_unit
        return float(t[0]), float(t[1]) / _SESSIONS, float(t[2]) / u, float(t[3]) / u**CURVE

    def careful(self, x: Vector, noise: float) -> Vector:
        """Of all laws that what was seen leaves likely, the θ that is slowest at this point: two standard errors above.

        The end of the confidence ellipsoid in the direction of x, as an upper confidence bound of linear bandits has it
        (Abbasi-Yadkori, Pál and Szepesvári, NIPS 2011). Where much was seen it is hardly slower.
        """
        free = np.ones(TERMS, dtype=bool)
        for _ in range(TERMS):
            toward = self._covariance(free) @ x
            theta: Vector = self.theta + 2 * noise / sqrt(max(1e-300, float(x @ toward))) * toward
            below = free & (theta < self._floor)
            if not below.any():
                return theta
            free &= ~below  # no such law: those stay as they are
        return self.theta

    def _covariance(self, free: Mask) -> Vector:
        """Of these coefficients while the others stay, where steps vary by 1; kept until more is learned."""
        key = free.tobytes()
        if key not in self._covariances:
            found = np.zeros((TERMS, TERMS))
            found[np.ix_(free, free)] = _inverse(self._precision[np.ix_(free, free)])
            self._covariances[key] = found
        return self._covariances[key]

    # -- memory ----------------------------------------------------------------

    def export(self, most: float) -> dict[str, Any]:
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
        self._precision = precision
        self._covariances.clear()
        self._cells.clear()
        self._a, self._b = np.zeros((TERMS, TERMS)), np.zeros(TERMS)

    # -- inside ----------------------------------------------------------------

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
        self.theta, self._precision = theta, a
        self._covariances.clear()


def _by_cell(x: Vector) -> list[tuple[tuple[int, int], Mask]]:
    """The cells that these rows are in, and which of them are there."""
    places = np.floor(np.log(np.maximum(x[:, 1:3], 1e-9)) / np.log(_CELL_RATIO)).astype(int)
    cells = np.unique(places, axis=0)
    return [((int(n), int(kv)), (places == (n, kv)).all(axis=1)) for n, kv in cells]


def _inverse(a: Vector) -> Vector:
    """Of a symmetric positive matrix whose rows differ by many orders of magnitude, or hardly at all."""
    scale = np.sqrt(np.maximum(np.diag(a), 1e-300))
    alike = a / np.outer(scale, scale) + 1e-9 * np.eye(len(a))
    return np.linalg.inv(alike) / np.outer(scale, scale)
