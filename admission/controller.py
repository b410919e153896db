"""The door that never over-admits: AIMD on measured tick latency, over a fleet priced at full age. Pure.

A fleet of young sessions is cheap, because its windows are not full; by the time latency says so, nobody can be sent
away any more. So what is compared with the limit is today's fleet *as it will be*:

    model      every tick of the fleet at full age stays within its budget        (outlook.py)
    evidence   … and that load is not far beyond the largest ever served          (evidence.py)
    aimd       what latency itself has allowed so far; also corrects the model    (aimd.py)
    latency    nobody enters while ticks are close to late                        (aimd.py)
    kv         every session's plateau fits the pool                              (resources.py)
    ingest     the cores carry the hearing and speaking                           (resources.py)
    places     configured: in all, per tenant, reserved                           (settings.py)

Then joins are paced. `try_admit` is O(1); learning happens in `control`, every half second.
"""

from dataclasses import replace
from math import floor, inf

from admission.aimd import AimdLimit
from admission.cost_model import CostModel, StepSample
from admission.evidence import Departures, Evidence
from admission.fleet import Fleet
from admission.latency_window import LatencyWindow
from admission.learned import Learned
from admission.obstacle import Obstacle
from admission.outlook import Outlook
from admission.pacing import JoinTokens, Probation, pacing_obstacle
from admission.port import Lease, Reason, Rejection, Request
from admission.projection import Kind
from admission.resources import IngestLoad, KvPool, Reading, StallLatch
from admission.retry import RetryAdvice
from admission.settings import AdmissionSettings, Quotas, come_back_share
from admission.tail import Tail, TailRatio

_ROUNDING = 1e-6  # of a session
_PACING = ("join_rate", "probation")


