"""What a machine holds: fixed fleets at full age, behind a door that lets everybody in."""

import asyncio
import time
from dataclasses import dataclass

from bench.ramp_callers import Callers
from bench.ramp_server import CEILING, FILL_S, TICK_S
from bench.ramp_speed import SPELL_S, Speed
from bench.report import progress
from bench.scrape import Scrape, scrape
from bench.search import most_held

MAX_MISS = 0.001  # of a fixed fleet's ticks, for it to count as held
_GLANCE_S = 2.0
_ALIKE = 0.07  # by how much two speeds differ that are the same
_UNLIKE = 4  # so many looks are not counted because the machine was too slow meanwhile


@dataclass(frozen=True, slots=True)
class Look:
    """How long to look at a fleet: until the machine has been `as_slow` for a spell, but not longer than `most_s`."""

    least_s: float
    most_s: float
    as_slow: float = 0.0  # engine seconds per session and step

    def suffices(self, elapsed_s: float, slowest: float) -> bool:
        """True if a fleet that has been held for so long is held."""
        if elapsed_s >= self.most_s:
            return True
        return elapsed_s >= self.least_s and slowest >= (1 - _ALIKE) * self.as_slow

    def is_unlike(self, slowest: float) -> bool:
        """True if the machine was slower than it is asked to be."""
        return 0 < (1 + _ALIKE) * self.as_slow < slowest


@dataclass(frozen=True, slots=True)
class Held:
    """The largest fleet, and the engine seconds per session and step in its slowest spell."""

    sessions: int = 0
    slowest: float = 0.0


def miss_ratio(earlier: Scrape, later: Scrape) -> float:
    """Missed ÷ owed between two looks."""
    ticks = later.ticks_since(earlier)
    owed = sum(ticks.values())
    return 1 - ticks["on_time"] / owed if owed else 0.0


async def looked(port: int) -> Scrape:
    """The server's numbers now, without blocking the callers."""
    return await asyncio.to_thread(scrape, port)


def hopeless(earlier: Scrape, later: Scrape, owed: float) -> bool:
    """Has a fleet that owes so many ticks in all already missed too many of them?"""
    ticks = later.ticks_since(earlier)
    return sum(ticks.values()) - ticks["on_time"] > MAX_MISS * owed


async def _watched(port: int, sessions: int, look: Look) -> tuple[float, float]:
    """Missed ÷ owed, until it suffices or is hopeless; and the slowest spell."""
    speed, before = Speed(), await looked(port)
    start = time.monotonic()
    speed.add(0.0, before)
    while True:
        await asyncio.sleep(_GLANCE_S)
        now, elapsed_s = await looked(port), time.monotonic() - start
        speed.add(elapsed_s, now)
        slowest, owed = speed.slowest(), sessions * max(look.least_s, elapsed_s) / TICK_S
        lost = elapsed_s > SPELL_S and hopeless(before, now, owed)
        if lost or look.suffices(elapsed_s, slowest):
            return miss_ratio(before, now), slowest


async def _fleet(port: int, sessions: int, look: Look) -> tuple[float, float]:
    """Missed ÷ owed of a fleet of this size at full age, 1 if not all of it is in; and the slowest spell."""
    crowd = Callers(port, "/v1/realtime", TICK_S)
    coming_s = min(6.0, sessions / 10)
    crowd.grow(sessions, coming_s)
    await asyncio.sleep(coming_s + FILL_S)
    missed, slowest = await _watched(port, sessions, look)
    lost = crowd.seen.inside < sessions
    await crowd.leave()
    await asyncio.sleep(1.0)
    return (1.0 if lost else missed), slowest


def capacity(port: int, look: Look, *, start: int, precision: float, stride: float) -> Held:
    """The largest fixed fleet that is held on a machine as slow as the look asks for, within `precision` (a share).

    One of the size `start` comes and goes first, for the engine to meet every size of batch; `stride` as in
    `bench.search.most_held`.
    """
    asyncio.run(_fleet(port, start, Look(0.0, 0.0)))
    slowest: dict[int, float] = {}

    def holds(sessions: int) -> bool:
        for _ in range(_UNLIKE):
            missed, slow = asyncio.run(_fleet(port, sessions, look))
            progress(
                f"{sessions} sessions, all let in: {missed:.2%} missed, {1000 * slow:.3f} ms each"
            )
            if missed <= MAX_MISS:
                slowest[sessions] = slow
                return True
            if not look.is_unlike(slow):
                return False
        return False

    held = most_held(holds, start, ceiling=CEILING, precision=precision, stride=stride)
    return Held(held, slowest.get(held, 0.0))
