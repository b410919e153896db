"""The door that never over-admits: AIMD on measured tick latency, over a fleet priced at full age. Pure.

A fleet of young sessions is cheap, because its windows are not full; by the time latency says so, nobody can be sent
away any more. So what is compared with the limit is today's fleet *as it will be*:

    places   configured: in all, per tenant, reserved                                    (settings.py)
    kv       every session's plateau fits the pool                                       (resources.py)
    tempo    its ticks stay in time, by model, evidence, aimd and latency                (tempo.py)
    ingest   the cores carry the hearing and speaking                                    (resources.py)

Then joins are paced. `try_admit` is O(1); learning happens in `control`, every half second.
"""

from dataclasses import replace
from math import floor, inf

from admission.fleet import Fleet
from admission.learned import Learned
from admission.obstacle import Obstacle
from admission.pacing import JoinTokens, Probation, pacing_obstacle
from admission.port import Lease, Reason, Rejection, Request
from admission.projection import Kind
from admission.resources import IngestLoad, KvPool, Reading, StallLatch
from admission.retry import RetryAdvice
from admission.settings import AdmissionSettings, Quotas, SessionShape
from admission.tempo import ROUNDING, Tempo

_PACING = ("join_rate", "probation")


def _unmeasured_join_s(shape: SessionShape) -> float:
    """Until it is measured: a few percent of a tick, and where a tick has many steps no more than a part of one."""
    longest_step_s = shape.budget_s / (shape.steps_per_tick + 1)
    return min(0.03 * shape.tick_s, 0.2 * longest_step_s)


class Controller:
    """Implements `AdmissionPort`."""

    def __init__(self, settings: AdmissionSettings, learned: Learned | None = None) -> None:
        self.settings = settings
        shape, temper = settings.shape, settings.temper
        self.fleet = Fleet(shape)
        self.tempo = Tempo(settings, self.fleet, learned)
        self.pool = KvPool(settings.pool_blocks, temper.kv_reserve)
        self.ingest = IngestLoad(settings.cores, temper.cpu_share)
        self.stall = StallLatch(temper.stall_hold_s)
        # Engine time of a new session's header.
        self.join_s = _unmeasured_join_s(shape) if learned is None else learned.join_s
        self.joins = JoinTokens(temper.min_limit if settings.paced else settings.max_sessions)
        self.probation = Probation(max(temper.probation_s, 5 * shape.tick_s))
        self.retry = RetryAdvice()
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
        self.tempo.departures.left()

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
        room = min(self.tempo.room, self.ingest.limit)
        most = min(self.settings.max_sessions, self.fleet.active + self._kv_room())
        if room == inf:
            return most
        learned = self.fleet.active + floor(room - self.fleet.units + ROUNDING)
        return max(0, min(most, max(1, learned) if self._is_alone() else learned))

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
        memory = self._memory_obstacle(kind, spared)
        if memory is not None or self._is_alone(spared):
            return memory
        return self.tempo.obstacle(kind, spared) or self._ingest_obstacle(kind, spared)

    def _is_alone(self, spared: int = 0) -> bool:
        """True if whoever enters now makes nobody late, and shows what is true today.

        What was learned in a slow minute, or in an earlier life, may say that not even one fits; with nobody in,
        nothing would ever be measured that could refute it.
        """
        return self.fleet.active + spared == 0

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

    def _ingest_obstacle(self, kind: Kind, spared: int) -> Obstacle | None:
        units, limit = self.fleet.units + self.fleet.units_of(kind) + spared, self.ingest.limit
        return Obstacle("capacity", "ingest", units, limit) if units > limit + ROUNDING else None

    def _pacing(self, now: float) -> Obstacle | None:
        known = self.tempo.outlook.cost.calibrated or not self.settings.paced
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
        self.tempo.window.add(share, missed=missed)

    def observe_step(self, sessions: int, seconds: float, residents: int, tokens: float) -> None:
        """One engine step with so many sessions in it, while so many contexts held so many tokens in all."""
        self.tempo.observe_step(sessions, seconds, residents, tokens)

    def control(self, now: float, reading: Reading) -> None:
        """An interval is over: learn from it, and set the bounds for the next."""
        settings, tempo = self.settings, self.tempo
        usual_s = settings.temper.interval_s
        since = now - usual_s if self._controlled_at is None else self._controlled_at
        interval_s = max(1e-3, now - since)
        self._controlled_at = now
        tempo.turn(interval_s)
        last = tempo.window.last
        self.pool.observe(reading.held_blocks, interval_s)
        self.ingest.observe(reading.cpu_s, last.total, interval_s)
        self.ingest.plan(self.fleet.units, self.fleet.ticks_per_s)
        on_time = last.total - last.missed
        self.stall.update(now, last.total, on_time, reading.step_age_s, settings.shape.budget_s)
        if self.stall.is_set:
            tempo.stalled()
            return
        if self.stall.believes(now):
            tempo.learn(now, reading, interval_s, quiet=self._entered_at <= since)
        else:
            tempo.outlook.forget_recent()
        self.plan()

    def plan(self) -> None:
        """The bounds until the next control."""
        self.joins.rate = self.settings.temper.join_share / max(1e-4, self.join_s)
        self.tempo.plan()

    # -- what others may know ------------------------------------------------------

    @property
    def closed(self) -> Reason | None:
        """Why nobody enters any more; None while the door works."""
        return self._closed

    def learned(self, key: str) -> Learned:
        """What the next run may start from."""
        tempo, outlook = self.tempo, self.tempo.outlook
        return Learned(
            key,
            outlook.cost.export(),
            outlook.tail.known.as_triple(),
            outlook.tail.heaviest,
            outlook.tail.weight,
            tempo.evidence.served,
            tempo.evidence.vouched(outlook.capacity),
            min(outlook.capacity, float(self.settings.max_sessions)),
            tempo.aimd.value,
            self.join_s,
        )
