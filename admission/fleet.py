"""Who is in: leases by kind and tenant, and what they ask for at full age. Pure; every change is O(1).

Sums are integers per kind, turned into rates when asked, so that a million arrivals and departures leave no rounding
behind. There are few kinds: a deployment serves one model, or a handful of tick lengths.
"""

from collections import Counter
from math import ceil

from admission.port import Lease, Request
from admission.projection import Demand, Kind, demand_of
from admission.settings import SessionShape

MAX_KINDS = 16


class Fleet:
    """The leases out."""

    def __init__(self, shape: SessionShape) -> None:
        self.ordinary = Kind(
            shape.tick_s, shape.budget_s, shape.steps_per_tick, shape.plateau_tokens
        )
        self._blocks_per_token = shape.plateau_blocks / shape.plateau_tokens
        self._kinds: dict[tuple[float, float, float, int], Kind] = {}
        self.by_kind: dict[Kind, int] = {}
        self.by_tenant: Counter[str] = Counter()
        self.active = 0
        self.premium = 0
        self.demand = Demand()
        self.units = 0.0  # ordinary sessions that ask for as many steps

    def kind_of(self, request: Request) -> Kind:
        """What this session would be; the ordinary kind fills the gaps. Raises ValueError past `MAX_KINDS` kinds."""
        asked = (request.tick_s, request.budget_s, request.steps_per_tick, request.plateau_tokens)
        kind = self._kinds.get(asked)
        if kind is None:
            if len(self._kinds) >= MAX_KINDS:
                raise ValueError(f"more than {MAX_KINDS} kinds of sessions")
            ordinary = self.ordinary
            kind = self._kinds[asked] = Kind(
                request.tick_s,
                request.budget_s or request.tick_s * ordinary.budget_s / ordinary.tick_s,
                request.steps_per_tick or ordinary.steps,
                request.plateau_tokens or ordinary.plateau_tokens,
            )
        return kind

    def units_of(self, kind: Kind) -> float:
        return kind.rate / self.ordinary.rate

    def blocks_of(self, kind: Kind) -> int:
        """KV blocks at its plateau; 0 where memory is not counted."""
        return ceil(kind.plateau_tokens * self._blocks_per_token - 1e-6)

    @property
    def plateau_tokens(self) -> float:
        """Tokens that all contexts hold at full age."""
        return sum(n * kind.plateau_tokens for kind, n in self.by_kind.items())

    @property
    def ticks_per_s(self) -> float:
        """Ticks that fall due per second."""
        return sum(n / kind.tick_s for kind, n in self.by_kind.items())

    def enter(self, lease: Lease, kind: Kind, *, premium: bool) -> None:
        self.by_kind[kind] = self.by_kind.get(kind, 0) + 1
        self.by_tenant[lease.tenant] += 1
        self.active += 1
        self.premium += premium
        self._sum()

    def leave(self, lease: Lease, kind: Kind, *, premium: bool) -> None:
        self.by_kind[kind] -= 1
        self.by_tenant[lease.tenant] -= 1
        if not self.by_tenant[lease.tenant]:  # tenants come and go: the table must not grow
            del self.by_tenant[lease.tenant]
        self.active -= 1
        self.premium -= premium
        self._sum()

    def with_one(self, kind: Kind, spared: int = 0) -> Demand:
        """What the fleet would ask for with one more of this kind and so many ordinary ones."""
        now, ordinary = self.demand, self.ordinary
        more = spared * ordinary.rate
        return Demand(
            now.rate + kind.rate + more,
            now.tokens + kind.rate * kind.plateau_tokens + more * ordinary.plateau_tokens,
            max(now.urgency, kind.urgency),
            max(now.pace, kind.rate),
        )

    def _sum(self) -> None:
        kinds = self.by_kind
        self.demand = demand_of(kinds.items())
        self.units = self.demand.rate / self.ordinary.rate
