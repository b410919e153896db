"""How far what was really served reaches. Pure.

A fleet of young sessions proves little: its windows are not full, and a model fitted to it extrapolates to a load that
nobody has seen. Evidence is the largest load ever served in time, in full-age sessions: sessions × mean fill of their
windows. Where calls end, the fleet never gets to full age; the fill it settles at follows from the departures that were
really observed, so steady churn is judged by what it can show.
"""

import math

from admission.latency_window import Histogram, LatencyWindow
from admission.settings import Temper

_MEMORY_S = 300.0  # of departures
_REFUTED = 0.98  # of a load that led to congestion may have been served after all
_PRIOR_S = 60.0  # session-seconds of watching before departures are believed
_WITNESSES = 4_000  # ticks in time for a load to count as proven, where steps vary little
_WATCHED = 240  # intervals in which the slowest tick in a thousand is looked for, …
_ENOUGH = 1_000  # … in so many ticks at least …
_EASY = 0.5  # … and its share of the budget up to which growing is no risk, …
_TIGHT = 0.8  # … and from which it is one
_EASILY = 2.0  # the fastest pace, where it takes a fifth of the budget


class Departures:
    """The hazard of leaving, per session and second."""

    def __init__(self, fill_s: float) -> None:
        self._fill_s = fill_s
        self._left = 0.0
        self._watched_s = 0.0  # session-seconds

    def left(self) -> None:
        """One session ended."""
        self._left += 1

    def watch(self, sessions: float, seconds: float) -> None:
        """So many sessions were watched for so long."""
        kept = math.exp(-seconds / _MEMORY_S)
        self._left *= kept
        self._watched_s = self._watched_s * kept + sessions * seconds

    @property
    def hazard(self) -> float:
        return self._left / max(self._watched_s, _PRIOR_S)

    @property
    def settled_fill(self) -> float:
        """Mean fill that a steady fleet settles at: 1 where nobody leaves.

        The mean of min(1, age/fill_s) over ages that are exponential with the hazard.
        """
        lost = self.hazard * self._fill_s
        return (1 - math.exp(-lost)) / lost if lost > 1e-3 else 1.0


class Evidence:
    """The largest load ever served in time, in full-age sessions."""

    def __init__(
        self,
        temper: Temper,
        served: float = 0.0,
        inherited: float = 0.0,
        capacity: float = math.inf,
    ) -> None:
        """`inherited`: what an earlier run or a calibration proved, when the model allowed `capacity` sessions."""
        self._temper = temper
        self._ticks = LatencyWindow(_WATCHED)
        self.served = served
        self.proven = 0.0  # … as far as there were ticks enough to witness one in a thousand
        self._inherited, self._capacity_then = inherited, capacity
        self.present = 0.0  # what is being served now

    def saw(self, sessions: float, fill: float, ticks: Histogram, noise: float) -> None:
        """So many sessions, filled to this share of their windows, are served in time, and these are their ticks."""
        self._ticks.turn(ticks)
        self.present = sessions * fill
        self.served = max(self.served, self.present)
        witnesses = ticks.total / _WITNESSES * self.pace(noise)
        self.proven += max(0.0, self.present - self.proven) * min(1.0, witnesses)

    def pace(self, noise: float) -> float:
        """How fast the fleet may grow near the top, in what a steady machine allows where ticks are nearly late.

        The noisier the steps, the more ticks it takes for the slowest in a thousand to show; but where even that one is
        far from its budget there is no tail to wait for, and the farther it is the sooner a load is proven.
        """
        watched = self._ticks.recent
        slowest = watched.quantile(0.999) if watched.total >= _ENOUGH else _TIGHT
        ease = (_TIGHT - slowest) / (_TIGHT - _EASY)
        return max(min(1.0, self._temper.quiet_noise / noise), min(_EASILY, ease))

    def refuted(self) -> None:
        """What is served now is more than can be: congestion."""
        if self.present:
            self.served = min(self.served, _REFUTED * self.present)
            self.proven = min(self.proven, self.served)
            self._inherited = min(self._inherited, self.served)
            self.present = 0.0

    def vouched(self, capacity: float) -> float:
        """The load that is proven, where the model allows `capacity` sessions.

        An earlier proof holds for the machine of that time: where steps take longer now, for less. A calibration has
        the machine to itself, and on two cores that serve their callers too a step takes up to 40 % longer.
        """
        then = self._capacity_then  # 0 where not even one session fitted
        left = 1.0 if capacity >= then else capacity / then
        return max(self.proven, self._inherited * left)

    def bound(self, capacity: float, settled_fill: float, noise: float) -> float:
        """Sessions that may be in where the model says `capacity`.

        However little was shown, a share of the modelled capacity is trusted. Beyond that a stretch above the largest
        load served, and near the top only a creep above the load that is proven (one session at least), half of it
        where the fleet is young again and shows nothing new.
        """
        temper = self._temper
        creep = temper.creep * self.pace(noise)
        shown, proven = self.served / settled_fill, self.vouched(capacity) / settled_fill
        present = min(self.present / settled_fill, proven)
        crept = max((1 + creep / 2) * proven, present + max(1.0, creep * present))
        near_top = max(temper.creep_from * capacity, crept)
        return max(temper.trust * capacity, min(temper.stretch * shown, near_top))
