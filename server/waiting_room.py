"""The line at the door while the server runs: its clock, and how those who stand in it hear of their answer.

A caller who waits is a handshake that has not been answered: no place, no session, one task that listens for its end.
The line is looked at when a call ends, when the door closes, when somebody comes or goes, and while anybody stands in
it also by one task, every `_LOOK_S` and whenever a wait is over: bounds move with time as well.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from enum import Enum, auto
from typing import Any

from admission.port import Lease, Reason, Rejection, Request
from admission.waiting import Waiter, WaitingLine
from engine.clock import Clock
from server.metrics import Metrics

_log = logging.getLogger(__name__)

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

# Joins are paced by tokens; looked at this often, a bucket of four is never full for long (admission/pacing.py).
_LOOK_S = 0.1


class Lost(Enum):
    """There is nobody to answer, or nobody who deserves a place."""

    HUNG_UP = auto()
    SPOKE = auto()  # before the handshake was answered


class WaitingRoom:
    """Implements `AdmissionPort` for everybody else; the door itself asks by `enter`."""

    def __init__(self, line: WaitingLine, clock: Clock, metrics: Metrics) -> None:
        self._line = line
        self._clock = clock
        self._metrics = metrics
        # Resolved when the waiter has its answer; as many as stand in the line.
        self._told: dict[Waiter, asyncio.Future[None]] = {}
        # Set while anybody stands in the line.
        self._occupied = asyncio.Event()

    def __len__(self) -> int:
        """Callers who wait."""
        return len(self._line)

    async def enter(self, request: Request, receive: Receive) -> Lease | Rejection | Lost:
        """A place, at once or within `wait_s`; or why not. Never waits while waiting is switched off."""
        now = self._clock.now()
        answer = self._line.arrive(now, request)
        self._tell()
        if isinstance(answer, Waiter):
            return await self._wait(answer, receive)
        if isinstance(answer, Rejection) and answer.position:
            self._metrics.waited("refused", 0.0)
        return answer

    async def _wait(self, waiter: Waiter, receive: Receive) -> Lease | Rejection | Lost:
        self._occupied.set()
        position = self._line.position_of_next(is_premium=waiter.is_premium) - 1
        _log.info(
            "admission decision=waiting tenant=%s position=%d eta_s=%.1f",
            waiter.request.tenant,
            position,
            self._line.eta_s(position),
        )
        told = self._told[waiter] = asyncio.get_running_loop().create_future()
        is_answered = False  # nor is it if this task is cancelled
        lost: Lost | None = None
        try:
            async with asyncio.TaskGroup() as group:
                ear = group.create_task(_next_sign(receive))
                await asyncio.wait((told, ear), return_when=asyncio.FIRST_COMPLETED)
                lost = ear.result() if ear.done() else None
                ear.cancel()
            is_answered = lost is None
        finally:
            del self._told[waiter]
            if not is_answered:
                self._line.leave(self._clock.now(), waiter)
                self._tell()
            assert waiter.outcome is not None, waiter
            self._metrics.waited(waiter.outcome, self._clock.now() - waiter.since)
        if lost is not None:
            return lost
        assert waiter.answer is not None, waiter
        return waiter.answer

    async def run(self) -> None:
        """Until cancelled: look at the line while anybody stands in it."""
        clock, line = self._clock, self._line
        while True:
            await self._occupied.wait()
            await clock.sleep_until(min(line.due_at, clock.now() + _LOOK_S))
            line.settle(clock.now())
            self._tell()
            if not len(line):
                self._occupied.clear()

    def explain(self) -> dict[str, Any]:
        """For /debug/admission: who waits, and for how long whoever came now would."""
        line = self._line
        line.settle(self._clock.now())
        self._tell()
        eta_s = line.eta_s(line.position_of_next(is_premium=False))
        return {"waiting": len(line), "eta_s": round(eta_s, 1)}

    def _tell(self) -> None:
        for waiter in self._line.take_answered():
            told = self._told.get(waiter)
            if told is not None and not told.done():
                told.set_result(None)

    # -- the port --------------------------------------------------------------

    def try_admit(self, now: float, request: Request) -> Lease | Rejection:
        """A place for whoever does not wait; those who do come first."""
        answer = self._line.arrive(now, request, waits=False)
        self._tell()
        assert not isinstance(answer, Waiter), answer
        return answer

    def why_not(self, now: float, request: Request) -> Reason | None:
        """As the door itself."""
        return self._line.door.why_not(now, request)

    def is_premium(self, request: Request) -> bool:
        """As the door itself."""
        return self._line.door.is_premium(request)

    def release(self, now: float, lease: Lease) -> None:
        """Give the place back; the first in line gets it."""
        self._line.release(now, lease)
        self._tell()

    def close(self, reason: Reason) -> None:
        """Refuse everyone from now on, and at once those who wait."""
        self._line.close(self._clock.now(), reason)
        self._tell()

    def reopen(self, reason: Reason) -> None:
        """Let people in again, if it was closed for `reason`."""
        self._line.door.reopen(reason)

    @property
    def active(self) -> int:
        """Leases out."""
        return self._line.door.active

    @property
    def limit(self) -> int:
        """Leases that may be out."""
        return self._line.door.limit


async def _next_sign(receive: Receive) -> Lost:
    """What a caller does who should only wait."""
    message = await receive()
    return Lost.HUNG_UP if message["type"] == "websocket.disconnect" else Lost.SPOKE
