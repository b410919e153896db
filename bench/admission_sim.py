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

from admission.port import Lease, Rejection, Request
from admission.resources import Reading
from bench import admission_slots as slots
from bench.admission_plant import HICCUP, Plant
from bench.admission_terms import BIN_S, Caller, Door, Faults, Floats, Tally

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
        self._slots = slots.empty(_RESERVED)
        self._due = np.empty(_RESERVED, np.int64)  # scratch: who is in the step under way, …
        self._shares = np.empty(_RESERVED)  # … and the latencies of ticks that end with it
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
        context = plant.window if self.full_age else 0
        unread = call.prefill + (0 if self.full_age else plant.header)
        ready = self.now + self._rng.uniform(0, call.tick_s)
        steps = call.steps
        self._slots[slot] = (
            ready,
            call.tick_s,
            0.0,
            0.0,
            context,
            steps,
            steps,
            unread,
            call.prefill,
            False,
        )
        self._resident += context
        self.active += 1
        self.tally.admitted += 1
        self.tally.peak = max(self.tally.peak, self.active)
        tenants = self.tally.by_tenant
        tenants[caller.tenant] = tenants.get(caller.tenant, 0) + 1
        if caller.lasts_s < np.inf:
            self._at(self.now + caller.lasts_s, self._leave, slot, caller.tenant)

    def _leave(self, slot: int, tenant: str) -> None:
        self._resident -= float(self._slots["context"][slot])
        self._slots["ready"][slot], self._slots["context"][slot] = np.inf, 0.0
        self._free.append(slot)
        self.active -= 1
        self.tally.by_tenant[tenant] -= 1
        self._door.release(self.now, self._leases.pop(slot))

    def _new_slot(self) -> int:
        if self._top == len(self._slots):
            self._slots = np.concatenate([self._slots, slots.empty(self._top)])
            self._due, self._shares = np.empty(2 * self._top, np.int64), np.empty(2 * self._top)
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
        count = slots.count_overdue(self._slots[: self._top], self.now)
        if count:
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
            count, new, kept = slots.join(self._slots[: self._top], self.now, self._due)
            if count == 0:
                first = slots.next_ready(self._slots[: self._top])
                following = self._events[0][0] if self._events else np.inf
                self._happen_until(min(first, following, self._horizon_s))
                continue
            self._step(self._due[:count], new, kept)
        return self.tally

    def _step(self, due: slots.Places, new: int, kept: float) -> None:
        """`new` tokens to prefill by all who are due, beside the `kept` ones."""
        if new > self._plant.prefill_budget:
            due, new, kept = self._within_budget(due)
        started, resident = self.now, self._resident
        seconds = self._step_s(due.size, new, kept)
        self._stepping_since = started
        self._happen_until(started + seconds)
        self._stepping_since = None
        resident, window = self._resident, self._plant.window  # some may have left meanwhile
        shares = self._shares
        stepped, grown, ended, missed, skipped, served_s = slots.serve(
            self._slots, due, window, started, self.now, shares
        )
        self._door.step(stepped, seconds, self.active, resident)
        self._resident += grown
        self.tally.served_s += served_s
        self._miss(missed + skipped, owed=ended + skipped)
        if ended:
            self._waiting_shares.append(shares[:ended].copy())
        if skipped:
            self._waiting_shares.append(np.full(skipped, np.inf))

    def _step_s(self, sessions: int, new: int, kept: float) -> float:
        """What a step that begins now takes."""
        started, plant = self.now, self._plant
        seconds = plant.step_s(sessions, new + sessions, kept + new) * self._slowness(started)
        if self._resident > plant.pool_windows * plant.window:
            seconds += plant.preempt_s
        seconds *= self._draw()
        if plant.jitter_s:
            seconds = plant.beside_others_s(seconds, started, self._rng.standard_normal())
        return seconds + self._stall(started)

    def _within_budget(self, due: slots.Places) -> tuple[slots.Places, int, float]:
        """As the planner: earliest deadline first, at least one, and whatever only goes on decoding."""
        here = self._slots[due]
        starting = here["unread"] > 0
        order = np.argsort(here["ready"] + here["tick_s"] + np.where(starting, 0.0, -1e9))
        sums = np.cumsum(here["unread"][order])
        fits = sums <= self._plant.prefill_budget
        fits[np.argmax(starting[order])] = True
        chosen = order[fits]
        new, kept = here["unread"][chosen].sum(), here["context"][chosen].sum()
        return due[chosen], int(new), float(kept)

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
