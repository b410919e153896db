"""How far behind the calls are at one moment. Pure."""

from collections.abc import Collection
from dataclasses import dataclass

from engine.session import Session


@dataclass(frozen=True, slots=True)
class Lag:
    """What all calls come to."""

    staleness_s: float  # age of the newest audio that the slowest call's model has heard
    starved: int  # calls that have had nothing of what they are owed for more than two ticks
    young: int  # calls whose window is not full yet
    sink_blocks: int  # KV blocks of the calls' headers, each counted as if it shared none


CAUGHT_UP = Lag(0.0, 0, 0, 0)


def lag_of(sessions: Collection[Session], now: float, tick_s: float, block_size: int) -> Lag:
    """Walks all sessions: for a scrape, not for a tick."""
    owed = [since for s in sessions if (since := s.owed_since(now)) is not None]
    return Lag(
        max((s.staleness_s(now) for s in sessions), default=0.0),
        sum(now - since > 2 * tick_s for since in owed),
        sum(not s.mirror.is_full for s in sessions),
        sum(-(-s.mirror.header // block_size) for s in sessions),
    )
