"""The limit that only listens to measured latency: additive increase, multiplicative decrease. Pure.

Decrease: where ticks are late for several intervals in a row (a hiccup is over sooner, and refusing people would not
have prevented it); once per congestion event; from `min(limit, active)`, because a limit far above the fleet would need
many cuts before one is felt; and never below half the fleet. Increase: only if the limit is what kept people out, and
only after a full interval in which nobody entered, so that what is measured is the fleet that is there.
"""

from admission.latency_window import LatencyWindow
from admission.settings import Temper


class AimdLimit:
    """Units are ordinary sessions."""

    def __init__(self, temper: Temper, start: float, ceiling: float) -> None:
        self._temper = temper
        self._ceiling = max(ceiling, temper.min_limit)
        self.value = min(max(start, temper.min_limit), self._ceiling)
        self.slow_start = True  # until the first congestion
        self.decreased_at = float("-inf")
        self.decreases = 0
        self._hot = 0  # hot intervals in a row

    def hold(self, window: LatencyWindow) -> bool:
        """True while what is measured forbids anybody new."""
        return window.recent.quantile(0.99) > self._temper.hold_share

    def update(self, now: float, window: LatencyWindow, active: float, *, quiet: bool) -> None:
        """An interval is over. `quiet`: nobody entered during it."""
        temper, last = self._temper, window.last
        p99 = window.recent.quantile(0.99)
        is_hot = p99 > temper.hot_share and last.quantile(0.99) > temper.hot_share
        is_missing = last.miss_ratio > temper.miss_ratio
        self._hot = self._hot + 1 if is_hot or is_missing else 0
        cooled = now - self.decreased_at > temper.cooldown_s
        if not cooled or not last.total:
            return
        if self._hot >= temper.standing:
            self._decrease(now, active)
        elif p99 < temper.low_share and quiet:
            self._increase(active)

    def _decrease(self, now: float, active: float) -> None:
        temper = self._temper
        cut = min(self.value, active) * temper.decrease
        self.value = min(self.value, max(cut, 0.5 * active, temper.min_limit))
        self.slow_start = False
        self.decreased_at = now
        self.decreases += 1

    def _increase(self, active: float) -> None:
        temper = self._temper
        if self.slow_start and active >= 0.5 * self.value:
            self.value += max(4.0, 0.25 * active)
        elif active >= 0.95 * self.value:
            self.value += max(0.25, temper.increase * self.value)
        self.value = min(self.value, self._ceiling)