class Controller:
    """Implements `AdmissionPort`."""

    def __init__(self, settings: AdmissionSettings, learned: Learned | None = None) -> None:
        self.settings = settings
        shape, temper = settings.shape, settings.temper
        self.fleet = Fleet(shape)
        self.window = LatencyWindow()
        self.evidence = Evidence(temper)
        self.departures = Departures(shape.fill_s)
        self.pool = KvPool(settings.pool_blocks, temper.kv_reserve)
        self.ingest = IngestLoad(settings.cores, temper.cpu_share)
        self.stall = StallLatch(temper.stall_hold_s)
        self.join_s = 0.03 * shape.tick_s  # engine time of a new session's header, until measured
        cost = CostModel(1 / self.fleet.ordinary.urgency, shape.plateau_tokens)
        tail = TailRatio()
        # Where ticks are not made of steps nothing is learned by starting small.
        start = 2 * temper.min_limit if settings.paced else settings.max_sessions
        if learned is not None:
            cost.restore(learned.cost)
            tail = TailRatio(Tail(*learned.tail), learned.heaviest, learned.tail_weight)
            self.evidence = Evidence(temper, learned.served, learned.proven, learned.capacity)
            start = max(start, learned.limit)
            self.join_s = learned.join_s
        come_back = come_back_share(temper, shape.tick_s)
        self.outlook = Outlook(cost, tail, temper.target_share, come_back)
        self.aimd = AimdLimit(temper, start, settings.max_sessions)
        self.joins = JoinTokens(temper.min_limit if settings.paced else settings.max_sessions)
        self.probation = Probation(max(temper.probation_s, 5 * shape.tick_s))
        self.retry = RetryAdvice()
        self.shown = inf  # sessions that there is evidence for
        self.holding = False  # measured latency forbids anybody new
        self.decisions = {"admitted": 0, "rejected": 0}
        self._closed: Reason | None = None
        self._entered_at = -inf  # the last admission
        self._controlled_at: float | None = None  # None before the first `control`
        self.plan()

    # -- the door --------------------------------------------------------------

    def try_admit(self, now: float, request: Request) -> Lease | Rejection:
        """A place, or why not. O(1)."""
        obstacle = self._in_the_way(now, request)
        if obstacle is not None:
            return self._reject(obstacle)
        kind, premium = self.fleet.kind_of(request), self.is_premium(request)
        if premium and not request.premium:  # whoever is premium may change before it leaves
            request = replace(request, premium=True)
        lease = Lease(request.tenant, now, request=request)
        self.fleet.enter(lease, kind, premium=premium)
        self.pool.promise(self._promise(kind))
        self.probation.entered(lease)
        self.joins.take()
        self.retry.admitted()
        self._entered_at = now
        self.decisions["admitted"] += 1
        return lease

    def why_not(self, now: float, request: Request) -> Reason | None:
        """What `try_admit` would refuse for now; None: nothing. Counts nothing. O(1)."""
        obstacle = self._in_the_way(now, request)
        return None if obstacle is None else obstacle.reason

    def release(self, now: float, lease: Lease) -> None:
        """Give the place back. A second release of the same lease changes nothing."""
        if lease.released:
            return
        assert lease.request is not None, f"released {lease} of another door"
        lease.released = True
        kind = self.fleet.kind_of(lease.request)
        self.fleet.leave(lease, kind, premium=lease.request.premium)
        self.pool.free(self._promise(kind))
        self.probation.left(lease)
        self.departures.left()

    def close(self, reason: Reason) -> None:
        """Refuse everyone from now on. The first reason stands."""
        if self._closed is None:
            self._closed = reason

    def reopen(self, reason: Reason) -> None:
        """Let people in again, if it was closed for `reason`; closed for another it stays closed."""
        if self._closed == reason:
            self._closed = None

    def requota(self, quotas: Quotas) -> None:
        """Who may have how much, from now on; those who are in stay. Raises ValueError if all places are reserved."""
        self.settings = replace(self.settings, quotas=quotas)

    @property
    def active(self) -> int:
        """Leases out."""
        return self.fleet.active

    @property
    def limit(self) -> int:
        """Ordinary sessions that may be out, with those that are."""
        room = min(self.aimd.value, self.outlook.capacity, self.shown, self.ingest.limit)
        most = min(self.settings.max_sessions, self.fleet.active + self._kv_room())
        if room == inf:
            return most
        return max(0, min(most, self.fleet.active + floor(room - self.fleet.units + _ROUNDING)))

    def is_premium(self, request: Request) -> bool:
        """True for whoever may take the reserved places."""
        return request.premium or request.tenant in self.settings.quotas.premium

    # -- why not ---------------------------------------------------------------

    def _in_the_way(self, now: float, request: Request) -> Obstacle | None:
        kind, premium = self.fleet.kind_of(request), self.is_premium(request)
        return self._obstacle(kind, request.tenant, premium=premium) or self._pacing(now)

    def _obstacle(self, kind: Kind, tenant: str, *, premium: bool) -> Obstacle | None:
        """The first bound that refuses."""
        if self._closed is not None:
            return Obstacle(self._closed, "closed")
        if self.stall.is_set:
            return Obstacle("engine_stalled", "stall")
        settings, fleet = self.settings, self.fleet
        quota = settings.quotas.of(tenant)
        if quota and fleet.by_tenant[tenant] >= quota:
            return Obstacle("quota", "quota", fleet.by_tenant[tenant] + 1, quota)
        spared = 0 if premium else max(0, settings.quotas.reserved - fleet.premium)
        used = fleet.active + 1 + spared
        if used > settings.max_sessions:
            return Obstacle("capacity", "places", used, settings.max_sessions)
        return self._memory_obstacle(kind, spared) or self._load_obstacle(kind, spared)

    def _memory_obstacle(self, kind: Kind, spared: int) -> Obstacle | None:
        settings, pool = self.settings, self.pool
        if not settings.kv_terms:
            return None
        if settings.bounded:
            blocks = self._promise(kind) * (1 + spared)
            if not pool.fits(blocks):
                return Obstacle("kv", "kv", pool.promised_blocks + blocks, pool.usable_blocks)
            return None
        wall_s, horizon_s = self.wall_s(1 + spared), settings.temper.wall_horizon_s
        return Obstacle("kv", "kv_wall", horizon_s, wall_s) if wall_s < horizon_s else None

    def wall_s(self, more: int = 0) -> float:
        """Forecast: seconds to a full pool with so many sessions more, where sessions have no plateau."""
        shape, pool = self.settings.shape, self.pool
        pace = (self.fleet.active + more) * shape.plateau_blocks / shape.fill_s
        return pool.wall_s(pace)

    def _promise(self, kind: Kind) -> int:
        """KV blocks that are kept for a session."""
        return self.fleet.blocks_of(kind) if self.settings.bounded else 0

    def _load_obstacle(self, kind: Kind, spared: int) -> Obstacle | None:
        fleet = self.fleet
        if self.holding:
            p99 = self.window.recent.quantile(0.99)
            return Obstacle("capacity", "latency", p99, self.settings.temper.hold_share)
        units = fleet.units + fleet.units_of(kind) + spared
        for bound, limit in (
            ("aimd", self.aimd.value),
            ("evidence", self.shown),
            ("ingest", self.ingest.limit),
        ):
            if units > limit + _ROUNDING:
                return Obstacle("capacity", bound, units, limit)
        if self._is_modelled:
            load = self.outlook.load(fleet.with_one(kind, spared))
            if load > 1:
                return Obstacle("capacity", "model", load, 1)
        return None

    @property
    def _is_modelled(self) -> bool:
        """True if the cost model may refuse anybody."""
        settings, cost = self.settings, self.outlook.cost
        return settings.age_terms and (cost.ready if settings.paced else cost.calibrated)

    def _pacing(self, now: float) -> Obstacle | None:
        known = self.outlook.cost.calibrated or not self.settings.paced
        watched = None if known else self.probation
        fewest = self.settings.temper.min_limit
        return pacing_obstacle(now, self.joins, watched, self.fleet.active, fewest)

    def _reject(self, obstacle: Obstacle) -> Rejection:
        self.decisions["rejected"] += 1
        stalled, paced = obstacle.reason == "engine_stalled", obstacle.bound in _PACING
        return obstacle.rejection(self.retry.after_s(self.limit, stalled=stalled, pacing=paced))

    def _kv_room(self) -> int:
        blocks = self._promise(self.fleet.ordinary)
        if not blocks or not self.pool.usable_blocks or not self.settings.kv_terms:
            return self.settings.max_sessions
        return (self.pool.usable_blocks - self.pool.promised_blocks) // blocks

    # -- what is observed --------------------------------------------------------

    def observe_tick(self, share: float, *, missed: bool) -> None:
        """One owed tick: its latency as a share of its budget, infinite if it brought nothing."""
        self.window.add(share, missed=missed)

    def observe_step(self, sessions: int, seconds: float, residents: int, tokens: float) -> None:
        """One engine step with so many sessions in it, while so many contexts held so many tokens in all."""
        read = tokens * sessions / max(1, residents)
        self.outlook.cost.add(StepSample(sessions, seconds, read))

    def control(self, now: float, reading: Reading) -> None:
        """An interval is over: learn from it, and set the bounds for the next."""
        usual_s = self.settings.temper.interval_s
        since = now - usual_s if self._controlled_at is None else self._controlled_at
        interval_s = max(1e-3, now - since)
        self._controlled_at = now
        self.window.turn()
        last = self.window.last
        self.departures.watch(self.fleet.active, interval_s)
        self.pool.observe(reading.held_blocks, interval_s)
        self.ingest.observe(reading.cpu_s, last.total, interval_s)
        self.ingest.plan(self.fleet.units, self.fleet.ticks_per_s)
        on_time, budget_s = last.total - last.missed, self.settings.shape.budget_s
        self.stall.update(now, last.total, on_time, reading.step_age_s, budget_s)
        if self.stall.is_set:
            self.window.forget()
            self.outlook.forget_recent()
            return
        if self.stall.believes(now):
            self.outlook.cost.fit((reading.residents, reading.resident_tokens), interval_s)
            self._learn(now, reading, since)
        else:
            self.outlook.forget_recent()
        self.plan()

    def _learn(self, now: float, reading: Reading, since: float) -> None:
        fleet, window, temper = self.fleet, self.window, self.settings.temper
        self.holding = self.aimd.hold(window)
        before = self.aimd.decreases
        self.aimd.update(now, window, fleet.units, quiet=self._entered_at <= since)
        if self.aimd.decreases > before and not self.outlook.cost.regime_s:
            self.evidence.refuted()
        if not fleet.active or not window.last.total:
            return
        fill = min(1.0, reading.resident_tokens / fleet.plateau_tokens)
        if now - self.aimd.decreased_at > temper.doubt_s:
            age = min(1.0, fill / self.settings.shape.full_share)
            self.evidence.saw(fleet.units, age, window.last, self.outlook.cost.noise)
        if self.settings.paced:
            self.outlook.learn(window.last, fleet.demand, fill)

    def plan(self) -> None:
        """The bounds until the next control."""
        temper, outlook = self.settings.temper, self.outlook
        self.joins.rate = temper.join_share / max(1e-4, self.join_s)
        self.shown = inf
        if not self._is_modelled:
            return
        outlook.refresh(self.fleet)
        if self.settings.paced:
            fill = self.departures.settled_fill
            self.shown = self.evidence.bound(outlook.capacity, fill, outlook.cost.noise)

    # -- what others may know ------------------------------------------------------

    @property
    def closed(self) -> Reason | None:
        """Why nobody enters any more; None while the door works."""
        return self._closed

    def learned(self, key: str) -> Learned:
        """What the next run may start from."""
        outlook = self.outlook
        return Learned(
            key,
            outlook.cost.export(),
            outlook.tail.known.as_triple(),
            outlook.tail.heaviest,
            outlook.tail.weight,
            self.evidence.served,
            self.evidence.vouched(outlook.capacity),
            min(outlook.capacity, float(self.settings.max_sessions)),
            self.aimd.value,
            self.join_s,
        )
