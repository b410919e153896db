"""The learning door's fleet and fixed fleets in turns: shared cores have no one speed, all must see the same minutes.

In every round each fleet talks for one turn, in random order, while all others hush. A silent call is owed nothing
and keeps its window, so every fleet is at full age from its first turn on. The fixed ones are shares of whoever the
door has in at that moment, behind a door that lets everybody in; one that cannot hold any more leaves the round.
"""

import asyncio
import random
from dataclasses import dataclass, field
from math import ceil

from bench.ramp_callers import Callers
from bench.ramp_fleets import MAX_MISS, looked
from bench.ramp_server import FILL_S, TICK_S
from bench.report import progress
from bench.scrape import Scrape
from bench.server_process import ServerFailed

HALF = 0.5
# What the door may be off by: it is within 15 % of the capacity if 0.87 of its fleet is held and 1.18 of it is not.
SHARES = (HALF, 0.87, 1.0, 1.08, 1.18)
_DRAIN_S = 1.0  # for what is under way to be counted before the next one's turn


@dataclass(slots=True)
class Tally:
    """What one fleet was owed and missed in its turns."""

    share: float  # of who the door has in
    turns: int = 0
    sessions: int = 0  # summed over the turns, as is …
    inside: int = 0  # … who the door had in
    owed: int = 0  # ticks
    missed: int = 0

    def add(self, sessions: int, inside: int, earlier: Scrape, later: Scrape) -> None:
        """It had a turn, between these looks."""
        ticks = later.ticks_since(earlier)
        owed = sum(ticks.values())
        self.turns += 1
        self.sessions += sessions
        self.inside += inside
        self.owed += owed
        self.missed += owed - ticks["on_time"]

    @property
    def miss(self) -> float:
        """Missed ÷ owed; nothing owed is nothing missed."""
        return self.missed / self.owed if self.owed else 0.0

    @property
    def held(self) -> bool:
        return self.owed > 0 and self.miss <= MAX_MISS

    def hopeless(self, turns: int) -> bool:
        """Has it missed more already than it may in so many turns?"""
        return self.turns > 0 and self.missed > MAX_MISS * turns * self.owed / self.turns


@dataclass(slots=True)
class Turns:
    """What all of them did."""

    door: Tally = field(default_factory=lambda: Tally(1.0))
    fixed: list[Tally] = field(default_factory=lambda: [Tally(share) for share in SHARES])

    @property
    def settled(self) -> float:
        """Sessions that the door had in, mean."""
        return self.door.inside / max(1, self.door.turns)

    @property
    def half(self) -> Tally:
        return next(tally for tally in self.fixed if tally.share == HALF)

    @property
    def capacity(self) -> float:
        """Sessions in the largest fixed fleet that was held; 0 if none was."""
        held = [tally.sessions / tally.inside for tally in self.fixed if tally.held]
        return max(held, default=0.0) * self.settled

    def still_in(self, turns: int) -> list[Tally]:
        """The fixed fleets that may yet hold. Half the fleet stays anyway, to say what the machine does."""
        return [tally for tally in self.fixed if tally.share == HALF or not tally.hopeless(turns)]

    def __str__(self) -> str:
        fleets = [("door", self.door), *((f"{tally.share:g}", tally) for tally in self.fixed)]
        return ", ".join(f"{name} {tally.miss:.2%}" for name, tally in fleets)


class FixedFleet:
    """Callers behind a door that lets everybody in, silent but for their turns."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.crowd = Callers(port, "/v1/realtime", TICK_S)
        self._aged = 0

    async def age(self, sessions: int, at_once: int) -> None:
        """At least so many are in, with full windows. So many at once talk until theirs are full.

        Raises ServerFailed if not all are in.
        """
        while self._aged < sessions:
            more = min(at_once, sessions - self._aged)
            self.crowd.speak(self._aged, self._aged + more)
            self.crowd.grow(more, more / 10)
            await asyncio.sleep(more / 10 + FILL_S)
            self.crowd.hush()
            self._aged += more
            if self.crowd.seen.inside < self._aged:
                raise ServerFailed(f"{self.crowd.seen.inside} of {self._aged} calls are in")

    async def turn(self, sessions: int, inside: int, turn_s: float, tally: Tally) -> None:
        """So many of them talk, and what they miss is added."""
        before = await looked(self.port)
        self.crowd.speak(until=sessions)
        await asyncio.sleep(turn_s)
        self.crowd.hush()
        await asyncio.sleep(_DRAIN_S)
        tally.add(sessions, inside, before, await looked(self.port))


async def _door_turn(port: int, crowd: Callers, turn_s: float, tally: Tally) -> None:
    before = await looked(port)
    crowd.speak()
    await asyncio.sleep(turn_s)
    crowd.hush()
    await asyncio.sleep(_DRAIN_S)
    tally.add(crowd.seen.inside, crowd.seen.inside, before, await looked(port))


async def _meet(fixed: FixedFleet, inside: int, turn_s: float) -> None:
    """The largest fleet has a turn that does not count, for its engine to meet every size of batch first."""
    most = ceil(max(SHARES) * inside)
    await fixed.age(most, at_once=max(1, inside // 2))
    await fixed.turn(most, inside, turn_s, Tally(0.0))


async def in_turns(
    port: int, crowd: Callers, fixed_port: int, *, rounds: int, turn_s: float
) -> Turns:
    """So many rounds of the learning door's crowd, which hushes afterwards, and of fixed fleets on another server."""
    found, fixed = Turns(), FixedFleet(fixed_port)
    order = random.Random(2)
    crowd.hush()
    await _meet(fixed, crowd.seen.inside, turn_s)
    for number in range(1, rounds + 1):
        fleets = [found.door, *found.still_in(rounds)]
        order.shuffle(fleets)
        for tally in fleets:
            inside = crowd.seen.inside
            if tally is found.door:
                await _door_turn(port, crowd, turn_s, tally)
                continue
            sessions = ceil(tally.share * inside)
            await fixed.age(sessions, at_once=max(1, inside // 2))
            await fixed.turn(sessions, inside, turn_s, tally)
        progress(f"round {number} of {rounds}, {crowd.seen.inside} inside; missed: {found}")
    await fixed.crowd.leave()
    return found
