"""The learning door over time, as it tells of itself."""

import asyncio
import itertools
import json
import time
from dataclasses import dataclass, field
from typing import Any

from bench.ramp_callers import Callers
from bench.ramp_speed import Speed
from bench.scrape import scrape
from bench.server_process import get

Curves = dict[str, dict[str, tuple[list[float], list[float]]]]

_POLL_S = 0.5
_POLLS_PER_SCRAPE = 4
_TOP = 2.0  # of a plot, as a share of the budget


@dataclass(slots=True)
class Trace:
    """One entry per look; times in seconds, latency as a share of the budget."""

    t_s: list[float] = field(default_factory=list)
    offered: list[float] = field(default_factory=list)
    admitted: list[float] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)
    rejected: list[float] = field(default_factory=list)
    p99_share: list[float] = field(default_factory=list)
    binding: list[str] = field(default_factory=list)  # the bound that is nearest to refusing
    speed: Speed = field(default_factory=Speed)

    def add(self, now_s: float, offered: int, found: dict[str, Any]) -> None:
        """What /debug/admission said."""
        p99 = found["recent"]["p99_share"]
        self.t_s.append(now_s)
        self.offered.append(offered)
        self.admitted.append(found["active"])
        self.limit.append(found["limit"])
        self.rejected.append(found["decisions"]["rejected"])
        self.p99_share.append(_TOP if p99 is None else min(_TOP, p99))  # None: infinite
        self.binding.append(found["binding"])

    def reached(self, sessions: float) -> float:
        """The time since when at least so many have been in, seconds; 0 if always."""
        below = [
            t for t, admitted in zip(self.t_s, self.admitted, strict=True) if admitted < sessions
        ]
        return below[-1] if below else 0.0

    def as_json(self) -> dict[str, Any]:
        """The lists by name; `cost_ms`, engine time per session and step, at times of its own."""
        t_s, cost_ms = self.speed.curve()
        names = (name for name in self.__slots__ if name != "speed")
        return {name: getattr(self, name) for name in names} | {"cost_t_s": t_s, "cost_ms": cost_ms}

    def panels(self) -> Curves:
        """For the plot."""
        t = self.t_s
        return {
            "sessions": {
                "offered": (t, self.offered),
                "limit": (t, self.limit),
                "admitted": (t, self.admitted),
            },
            "refusals so far": {"rejected": (t, self.rejected)},
            "p99 / budget": {"p99": (t, self.p99_share)},
            "ms / session / step": {"engine": self.speed.curve()},
        }


async def watch(port: int, crowd: Callers, trace: Trace) -> None:
    """Look twice a second, until cancelled."""
    start = time.monotonic()
    for number in itertools.count():
        status, body = await asyncio.to_thread(get, port, "/debug/admission")
        if status == 200:
            trace.add(time.monotonic() - start, crowd.seen.came, json.loads(body))
        if number % _POLLS_PER_SCRAPE == 0:
            look = await asyncio.to_thread(scrape, port)
            trace.speed.add(time.monotonic() - start, look)
        await asyncio.sleep(_POLL_S)
