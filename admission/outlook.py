"""What the controller believes about today's fleet at full age: cost model, tail and projection in one place. Pure."""

from math import inf

from admission import projection
from admission.cost_model import CostModel
from admission.fleet import Fleet
from admission.latency_window import Histogram
from admission.projection import Demand
from admission.tail import TailRatio

# Where steps vary, hiccups coincide now and then, and a few such moments make all the misses of a run: steady fleets of
# the scenario `noisy` (`steady_miss` of plants B and F, 250 s) miss more than one tick in a thousand in 8 of 32 runs at
# 0.98 of the capacity, in 2 at 0.96 and in none at 0.94. Latency is nearly vertical there, so the distance is in load.
_SPARED_BY_NOISE, _QUIET = 0.30, 0.08
_ROUNDS, _NEAR = 8, 1e-3  # of Newton's method: at most; until a load moves by no more than this


class Outlook:
    """Learns in `learn`, is brought up to date by `refresh`, and answers `load` in O(1)."""

    def __init__(
        self, cost: CostModel, tail: TailRatio, target_share: float, crowd_share: float
    ) -> None:
        self.cost = cost
        self.tail = tail
        self.capacity = (
            inf  # ordinary sessions of today's mix that would fit; no model yet: no bound
        )
        self.doubt = 0.0  # how much slower than likely everything is taken to be, a share
        self._spared = 0.0  # … and how much of that is for hiccups that coincide
        self._target_share = target_share
        self._crowd_share = crowd_share
        self._coefficients = cost.coefficients()
        self._longest: dict[float, float] = {}  # d* by urgency, since the last refresh

    def load(self, demand: Demand) -> float:
        """What this fleet asks for at full age, as a share of what fits: above 1 ticks would be late."""
        if demand.rate <= 0:
            return 0.0
        c, longest_s = self._coefficients, self._longest_step(demand.urgency)
        usual = projection.load(c, longest_s, demand.rate, demand.tokens)
        crowded = projection.load(c, 1 / demand.pace, demand.rate, demand.tokens)
        return max(usual, crowded / self._crowd_share) * (1 + self._spared)

    def learn(self, ticks: Histogram, demand: Demand, fill: float) -> None:
        """An interval's ticks of a fleet whose windows were filled to this share."""
        if self.cost.regime.lasts_s > 0:  # the engine is slower than it was: that is no tail
            self.tail.forget_recent()
        elif self.cost.ready:
            c = self.cost.coefficients()
            step_s = projection.step_now(c, demand.rate, demand.tokens * fill, 1 / demand.urgency)
            self.tail.observe(ticks, demand.urgency * step_s, self.cost.noise)

    def forget_recent(self) -> None:
        """What was measured last was a fault."""
        self.cost.forget_recent()
        self.tail.forget_recent()

    def refresh(self, fleet: Fleet) -> None:
        """After learning: the bounds until the next time."""
        self._coefficients = likely = self.cost.coefficients()
        self._longest.clear()
        if not self.cost.ready:
            self.capacity = inf
            return
        demand = fleet.demand if fleet.active else fleet.with_one(fleet.ordinary)
        self._spared = _SPARED_BY_NOISE * max(0.0, self.cost.noise - _QUIET)
        # A law of few and young sessions knows next to nothing about many old ones, and may even say that more of them
        # cost no more. How slow the slowest likely law is, by load, is a convex function, and the law that is slowest
        # at one load is its tangent there: this is Newton's method, and comes down to the load that just fits.
        times, step_s, before = self._times_to_full(demand), self._longest_step(demand.urgency), inf
        for _ in range(_ROUNDS):
            if abs(times - before) <= _NEAR * times:
                break
            held, before = times * step_s, times
            self._coefficients = self.cost.careful(held * demand.rate, held * demand.tokens)
            times = self._times_to_full(demand)
        full = (step_s, times * demand.rate, times * demand.tokens)
        slower = projection.load(self._coefficients, *full) / projection.load(likely, *full)
        self.doubt = slower * (1 + self._spared) - 1
        self.capacity = times * demand.rate / fleet.ordinary.rate

    def _times_to_full(self, demand: Demand) -> float:
        """How many fleets like this one would fit, by the usual step and by the crowded one."""
        more, share = 1 + self._spared, self._crowd_share
        usual, crowded = (
            projection.scale_to_full(
                tuple(x * factor for x in self._coefficients), step_s, demand.rate, demand.tokens
            )
            for step_s, factor in (
                (self._longest_step(demand.urgency), more),
                (1 / demand.pace, more / share),
            )
        )
        return min(usual, crowded)

    def _longest_step(self, urgency: float) -> float:
        """d*: the mean step at which the slowest tick in a thousand reaches its target."""
        step_s = self._longest.get(urgency)
        if step_s is None:
            even = self.tail.even_limit(self._target_share, self.cost.noise)
            step_s = even / urgency
            self._longest[urgency] = step_s
        return step_s
