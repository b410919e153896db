"""Sessions, callers and an engine in virtual time: hours of a fleet in seconds.

One event loop over engine steps, as the engine's own stepper makes them: whatever has a tick due joins the next step,
new tokens of a step are bounded by the planner's budget, and every session in it gets one token. Who is behind leaves
out what the engine's full-duplex sessions would. Knocks, departures and the controller's intervals happen in the order
of time, also while a step is under way.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from admission.port import Lease, Rejection, Request
from admission.resources import Reading
from bench.admission_plant import HICCUP, Plant
from bench.admission_terms import BIN_S, Caller, Door, Faults, Floats, Tally
from engine.staleness import FORGOTTEN, NEWEST, is_hopeless

_INBOX_S = 2.0  # audio that may wait in a session, as in the configurations of full-duplex models
_RESERVED = 64
_NOISE_BLOCK = 4096


class Simulation:
    """One run."""

    def __init__(
        self,
        plant: Plant,
        door: Door,
        callers: Sequence[Caller],
        horizon_s: float,
        seed: int = 0,
        faults: Faults | None = None,
    ) -> None:
        self._plant = plant
        self._door = door
        self._horizon_s = horizon_s
        self._rng = np.random.default_rng(seed)
        self._faults = faults or Faults()
        self._stalls = list(self._faults.stalls)
        self.now = 0.0
        self.active = 0
        self.tally = Tally()
        self.full_age = False  # True: sessions enter with their window full
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._free: list[int] = []
        self._top = 0  # slots in use are below
        size = _RESERVED
        self._ready = np.full(size, np.inf)  # instant its tick's audio is complete; inf: empty slot
        self._left = np.zeros(size, np.int64)  # steps to go
        self._steps = np.ones(size, np.int64)
        self._unread = np.zeros(size, np.int64)  # tokens to prefill with the tick's first step
        self._prefill = np.zeros(size, np.int64)
        self._context = np.zeros(size)
        self._tick = np.ones(size)
        self._begun = np.zeros(size)  # instant its tick was begun
        self._usual = np.zeros(size)  # what its ticks take, smoothed
        self._counted = np.zeros(size, bool)  # the pending tick was already counted as missed
        self._leases: dict[int, Lease] = {}
        self._noise: Floats = np.empty(0)
        self._next_noise = 0
        self._stepping_since: float | None = None  # start of the step under way
        self._kinds = 0
        self._resident = 0.0  # tokens in all contexts
        self._waiting_shares: list[Floats] = []
        for caller in callers:
            self._at(caller.at, self._knock, caller)
        self._at(door.interval_s, self._control)
        self._at(BIN_S, self._trace)
        self._binned = (0, 0)

    # -- events ----------------------------------------------------------------

    def _at(self, when: float, what: Callable[..., None], *args: Any) -> None:
        self._order += 1
        heapq.heappush(self._events, (when, self._order, what, args))

    def _happen_until(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, what, args = heapq.heappop(self._events)
            what(*args)
        self.now = until

    def _knock(self, caller: Caller) -> None:
        call = self._plant.calls[self._kinds % len(self._plant.calls)]
        request = Request(caller.tenant, call.tick_s, 0.0, call.steps, self._plant.window)
        answer = self._door.try_admit(self.now, request)
        if isinstance(answer, Rejection):
            self.tally.rejected += 1
            wait_s = answer.retry_after_s * self._rng.uniform(0.5, 1.5) + self._rng.exponential(1.0)
            self._at(self.now + wait_s, self._knock, caller)
            return
        self._kinds += 1
        self._enter(answer, caller)

    def _enter(self, lease: Lease, caller: Caller) -> None:
        plant = self._plant
        slot = self._free.pop() if self._free else self._new_slot()
        call = plant.calls[(self._kinds - 1) % len(plant.calls)]
        self._leases[slot] = lease
        self._ready[slot] = self.now + self._rng.uniform(0, call.tick_s)
        self._left[slot] = self._steps[slot] = call.steps
        self._prefill[slot] = call.prefill
        self._unread[slot] = call.prefill + (0 if self.full_age else plant.header)
        self._context[slot] = plant.window if self.full_age else 0.0
        self._resident += float(self._context[slot])
        self._tick[slot] = call.tick_s
        self._usual[slot] = 0.0
        self._counted[slot] = False
        self.active += 1
        self.tally.admitted += 1
        self.tally.peak = max(self.tally.peak, self.active)
        tenants = self.tally.by_tenant
        tenants[caller.tenant] = tenants.get(caller.tenant, 0) + 1
        if caller.lasts_s < np.inf:
            self._at(self.now + caller.lasts_s, self._leave, slot, caller.tenant)

    def _leave(self, slot: int, tenant: str) -> None:
        self._ready[slot] = np.inf
        self._resident -= float(self._context[slot])
        self._context[slot] = 0.0
        self._free.append(slot)
        self.active -= 1
        self.tally.by_tenant[tenant] -= 1
        self._door.release(self.now, self._leases.pop(slot))

    def _new_slot(self) -> int:
        if self._top == len(self._ready):
            for name in (
                "ready",
                "left",
                "steps",
                "unread",
                "prefill",
                "context",
                "tick",
                "begun",
                "usual",
                "counted",
            ):
                old = getattr(self, f"_{name}")
                more = np.full(len(old), np.inf if name == "ready" else 0, dtype=old.dtype)
                setattr(self, f"_{name}", np.concatenate([old, more]))
        self._top += 1
        return self._top - 1

    def _control(self) -> None:
        self._count_overdue()
        shares = np.concatenate(self._waiting_shares) if self._waiting_shares else np.empty(0)
        self._waiting_shares = []
        self._door.ticks(shares, 0)
        blocks = self._resident / self._plant.window * self._plant.plateau_blocks
        age_s = self.now - self._stepping_since if self._stepping_since is not None else 0.0
        self._door.control(self.now, Reading(self.active, self._resident, blocks, age_s))
        self._at(self.now + self._door.interval_s, self._control)

    def _count_overdue(self) -> None:
        """Ticks whose time has passed are missed now, not when they are served at last."""
        ready, top = self._ready[: self._top], self._top
        late = (self.now - ready > self._tick[:top]) & ~self._counted[:top]
        count = int(late.sum())
        if count:
            self._counted[:top] |= late
            self._miss(count, owed=count)
            self._waiting_shares.append(np.full(count, np.inf))

    def _miss(self, missed: int, owed: int) -> None:
        self.tally.owed += owed
        self.tally.missed += missed

    def _trace(self) -> None:
        self.tally.trace.append((self.now, self.active, getattr(self._door, "limit", 0)))
        owed, missed = self._binned
        self.tally.bins.append((self.tally.owed - owed, self.tally.missed - missed))
        self._binned = self.tally.owed, self.tally.missed
        self._at(self.now + BIN_S, self._trace)

    # -- the engine ----------------------------------------------------------------

    def run(self) -> Tally:
        while self.now < self._horizon_s:
            self._happen_until(self.now)
            due = np.flatnonzero(self._ready[: self._top] <= self.now)
            if due.size == 0:
                first = self._ready[: self._top].min() if self._top else np.inf
                following = self._events[0][0] if self._events else np.inf
                self._happen_until(min(first, following, self._horizon_s))
                continue
            self._step(due)
        return self.tally

    def _step(self, due: npt.NDArray[np.int64]) -> None:
        started, plant = self.now, self._plant
        self._begun[due[self._left[due] == self._steps[due]]] = started
        unread = self._unread[due]
        new = int(unread.sum())
        if new > plant.prefill_budget:
            due, new = self._within_budget(due, unread)
        read = float(self._context[due].sum()) + new
        seconds = plant.step_s(due.size, new + due.size, read) * self._slowness(started)
        if self._resident > plant.pool_windows * plant.window:
            seconds += plant.preempt_s
        seconds *= self._draw()
        if plant.jitter_s:
            seconds = plant.beside_others_s(seconds, started, self._rng.standard_normal())
        seconds += self._stall(started)
        self._stepping_since = started
        self._happen_until(started + seconds)
        self._stepping_since = None
        due = due[self._ready[due] <= started]  # those that left meanwhile are gone
        self._door.step(due.size, seconds, self.active, self._resident)
        before = self._context[due]
        after = np.minimum(plant.window, before + self._unread[due] + 1)
        self._resident += float((after - before).sum())
        self._context[due] = after
        self._unread[due] = 0
        self._left[due] -= 1
        done = due[self._left[due] <= 0]
        if done.size:
            self._finish(done)

    def _within_budget(
        self, due: npt.NDArray[np.int64], unread: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], int]:
        """As the planner: earliest deadline first, at least one, and whatever only goes on decoding."""
        starting = unread > 0
        order = np.argsort(self._ready[due] + self._tick[due] + np.where(starting, 0.0, -1e9))
        sums = np.cumsum(unread[order])
        fits = sums <= self._plant.prefill_budget
        fits[np.argmax(starting[order])] = True
        chosen = due[order[fits]]
        return chosen, int(self._unread[chosen].sum())

    def _finish(self, done: npt.NDArray[np.int64]) -> None:
        ticks, counted = self._tick[done], self._counted[done]
        latency = self.now - self._ready[done]
        late = latency > ticks
        fresh = ~counted
        self._miss(int((late & fresh).sum()), owed=int(fresh.sum()))
        self.tally.served_s += float(ticks[~late].sum())
        self._waiting_shares.append((latency / ticks)[fresh])
        self._counted[done] = False
        self._ready[done] += ticks
        self._left[done] = self._steps[done]
        self._unread[done] = self._prefill[done]
        took = np.minimum(self.now - self._begun[done], ticks)
        self._usual[done] += NEWEST * (took - self._usual[done])
        for slot in done[self.now > self._ready[done]]:
            self._skip(slot)

    def _skip(self, slot: int) -> None:
        """Leave out what no longer fits into its inbox, and what the engine would not begin any more."""
        tick_s, usual_s = float(self._tick[slot]), float(self._usual[slot])
        behind_s = self.now - float(self._ready[slot])
        skipped = 0
        while behind_s > _INBOX_S or (behind_s > 0 and is_hopeless(behind_s, usual_s, tick_s)):
            behind_s -= tick_s
            usual_s *= 1 - FORGOTTEN
            skipped += 1
        if skipped:
            self._ready[slot] += skipped * tick_s
            self._usual[slot] = usual_s
            self._miss(skipped, owed=skipped)
            self._waiting_shares.append(np.full(skipped, np.inf))

    def _slowness(self, now: float) -> float:
        for start, end, factor in self._faults.slow:
            if start <= now < end:
                return factor
        return 1.0

    def _stall(self, now: float) -> float:
        if self._stalls and now >= self._stalls[0][0]:
            return self._stalls.pop(0)[1]
        return 0.0

    def _draw(self) -> float:
        if self._next_noise >= len(self._noise):
            plant, rng = self._plant, self._rng
            self._noise = np.exp(rng.normal(0, plant.noise, _NOISE_BLOCK))
            spikes = rng.random(_NOISE_BLOCK) < plant.spike
            self._noise[spikes] *= rng.uniform(*HICCUP, int(spikes.sum()))
            self._next_noise = 0
        self._next_noise += 1
        return float(self._noise[self._next_noise - 1])
