"""The controllers that admission is compared with, and the production one as the simulator drives it.

Rules and constants are those of their sources: Netflix concurrency-limits' AIMDLimit (per sample) and Gradient2Limit,
and AIMD per window as TCP would have it.
"""

import numpy as np

from admission.controller import Controller
from admission.learned import Learned
from admission.port import Lease, Rejection, Request
from admission.resources import Reading
from admission.settings import AdmissionSettings, SessionShape
from bench.admission_plant import Plant
from bench.admission_terms import Floats

_RETRY_S = 2.0
_ENOUGH = 20  # ticks in an interval


class Baseline:
    """Counts sessions against `limit`; what moves the limit is the subclass's."""

    interval_s = 0.5

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.active = 0
        self.shares: Floats = np.empty(0)

    def try_admit(self, now: float, request: Request) -> Lease | Rejection:
        if self.active + 1 > self.limit:
            return Rejection("capacity", _RETRY_S, "")
        self.active += 1
        return Lease(request.tenant, now)

    def release(self, now: float, lease: Lease) -> None:
        self.active -= 1

    def ticks(self, shares: Floats, missed: int) -> None:
        self.shares = shares

    def step(self, sessions: int, seconds: float, residents: int, tokens: float) -> None: ...

    def control(self, now: float, reading: Reading) -> None: ...


class PerSample(Baseline):
    """AIMDLimit: +1 for every tick in time while half the limit is used, ×0.9 for every late one."""

    interval_s = 0.1

    def __init__(self) -> None:
        super().__init__(20)

    def control(self, now: float, reading: Reading) -> None:
        for share in self.shares:
            if share > 1:
                self.limit = int(self.limit * 0.9)
            elif self.active * 2 >= self.limit:
                self.limit += 1
            self.limit = min(1000, max(20, self.limit))


class PerWindow(Baseline):
    """AIMD on the p99 of half a second: ×0.9 above 0.8 of the budget, else +2 while half the limit is used."""

    def __init__(self) -> None:
        super().__init__(20)

    def control(self, now: float, reading: Reading) -> None:
        if self.shares.size < _ENOUGH:
            return
        if np.percentile(np.minimum(self.shares, 1e6), 99) > 0.8:
            self.limit = max(4.0, self.limit * 0.9)
        elif self.active * 2 >= self.limit:
            self.limit += 2


class Gradient(Baseline):
    """Gradient2Limit: the limit follows the ratio of long-term to present latency."""

    def __init__(self) -> None:
        super().__init__(20)
        self._long = 0.0
        self._windows = 0

    def control(self, now: float, reading: Reading) -> None:
        finite = self.shares[np.isfinite(self.shares)]
        if finite.size < _ENOUGH:
            return
        present = float(finite.mean())
        self._windows += 1
        weight = 2 / 601 if self._windows > 10 else 1 / self._windows
        self._long += weight * (present - self._long)
        if self._long / present > 2:
            self._long *= 0.95
        if self.active < self.limit / 2:
            return
        gradient = max(0.5, min(1.0, 1.5 * self._long / present))
        following = 0.8 * self.limit + 0.2 * (self.limit * gradient + 4)
        self.limit = max(20, min(1000, following))


def settings_for(plant: Plant, **changes: object) -> AdmissionSettings:
    """What a deployment on this plant would tell the controller."""
    call = plant.calls[0]
    shape = SessionShape(
        call.tick_s, call.tick_s, call.steps, plant.window, plant.fill_s, plant.plateau_blocks
    )
    settings = {"max_sessions": 4096, "pool_blocks": plant.pool_blocks, **changes}
    return AdmissionSettings(shape, **settings)  # type: ignore[arg-type]  # checked by the class


class Metronome:
    """The production controller."""

    def __init__(self, settings: AdmissionSettings, learned: Learned | None = None) -> None:
        self.controller = Controller(settings, learned)
        self.interval_s = settings.temper.interval_s

    @property
    def limit(self) -> float:
        return self.controller.limit

    def try_admit(self, now: float, request: Request) -> Lease | Rejection:
        return self.controller.try_admit(now, request)

    def release(self, now: float, lease: Lease) -> None:
        self.controller.release(now, lease)

    def ticks(self, shares: Floats, missed: int) -> None:
        observe = self.controller.observe_tick
        for share in shares.tolist():
            observe(share, missed=share > 1)

    def step(self, sessions: int, seconds: float, residents: int, tokens: float) -> None:
        self.controller.observe_step(sessions, seconds, residents, tokens)

    def control(self, now: float, reading: Reading) -> None:
        self.controller.control(now, reading)
