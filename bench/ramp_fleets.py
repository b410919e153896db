"""What a machine holds at a glance: fixed fleets at full age, behind a door that lets everybody in."""

import asyncio

from bench.ramp_callers import Callers
from bench.ramp_server import CEILING, FILL_S, TICK_S
from bench.report import progress
from bench.scrape import Scrape, scrape
from bench.search import most_held

MAX_MISS = 0.001  # of a fixed fleet's ticks, for it to count as held
_GLANCE_S = 5.0


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


async def _watched(port: int, sessions: int, look_s: float) -> float:
    """Missed ÷ owed within `look_s`, or until it is hopeless."""
    before = await looked(port)
    left_s = look_s
    while True:
        await asyncio.sleep(min(_GLANCE_S, left_s))
        left_s -= _GLANCE_S
        now = await looked(port)
        if left_s <= 0 or hopeless(before, now, sessions * look_s / TICK_S):
            return miss_ratio(before, now)


async def _fleet(port: int, sessions: int, look_s: float) -> float:
    """Missed ÷ owed of a fleet of this size at full age; 1 if not all of it is in."""
    crowd = Callers(port, "/v1/realtime", TICK_S)
    coming_s = min(6.0, sessions / 10)
    crowd.grow(sessions, coming_s)
    await asyncio.sleep(coming_s + FILL_S)
    missed = await _watched(port, sessions, look_s)
    lost = crowd.seen.inside < sessions
    await crowd.leave()
    await asyncio.sleep(1.0)
    return 1.0 if lost else missed


def capacity(port: int, look_s: float, *, start: int, precision: float, stride: float) -> int:
    """The largest fixed fleet that is held for `look_s`, to within `precision` (a share).

    One of the size `start` comes and goes first, for the engine to meet every size of batch; `stride` as in
    `bench.search.most_held`.
    """
    asyncio.run(_fleet(port, start, _GLANCE_S))

    def holds(sessions: int) -> bool:
        missed = asyncio.run(_fleet(port, sessions, look_s))
        progress(f"{sessions} sessions, all let in: {missed:.2%} of their ticks missed")
        return missed <= MAX_MISS

    return most_held(holds, start, ceiling=CEILING, precision=precision, stride=stride)
