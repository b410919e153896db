"""The door that never over-admits: AIMD on measured tick latency, over a fleet priced at full age. Pure.

A fleet of young sessions is cheap, because its windows are not full; by the time latency says so, nobody can be sent
away any more. So what is compared with the limit is today's fleet *as it will be*:

    model      every tick of the fleet at full age stays within its budget        (projection.py, cost_model.py)
    evidence   … and that load is not far beyond the largest ever served          (evidence.py)
    aimd       what latency itself has allowed so far; also corrects the model    (aimd.py)
    latency    nobody enters while ticks are close to late                        (aimd.py)
    kv         every session's plateau fits the pool                              (resources.py)
    ingest     the cores carry the hearing and speaking                           (resources.py)
    places     configured: in all, per tenant, reserved                           (settings.py)

Then joins are paced. `try_admit` is O(1); learning happens in `control`, every half second.
"""

from dataclasses import dataclass
from math import floor, inf

from admission import projection
from admission.aimd import AimdLimit
from admission.cost_model import CostModel, StepSample
from admission.evidence import Departures, Evidence
from admission.fleet import Fleet
from admission.latency_window import LatencyWindow
from admission.learned import Learned
from admission.pacing import JoinTokens, Probation
from admission.port import Lease, Reason, Rejection, Request
from admission.projection import Coefficients, Demand, Kind
from admission.resources import IngestLoad, KvPool, StallLatch
from admission.retry import RetryAdvice
from admission.settings import AdmissionSettings
from admission.tail import TailRatio

