"""The learning door over time, as it tells of itself."""

import asyncio
import json
import time
from dataclasses import asdict, dataclass, field
from math import isnan, nan
from typing import Any

from bench.ramp_callers import Callers
from bench.server_process import get

Curves = dict[str, dict[str, tuple[list[float], list[float]]]]

_POLL_S = 0.5
_TOP = 2.0  # of a plot, as a share of the budget


@dataclass(slots=True)
class Trace:
    """One entry per look; times in seconds, latency as a share of the budget."""

    t_s: list[float] = field(default_factory=list)
    offered: list[float] = field(default_factory=list)
    admitted: list[float] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)
    rejected: list[float] = field(default_factory=list)
    p99_share: list[float] = field(default_factory=list)  # not a number where no tick was owed
    binding: list[str] = field(default_factory=list)  # the bound that is nearest to refusing

    def add(self, now_s: float, offered: int, found: dict[str, Any]) -> None:
        """What /debug/admission said."""
        recent = found["recent"]
        p99 = recent["p99_share"]
        share = _TOP if p99 is None else min(_TOP, p99)  # None: infinite
        self.t_s.append(now_s)
        self.offered.append(offered)
        self.admitted.append(found["active"])
        self.limit.append(found["limit"])
        self.rejected.append(found["decisions"]["rejected"])
        self.p99_share.append(share if recent["ticks"] else nan)
        self.binding.append(found["binding"])

    def as_json(self) -> dict[str, Any]:
        """Lists by name; None where there is no number."""
        return {**asdict(self), "p99_share": [None if isnan(x) else x for x in self.p99_share]}

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
        }


async def watch(port: int, crowd: Callers, trace: Trace) -> None:
    """Look twice a second while its callers talk, until cancelled."""
    start = time.monotonic()
    while True:
        await crowd.woken()
        status, body = await asyncio.to_thread(get, port, "/debug/admission")
        if status == 200:
            trace.add(time.monotonic() - start, crowd.seen.came, json.loads(body))
        await asyncio.sleep(_POLL_S)
