"""What keeps the ticks in time: everything about a fleet that latency and step times can tell. Pure.

Of an ordinary fleet as it will be at full age:

    model      every tick of the fleet at full age stays within its budget        (outlook.py)
    evidence   … and that load is not far beyond the largest ever served          (evidence.py)
    aimd       what latency itself has allowed so far                             (aimd.py)
    latency    nobody enters while ticks are close to late                        (aimd.py)
"""

from math import inf

from admission.aimd import AimdLimit
from admission.cost_model import CostModel, StepSample
from admission.evidence import Departures, Evidence
from admission.fleet import Fleet
from admission.latency_window import LatencyWindow
from admission.learned import Learned
from admission.obstacle import Obstacle
from admission.outlook import Outlook
from admission.projection import Kind
from admission.resources import Reading
from admission.settings import AdmissionSettings, crowd_share
from admission.tail import Tail, TailRatio

ROUNDING = 1e-6  # of a session


class Tempo:
    """Learns in `learn`, once an interval; sets its bounds in `plan`, and answers `obstacle` in O(1)."""

    def __init__(
        self, settings: AdmissionSettings, fleet: Fleet, learned: Learned | None = None
    ) -> None:
        shape, temper = settings.shape, settings.temper
        self._settings = settings
        self._fleet = fleet
        self.window = LatencyWindow()
        self.evidence = Evidence(temper)
        self.departures = Departures(shape.fill_s)
        cost = CostModel(1 / fleet.ordinary.urgency, shape.plateau_tokens)
        tail = TailRatio()
        # Where ticks are not made of steps nothing is learned by starting small.
        start = 2 * temper.min_limit if settings.paced else settings.max_sessions
        if learned is not None:
            cost.restore(learned.cost)
            tail = TailRatio(Tail(*learned.tail), learned.heaviest, learned.tail_weight)
            self.evidence = Evidence(temper, learned.served, learned.proven, learned.capacity)
            start = max(start, learned.limit)
        crowded = crowd_share(temper, shape.tick_s, skips_late=settings.skips_late)
        self.outlook = Outlook(cost, tail, temper.target_share, crowded)
        self.aimd = AimdLimit(temper, start, settings.max_sessions)
        self.shown = inf  # sessions that there is evidence for
        self.holding = False  # measured latency forbids anybody new

    @property
    def room(self) -> float:
        """Ordinary sessions of today's mix that stay in time; infinite until anything is known."""
        return min(self.aimd.value, self.outlook.capacity, self.shown)

    def obstacle(self, kind: Kind, spared: int) -> Obstacle | None:
        """The first bound that refuses another session of this kind, with so many ordinary ones kept for others."""
        if self.holding:
            p99 = self.window.recent.quantile(0.99)
            return Obstacle("capacity", "latency", p99, self._settings.temper.hold_share)
        units = self._fleet.units + self._fleet.units_of(kind) + spared
        for bound, limit in (("aimd", self.aimd.value), ("evidence", self.shown)):
            if units > limit + ROUNDING:
                return Obstacle("capacity", bound, units, limit)
        if self.is_modelled:
            load = self.outlook.load(self._fleet.with_one(kind, spared))
            if load > 1:
                return Obstacle("capacity", "model", load, 1)
        return None

    @property
    def is_modelled(self) -> bool:
        """True if the cost model may refuse anybody."""
        settings, cost = self._settings, self.outlook.cost
        return settings.age_terms and (cost.ready if settings.paced else cost.calibrated)

    # -- learning ------------------------------------------------------------

    def observe_step(self, sessions: int, seconds: float, residents: int, tokens: float) -> None:
        """One engine step with so many sessions in it, while so many contexts held so many tokens in all."""
        read = tokens * sessions / max(1, residents)
        self.outlook.cost.add(StepSample(sessions, seconds, read))

    def turn(self, interval_s: float) -> None:
        """An interval is over: look at its ticks."""
        self.window.turn()
        self.departures.watch(self._fleet.active, interval_s)

    def stalled(self) -> None:
        """What was measured says nothing about load."""
        self.window.forget()
        self.outlook.forget_recent()

    def learn(self, now: float, reading: Reading, interval_s: float, *, quiet: bool) -> None:
        """Digest the interval. `quiet`: nobody entered in it."""
        self.outlook.cost.fit((reading.residents, reading.resident_tokens), interval_s)
        fleet, window, temper = self._fleet, self.window, self._settings.temper
        self.holding = self.aimd.hold(window)
        before = self.aimd.decreases
        self.aimd.update(now, window, fleet.units, quiet=quiet)
        if self.aimd.decreases > before and not self.outlook.cost.regime.lasts_s:
            self.evidence.refuted()
        if not fleet.active or not window.last.total:
            return
        fill = min(1.0, reading.resident_tokens / fleet.plateau_tokens)
        if now - self.aimd.decreased_at > temper.doubt_s:
            age = min(1.0, fill / self._settings.shape.full_share)
            self.evidence.saw(fleet.units, age, window.last, self.outlook.cost.noise)
        if self._settings.paced:
            self.outlook.learn(window.last, fleet.demand, fill)

    def plan(self) -> None:
        """The bounds until the next interval is over."""
        self.shown = inf
        if not self.is_modelled:
            return
        outlook = self.outlook
        outlook.refresh(self._fleet)
        if self._settings.paced:
            fill = self.departures.settled_fill
            self.shown = self.evidence.bound(outlook.capacity, fill, outlook.cost.noise)
