"""Every bound, how much of it is used, and which one binds: for people and for metrics. Pure."""

from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from admission.controller import Controller


@dataclass(frozen=True, slots=True)
class Bound:
    """One bound in its own unit. `used` may exceed `limit`: nobody is sent away for that."""

    name: str
    unit: str
    used: float
    limit: float  # infinite: does not bind

    @property
    def share(self) -> float:
        """How much of it is used; the bound with the largest share binds."""
        if self.limit == inf:
            return 0.0
        return self.used / self.limit if self.limit > 0 else inf


def bounds(controller: Controller) -> list[Bound]:
    """All that can refuse an ordinary session for lack of room."""
    settings, fleet, pool = controller.settings, controller.fleet, controller.pool
    tempo = controller.tempo
    counts_kv = settings.kv_terms and settings.bounded and pool.usable_blocks
    p99 = min(tempo.window.recent.quantile(0.99), 10.0)
    found = [  # in the order in which the door asks, so that of two that are full the first binds
        Bound("places", "sessions", fleet.active, settings.max_sessions),
        Bound("kv", "blocks", pool.promised_blocks, pool.usable_blocks if counts_kv else inf),
        Bound("latency", "budget", p99, settings.temper.hold_share),
        Bound("aimd", "sessions", fleet.units, tempo.aimd.value),
        Bound("evidence", "sessions", fleet.units, tempo.shown),
        Bound("model", "sessions", fleet.units, tempo.outlook.capacity),
        Bound("ingest", "sessions", fleet.units, controller.ingest.limit),
    ]
    if settings.kv_terms and not settings.bounded:
        horizon_s = settings.temper.wall_horizon_s
        found.append(Bound("kv_wall", "s", horizon_s, max(controller.wall_s(), 1e-3)))
    return found


def binding(found: list[Bound]) -> Bound:
    """The bound that is nearest to refusing, or furthest beyond."""
    return max(found, key=lambda bound: bound.share)


def explain(controller: Controller, now: float) -> dict[str, Any]:
    """Everything behind the next decision, as JSON can carry it."""
    found, tempo = bounds(controller), controller.tempo
    outlook, evidence, recent = tempo.outlook, tempo.evidence, tempo.window.recent
    tightest = binding(found)
    return {
        "active": controller.active,
        "limit": controller.limit,
        "binding": tightest.name,
        "binding_share": _number(tightest.share),
        "bounds": [
            {key: _number(value) for key, value in asdict(bound).items()}
            | {"share": _number(bound.share)}
            for bound in found
        ],
        "projected_load": _number(outlook.load(controller.fleet.demand)),
        "closed": controller.closed,
        "stalled": controller.stall.is_set,
        "holding": tempo.holding,
        "young": controller.probation.count(now),
        "premium": controller.fleet.premium,
        "join_tokens": _number(controller.joins.available(now)),
        "decisions": dict(controller.decisions),
        "recent": {
            "ticks": recent.total,
            "missed": recent.missed,
            "p99_share": _number(recent.quantile(0.99)),
        },
        "model": {
            "ready": outlook.cost.ready,
            "calibrated": outlook.cost.calibrated,
            "coefficients": [_number(c) for c in outlook.cost.coefficients()],
            "gain": _number(outlook.cost.regime.gain),
            "off_speed_s": _number(outlook.cost.regime.lasts_s),
            "noise": _number(outlook.cost.noise),
            "tail": _number(outlook.tail.known.slowest),
            "tail_likely": _number(outlook.tail.known.likely),
            "tail_falls": _number(outlook.tail.falls),
            "doubt": _number(outlook.doubt),
            "served": _number(evidence.served),
            "proven": _number(evidence.vouched(outlook.capacity)),
            "pace": _number(evidence.pace(outlook.cost.noise)),
            "settled_fill": _number(tempo.departures.settled_fill),
        },
    }


def _number(value: Any) -> Any:
    """JSON has no infinity: None stands for it."""
    if isinstance(value, float):
        return None if value in (inf, -inf) else float(f"{value:.6g}")
    return value
