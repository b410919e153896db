"""How far what was really served reaches. Pure.

A fleet of young sessions proves little: its windows are not full, and a model fitted to it extrapolates to a load that
nobody has seen. Evidence is the largest load ever served in time, in full-age sessions: sessions × mean fill of their
windows. Where calls end, the fleet never gets to full age; the fill it settles at follows from the departures that were
really observed, so steady churn is judged by what it can show.
"""

import math

from admission.settings import Temper

_MEMORY_S = 300.0  # of departures
_REFUTED = 0.98  # of a load that led to congestion may have been served after all
_PRIOR_S = 60.0  # session-seconds of watching before departures are believed
_WITNESSES = 4_000  # ticks in time for a load to count as proven, where steps vary little


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
        self, served: float = 0.0, inherited: float = 0.0, capacity: float = math.inf
    ) -> None:
        """`inherited`: what an earlier run or a calibration proved, when the model allowed `capacity` sessions."""
        self.served = served
        self.proven = 0.0  # … as far as there were ticks enough to witness one in a thousand
        self._inherited, self._capacity_then = inherited, capacity
        self.present = 0.0  # what is being served now

    def saw(self, sessions: float, fill: float, witnesses: float) -> None:
        """So many sessions, filled to this share of their windows, are served in time.

        `witnesses`: their ticks, as a share of those that prove a load beyond the largest proven yet; `share_of_proof`.
        """
        self.present = sessions * fill
        self.served = max(self.served, self.present)
        self.proven += max(0.0, self.present - self.proven) * min(1.0, witnesses)

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

    def bound(self, capacity: float, settled_fill: float, noise: float, temper: Temper) -> float:
        """Sessions that may be in where the model says `capacity`.

        However little was shown, a share of the modelled capacity is trusted. Beyond that a stretch above the largest
        load served, and near the top only a creep above the load that is proven, half of it where the fleet is young
        again and shows nothing new. The noisier the steps, the slower: the tail takes longer to show.
        """
        creep = temper.creep * min(1.0, temper.quiet_noise / noise)
        shown, proven = self.served / settled_fill, self.vouched(capacity) / settled_fill
        present = min(self.present / settled_fill, proven)
        near_top = max(
            temper.creep_from * capacity, (1 + creep / 2) * proven, (1 + creep) * present
        )
        return max(temper.trust * capacity, min(temper.stretch * shown, near_top))


def share_of_proof(ticks: float, noise: float, temper: Temper) -> float:
    """So many ticks in time, as a share of those that witness how slow the slowest in a thousand are."""
    return ticks / _WITNESSES * min(1.0, temper.quiet_noise / noise)