_MESSAGES: dict[Reason, str] = {
    "capacity": "All sessions that can be kept in time are in use; try again later.",
    "kv": "The memory for sessions is in use; try again later.",
    "quota": "This key has all the sessions it may have at once.",
    "join_rate": "Too many sessions are starting at once; try again in a moment.",
    "probation": "The newest sessions are still being watched; try again in a moment.",
    "draining": "The server is shutting down and takes no new sessions.",
    "engine_stalled": "The engine is not keeping up; no new sessions for now.",
    "engine_down": "The engine is not running.",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """What the machine's dials say at the end of an interval."""

    residents: int = 0  # sessions with a context
    resident_tokens: float = 0.0  # in all contexts
    held_blocks: float = 0.0
    step_age_s: float = 0.0  # of the step under way
    cpu_s: float = 0.0  # CPU time since the last reading, the engine's own thread left out


class Controller:
    """Implements `AdmissionPort`."""

    def __init__(self, settings: AdmissionSettings, learned: Learned | None = None) -> None:
        self.settings = settings
        shape, temper = settings.shape, settings.temper
        self.fleet = Fleet(shape)
        ordinary = self.fleet.ordinary
        self.window = LatencyWindow()
        self.cost = CostModel(1 / ordinary.urgency, shape.plateau_tokens)
        self.tail = TailRatio()
        self.evidence = Evidence()
        self.departures = Departures(shape.fill_s)
        self.pool = KvPool(settings.pool_blocks, temper.kv_reserve)
        self.ingest = IngestLoad(settings.cores, temper.cpu_share)
        self.stall = StallLatch(temper.stall_hold_s)
        self.join_s = 0.03 * shape.tick_s
        start = 2 * temper.min_limit
        if learned is not None:
            self.cost.restore(learned.cost)
            self.tail = TailRatio(learned.tail, learned.heaviest)
            self.join_s = learned.join_s
            self.evidence.served, start = learned.served, learned.limit
        self.aimd = AimdLimit(temper, start, settings.max_sessions)
        self.joins = JoinTokens(temper.min_limit)
        self.probation = Probation(max(temper.probation_s, 5 * shape.tick_s))
        self.retry = RetryAdvice()
        self.capacity = inf  # by the model, in ordinary sessions of today's mix
        self.shown = inf  # by evidence
        self.holding = False  # measured latency forbids anybody new
        self.decisions = {"admitted": 0, "rejected": 0}
        self._closed: Reason | None = None
        self._entered_at = -inf  # the last admission
        self._controlled_at: float | None = None  # None before the first `control`
        self._coefficients = self.cost.coefficients()
        self._doubt = 0.0  # share added to the projected load
        self._longest: dict[float, float] = {}  # d* by urgency, since the last control
        self.plan()

    # -- the door --------------------------------------------------------------

    def try_admit(self, now: float, request: Request) -> Lease | Rejection:
        """A place, or why not. O(1)."""
        kind = self.fleet.kind_of(request)
        premium = request.premium or request.tenant in self.settings.quotas.premium
        refused = self._closed_reason() or self._bound_in_the_way(kind, premium, request.tenant)
        refused = refused or self._pacing(now)
        if refused is not None:
            return self._reject(*refused)
        lease = Lease(request.tenant, now, request=request)
        self.fleet.enter(lease, kind, premium=premium)
        self.pool.promise(self.fleet.blocks_of(kind))
        self.probation.entered(lease)
        self.joins.take()
        self.retry.admitted()
        self._entered_at = now
        self.decisions["admitted"] += 1
        return lease

    def release(self, now: float, lease: Lease) -> None:
        """Give the place back. A second release of the same lease changes nothing."""
        if lease.released:
            return
        assert lease.request is not None, f"released {lease} of another door"
        lease.released = True
        kind = self.fleet.kind_of(lease.request)
        premium = lease.request.premium or lease.tenant in self.settings.quotas.premium
        self.fleet.leave(lease, kind, premium=premium)
        self.pool.free(self.fleet.blocks_of(kind))
        self.probation.left(now, lease)
        self.departures.left()

    def close(self, reason: Reason) -> None:
        """Refuse everyone from now on. The first reason stands."""
        if self._closed is None:
            self._closed = reason

    def reopen(self, reason: Reason) -> None:
        """Let people in again, if it was closed for `reason`; closed for another it stays closed."""
        if self._closed == reason:
            self._closed = None

    @property
    def active(self) -> int:
        """Leases out."""
        return self.fleet.active

    @property
    def limit(self) -> int:
        """Ordinary sessions that may be out, with those that are."""
        room = min(self.aimd.value, self.capacity, self.shown, self._ingest_bound())
        by_load = self.fleet.active + floor(room - self.fleet.units + 1e-6)
        return max(0, min(self.settings.max_sessions, by_load, self._kv_limit()))

    # -- why not ---------------------------------------------------------------

    def _closed_reason(self) -> tuple[Reason, str, float, float] | None:
        if self._closed is not None:
            return self._closed, "closed", 0, 0
        if self.stall.is_set:
            return "engine_stalled", "stall", 0, 0
        return None

    def _bound_in_the_way(
        self, kind: Kind, premium: bool, tenant: str
    ) -> tuple[Reason, str, float, float] | None:
        """(reason, bound, used with this session, limit) of the first bound that refuses."""
        settings, fleet = self.settings, self.fleet
        quota = settings.quotas.of(tenant)
        mine = fleet.by_tenant[tenant] + 1 if quota else 0
        if mine > quota:
            return "quota", "quota", mine, quota
        spared = 0 if premium else max(0, settings.quotas.reserved - fleet.premium)
        if fleet.active + 1 + spared > settings.max_sessions:
            return "capacity", "places", fleet.active + 1 + spared, settings.max_sessions
        if settings.kv_terms:
            blocks = fleet.blocks_of(kind)
            if not self.pool.fits(blocks * (1 + spared)):
                return "kv", "kv", self.pool.promised_blocks + blocks, self.pool.usable_blocks
            if not settings.bounded and self.pool.wall_s < settings.temper.wall_horizon_s:
                return "kv", "kv_wall", settings.temper.wall_horizon_s, self.pool.wall_s
        if self.holding:
            return "capacity", "latency", self.window.recent.quantile(0.99), settings.temper.hold_share
        return self._load_in_the_way(kind, spared)

    def _load_in_the_way(
        self, kind: Kind, spared: int
    ) -> tuple[Reason, str, float, float] | None:
        units = self.fleet.units + self.fleet.units_of(kind) + spared
        for bound, limit in (
            ("aimd", self.aimd.value),
            ("evidence", self.shown),
            ("ingest", self._ingest_bound()),
        ):
            if units > limit + 1e-6:
                return "capacity", bound, units, limit
        if self.settings.age_terms and self.cost.ready:
            load = self.projected_load(kind, spared)
            if load > 1:
                return "capacity", "model", load, 1
        return None

    def _pacing(self, now: float) -> tuple[Reason, str, float, float] | None:
        tokens = self.joins.available(now)
        if tokens < 1:
            return "join_rate", "join_rate", tokens, 1
        if self.cost.calibrated:
            return None  # what a join will cost is known
        temper = self.settings.temper
        young = self.probation.count(now)
        allowed = max(temper.min_limit, 0.25 * (self.fleet.active - young))
        return ("probation", "probation", young + 1, allowed) if young + 1 > allowed else None

    def _reject(self, reason: Reason, bound: str, used: float, limit: float) -> Rejection:
        self.decisions["rejected"] += 1
        after_s = self.retry.after_s(
            self.limit,
            stalled=reason == "engine_stalled",
            pacing=reason in ("join_rate", "probation"),
        )
        message = _MESSAGES[reason]
        return Rejection(reason, after_s, message, bound=bound, used=used, limit=limit)

    def projected_load(self, one_more: Kind | None = None, spared: int = 0) -> float:
        """Today's fleet at full age, as a share of what fits: above 1 ticks would be late."""
        fleet = self.fleet
        demand = fleet.demand if one_more is None else fleet.with_one(one_more)
        if demand.urgency <= 0:
            return 0.0
        factor = 1 + spared * fleet.ordinary.rate / demand.rate
        c, rate, tokens = self._coefficients, demand.rate * factor, demand.tokens * factor
        usual = projection.load(c, self._longest_step(demand.urgency), rate, tokens)
        crowded = projection.load(c, projection.crowded_step(demand.pace), rate, tokens)
        return max(usual, crowded) * (1 + self._doubt)

    def _longest_step(self, urgency: float) -> float:
        step_s = self._longest.get(urgency)
        if step_s is None:
            target = self.settings.temper.target_share
            step_s = self._longest[urgency] = target / (urgency * (1 + self.tail.careful))
        return step_s

    def _ingest_bound(self) -> float:
        return self.ingest.bound(self.fleet.units, self.fleet.ticks_per_s)

    def _kv_limit(self) -> int:
        blocks = self.fleet.blocks_of(self.fleet.ordinary)
        if not blocks or not self.pool.usable_blocks or not self.settings.kv_terms:
            return self.settings.max_sessions
        return self.fleet.active + (self.pool.usable_blocks - self.pool.promised_blocks) // blocks

    # -- what is observed --------------------------------------------------------

    def observe_tick(self, share: float, *, missed: bool) -> None:
        """One owed tick: its latency as a share of its budget, infinite if it brought nothing."""
        self.window.add(share, missed=missed)

    def observe_step(self, sessions: int, seconds: float, residents: int, tokens: float) -> None:
        """One engine step with so many sessions in it, while so many contexts held so many tokens in all."""
        self.cost.add(StepSample(sessions, seconds, tokens * sessions / max(1, residents)))

    def control(self, now: float, reading: Reading) -> None:
        """An interval is over: learn from it, and set the bounds for the next."""
        temper, fleet = self.settings.temper, self.fleet
        since = self._controlled_at if self._controlled_at is not None else now - temper.interval_s
        interval_s = max(1e-3, now - since)
        self._controlled_at = now
        self.window.turn()
        last = self.window.last
        self.departures.watch(fleet.active, interval_s)
        self.pool.observe(reading.held_blocks, interval_s)
        self.ingest.observe(reading.cpu_s, last.total, interval_s)
        on_time, budget_s = last.total - last.missed, self.settings.shape.budget_s
        self.stall.update(now, last.total, on_time, reading.step_age_s, budget_s)
        if self.stall.is_set:
            self.window.forget()
            self.tail.forget_recent()
            return
        self.cost.fit((reading.residents, reading.resident_tokens), interval_s)
        if self.stall.believes(now):
            self._learn(now, reading, since)
        self.plan()

    def _learn(self, now: float, reading: Reading, since: float) -> None:
        fleet, window, cost = self.fleet, self.window, self.cost
        self.holding = self.aimd.hold(window)
        before = self.aimd.decreases
        self.aimd.update(now, window, fleet.units, quiet=self._entered_at <= since)
        if self.aimd.decreases > before and not cost.regime_s:
            self.evidence.refuted()
        if not fleet.active or not window.last.total:
            return
        fill = min(1.0, reading.resident_tokens / fleet.plateau_tokens)
        if now - self.aimd.decreased_at > self.settings.temper.doubt_s:
            self.evidence.saw(fleet.units, fill)
        if cost.regime_s > 0:
            self.tail.forget_recent()
        elif cost.ready:
            demand, c = fleet.demand, self._coefficients
            step_s = projection.step_now(c, demand.rate, demand.tokens * fill, 1 / demand.urgency)
            self.tail.observe(window.last, demand.urgency * step_s)

    def plan(self) -> None:
        """The bounds until the next control."""
        fleet, temper = self.fleet, self.settings.temper
        self.joins.rate = temper.join_share / max(1e-4, self.join_s)
        self._coefficients = c = self.cost.coefficients()
        self._longest.clear()
        demand = fleet.demand if fleet.active else fleet.with_one(fleet.ordinary)
        if not self.settings.age_terms or not self.cost.ready:
            self.capacity = self.shown = inf
            return
        times = self._times_to_full(c, demand)
        step_s = self._longest_step(demand.urgency)
        self._doubt = self.cost.doubt(times * step_s * demand.rate, times * step_s * demand.tokens)
        doubted = (c[0] * (1 + self._doubt), c[1] * (1 + self._doubt), c[2] * (1 + self._doubt), c[3])
        times = self._times_to_full(doubted, demand)
        self.capacity = times * demand.rate / fleet.ordinary.rate
        self.shown = self.evidence.bound(
            self.capacity, self.departures.settled_fill, self.cost.noise, temper
        )

    def _times_to_full(self, c: Coefficients, demand: Demand) -> float:
        """How many fleets like this one would fit, by the usual step and by the crowded one."""
        steps = self._longest_step(demand.urgency), projection.crowded_step(demand.pace)
        return min(projection.scale_to_full(c, s, demand.rate, demand.tokens) for s in steps)

    # -- memory --------------------------------------------------------------------

    def learned(self, key: str) -> Learned:
        """What the next run may start from."""
        return Learned(
            key,
            self.cost.export(),
            self.tail.value,
            self.tail.heaviest,
            self.evidence.served,
            self.aimd.value,
            self.join_s,
        )
