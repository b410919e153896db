"""A line at the door: who could enter in a moment is kept standing for that moment. Pure.

    arrive ──> nobody ahead and room ──────────────────────> Lease
       │        no room, and time does not heal that ──────> Rejection
       │        the line is full ──────────────────────────> Rejection, with a position
       └─────> Waiter ── first in line, and room ──────────> answer: Lease        "admitted"
                  ├───── wait_s have passed ───────────────> answer: Rejection    "timed_out"
                  ├───── closed, stalled, quota used up ───> answer: Rejection    "refused"
                  └───── hangs up, answered or not ────────> place given back     "left"

First come, first served; premium callers stand in a line of their own, which goes first. Whoever comes anew enters only
if nobody stands in the line that they would join. Every step is O(1), but for the answers that it gives.

How long a place takes is a rate, places per second, learned in two stages: from the calls that ended, over the time in
which anybody was in; and from those who were let in off the line, over the time in which anybody stood there. The first
is the second's prior, and one place in `PRIOR_S` is the first's, so that there is an estimate from the start.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from math import ceil, exp, inf
from typing import Literal

from admission.obstacle import MESSAGES
from admission.port import AdmissionPort, Lease, Reason, Rejection, Request

HEALS: frozenset[Reason] = frozenset({"capacity", "kv", "join_rate", "probation"})
PRIOR_S = 2.0  # seconds per place, where nothing is known: as the advice to whoever may not wait
PRIOR_WEIGHT_S = 10.0  # of standing time: how much the calls that end weigh against the line itself
MEMORY_S = 120.0  # of a rate
MAX_ETA_S = 300.0

Outcome = Literal["admitted", "timed_out", "left", "refused"]


@dataclass(eq=False, slots=True)
class Waiter:
    """Somebody in the line, and in the end the answer."""

    request: Request
    since: float
    deadline: float
    is_premium: bool
    answer: Lease | Rejection | None = None  # None while it stands in the line, or left it
    outcome: Outcome | None = None  # None while it stands in the line


class Pace:
    """Events per second of the time that counts; what is older than `MEMORY_S` fades."""

    def __init__(self) -> None:
        self.events = 0.0
        self.seconds = 0.0

    def pass_time(self, seconds: float) -> None:
        kept = exp(-seconds / MEMORY_S)
        self.events *= kept
        self.seconds = self.seconds * kept + MEMORY_S * (1 - kept)

    def rate(self, prior: float, weight_s: float) -> float:
        """Per second, as if `weight_s` more had been seen at the rate of `prior`."""
        return (self.events + prior * weight_s) / (self.seconds + weight_s)


class WaitingLine:
    """Stands before an `AdmissionPort`. With `wait_s` 0 it is not there: every answer is immediate."""

    def __init__(self, door: AdmissionPort, wait_s: float = 0.0, places: int = 512) -> None:
        self.door = door
        self.wait_s = wait_s
        self.places = places
        self._ordinary: OrderedDict[Waiter, None] = OrderedDict()  # by arrival
        self._premium: OrderedDict[Waiter, None] = OrderedDict()
        self._by_tenant: dict[str, OrderedDict[Waiter, None]] = {}  # of both; none is empty
        self._answered: list[Waiter] = []  # and not yet taken
        self._ended = Pace()  # calls, while anybody is in
        self._served = Pace()  # waiters let in, while anybody stands in the line
        self._seen_at: float | None = None  # None: nothing has happened yet

    def __len__(self) -> int:
        """Callers who stand in the line."""
        return len(self._ordinary) + len(self._premium)

    @property
    def due_at(self) -> float:
        """When the next of them has waited long enough; infinite if there is none."""
        return min(_deadline(self._premium), _deadline(self._ordinary))

    def eta_s(self, position: int) -> float:
        """Seconds until whoever stands at `position`, counted from 1, may enter: an estimate, 1 to `MAX_ETA_S`."""
        ended = self._ended.rate(1 / PRIOR_S, PRIOR_S)
        rate = self._served.rate(ended, PRIOR_WEIGHT_S)
        return max(1.0, min(MAX_ETA_S, position / max(rate, 1e-9)))

    def position_of_next(self, *, is_premium: bool) -> int:
        """Where whoever comes now would stand."""
        return 1 + (len(self._premium) if is_premium else len(self))

    def take_answered(self) -> list[Waiter]:
        """Those whose answer has been found since the last call."""
        answered, self._answered = self._answered, []
        return answered

    # -- what happens ------------------------------------------------------------

    def arrive(
        self, now: float, request: Request, *, waits: bool = True
    ) -> Lease | Rejection | Waiter:
        """Somebody knocks. Never a `Waiter` for whoever does not wait (`waits`)."""
        self.settle(now)
        door = self.door
        if self.wait_s <= 0:
            return door.try_admit(now, request)
        reason = door.why_not(now, request)
        if reason is not None and reason not in HEALS:
            return door.try_admit(now, request)
        is_premium = door.is_premium(request)
        position = self.position_of_next(is_premium=is_premium)
        if reason is None and position == 1:
            answer = door.try_admit(now, request)
            self._refuse_beyond_quota(now, request.tenant)
            return answer
        if not waits or len(self) >= self.places:
            return self._rejection(now, request, position)
        waiter = Waiter(request, now, now + self.wait_s, is_premium)
        self._line_of(waiter)[waiter] = None
        self._by_tenant.setdefault(request.tenant, OrderedDict())[waiter] = None
        return waiter

    def settle(self, now: float) -> None:
        """Answer everybody who can be answered: at every event, when the door's bounds may have moved, at `due_at`."""
        self._pass_time(now)
        while (first := self._first()) is not None:
            reason = self.door.why_not(now, first.request)
            if reason in HEALS:
                break
            answer = self.door.try_admit(now, first.request)
            self._answer(first, answer)
            if isinstance(answer, Lease):
                self._served.events += 1
                self._refuse_beyond_quota(now, first.request.tenant)
        for line in (self._premium, self._ordinary):
            while _deadline(line) <= now:
                waiter = next(iter(line))
                position = 1 if waiter.is_premium else 1 + len(self._premium)
                self._answer(waiter, self._rejection(now, waiter.request, position), "timed_out")

    def leave(self, now: float, waiter: Waiter) -> None:
        """They hang up. A place that they have just been given, and do not know of, goes to the next."""
        answer, waiter.answer = waiter.answer, None
        if waiter.outcome is None:
            self._remove(waiter)
        waiter.outcome = "left"
        if isinstance(answer, Lease):
            self.door.release(now, answer)
        self.settle(now)

    def release(self, now: float, lease: Lease) -> None:
        """A call ended. A second release of the same lease changes nothing."""
        if lease.released:
            return
        self._pass_time(now)
        self._ended.events += 1
        self.door.release(now, lease)
        self.settle(now)

    def close(self, now: float, reason: Reason) -> None:
        """Nobody enters from now on, and everybody who stands in the line is told so."""
        self.door.close(reason)
        self.settle(now)

    # -- bookkeeping ---------------------------------------------------------------

    def _first(self) -> Waiter | None:
        line = self._premium or self._ordinary
        return next(iter(line)) if line else None

    def _line_of(self, waiter: Waiter) -> OrderedDict[Waiter, None]:
        return self._premium if waiter.is_premium else self._ordinary

    def _remove(self, waiter: Waiter) -> None:
        tenant = waiter.request.tenant
        del self._line_of(waiter)[waiter]
        del self._by_tenant[tenant][waiter]
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]

    def _answer(self, waiter: Waiter, answer: Lease | Rejection, why: Outcome = "refused") -> None:
        self._remove(waiter)
        waiter.answer = answer
        waiter.outcome = "admitted" if isinstance(answer, Lease) else why
        self._answered.append(waiter)

    def _refuse_beyond_quota(self, now: float, tenant: str) -> None:
        """A tenant took a place: if it was its last, those of it who stand in the line need not go on."""
        while waiters := self._by_tenant.get(tenant):
            waiter = next(iter(waiters))
            if self.door.why_not(now, waiter.request) != "quota":
                return
            self._answer(waiter, self.door.try_admit(now, waiter.request))

    def _rejection(self, now: float, request: Request, position: int) -> Rejection:
        """The door's own, with the position in the line and what it means in time."""
        if self.door.why_not(now, request) is None:  # only those ahead are in the way
            found = Rejection("capacity", PRIOR_S, MESSAGES["capacity"], "line", position)
        else:
            answer = self.door.try_admit(now, request)
            assert isinstance(answer, Rejection), answer
            found = answer
        eta_s = ceil(self.eta_s(position))
        message = f"{found.message} Position in line: {position}; a place is expected in {eta_s} s."
        return replace(found, retry_after_s=float(eta_s), message=message, position=position)

    def _pass_time(self, now: float) -> None:
        seconds = 0.0 if self._seen_at is None else max(0.0, now - self._seen_at)
        self._seen_at = now
        if not seconds:
            return
        if self.door.active:
            self._ended.pass_time(seconds)
        if len(self):
            self._served.pass_time(seconds)


def _deadline(line: OrderedDict[Waiter, None]) -> float:
    return next(iter(line)).deadline if line else inf
