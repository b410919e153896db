"""What the controller is told once: the shape of a session, the resources behind it, and its temper."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SessionShape:
    """What an ordinary session costs the engine once its window is full."""

    tick_s: float  # one period
    budget_s: float  # from audio complete to output, the deadline of a tick
    steps_per_tick: float  # engine steps that a tick takes, one after another
    plateau_tokens: int  # its context at full age, in the mean over a fleet
    fill_s: float  # from the first tick to the plateau
    plateau_blocks: int = 0  # KV blocks that it ever holds; 0: not counted
    full_share: float = 1.0  # of those tokens from which it counts as full: its header may be shorter than is priced

    def __post_init__(self) -> None:
        numbers = (self.tick_s, self.budget_s, self.steps_per_tick, self.fill_s)
        if min(numbers) <= 0 or self.plateau_tokens <= 0:
            raise ValueError(f"every number of a session's shape must be positive: {self}")


@dataclass(frozen=True, slots=True)
class Quotas:
    """Who may have how much. A tenant without an entry has `default`; 0 means no quota."""

    default: int = 0
    by_tenant: Mapping[str, int] = field(default_factory=dict)
    premium: frozenset[str] = frozenset()  # tenants that may take the reserved places
    reserved: int = 0  # places that only premium sessions may take

    def of(self, tenant: str) -> int:
        return self.by_tenant.get(tenant, self.default)


@dataclass(frozen=True, slots=True)
class Temper:
    """How careful the controller is. Shares are of a tick's budget."""

    target_share: float = 0.95  # where the slowest tick in a thousand of a full-age fleet should be
    # Of its period, what a tick of a full house may take with everybody in every step, as after a hiccup: next to
    # nothing to come back, and a few percent that a law of four terms is off by where batches are padded. With 0.98
    # plant C `nonlinear` let in 1 % too many, and missed 5 to 38 % of its ticks, in 12 of 16 runs; …
    crowd_share: float = 0.965
    # … where late ticks are worked off, what is left must make good a tick's lateness within this time.
    come_back_s: float = 5.0
    hot_share: float = 0.90  # p99 above this is congestion
    hold_share: float = 0.88  # p99 above this: nobody enters
    low_share: float = 0.80  # p99 below this: the limit may grow
    miss_ratio: float = 0.01  # more missed ticks than this are congestion, too, …
    standing: int = 3  # … if it lasts for so many intervals
    decrease: float = 0.9  # the limit's factor at congestion
    increase: float = 0.01  # the limit's growth per window, as a share of itself
    cooldown_s: float = 3.0  # one congestion event lasts this long
    interval_s: float = 0.5  # between two decisions about the limit
    min_limit: float = 4.0
    trust: float = 0.65  # share of the modelled capacity that a young fleet is evidence enough for
    stretch: float = 1.3  # how far beyond the largest load ever served the model is believed …
    creep: float = (
        0.05  # … and by how much near the top (above `creep_from` of the capacity), where
    )
    creep_from: float = 0.85
    doubt_s: float = 60.0  # after congestion: how long nothing counts as evidence
    quiet_noise: float = 0.05  # steps vary by so much; where they vary more, by less
    kv_reserve: float = 0.05  # share of the KV pool that is never promised
    join_share: float = 0.10  # share of the engine's time that headers of new sessions may take
    probation_s: float = 1.0  # a session is young for this long
    stall_hold_s: float = 5.0  # after a stall: how long what is measured is not believed
    cpu_share: float = 0.95  # of the cores that this process may use
    wall_horizon_s: float = 600.0  # a pool that would be full sooner than this admits nobody


def crowd_share(temper: Temper, tick_s: float, *, skips_late: bool) -> float:
    """Share of its period that a tick may take when everybody is in every step.

    Sessions that leave out what is late are back within a tick or two, however little is left. Others must make good
    the lateness of a hiccup, half a tick on average, within `come_back_s`.
    """
    if skips_late:
        return temper.crowd_share
    return 1.0 - min(0.12, max(0.035, 0.5 * tick_s / temper.come_back_s))


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """Everything the controller needs to know of a deployment."""

    shape: SessionShape
    max_sessions: int
    pool_blocks: int = 0  # KV blocks in all; 0: not counted
    bounded: bool = True  # False: sessions have no plateau (KV policy `unbounded`)
    cores: float = 0.0  # CPUs for ingest; 0: not counted
    quotas: Quotas = field(default_factory=Quotas)
    temper: Temper = field(default_factory=Temper)
    # True: a tick is made of engine steps (frame-locked models), so its latency follows from theirs. False (turn-based
    # models): calls mostly listen, and ticks are heard by other means; steps only bound how many may answer at once.
    paced: bool = True
    skips_late: bool = True  # sessions leave out ticks that cannot be in time any more
    age_terms: bool = True  # False: only what is measured now counts (negative control)
    kv_terms: bool = True  # False: memory does not count (negative control)

    def __post_init__(self) -> None:
        if self.max_sessions < 1:
            raise ValueError(f"max_sessions must be at least 1, not {self.max_sessions}")
        if not 0 <= self.quotas.reserved < self.max_sessions:
            raise ValueError(f"{self.quotas.reserved} of {self.max_sessions} places are reserved")
