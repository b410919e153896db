"""The one place that reads a clock. Everything else is handed `now`."""

import asyncio
import time
from typing import Protocol

monotonic = time.monotonic  # noqa: TID251  # for the event loop that takes its time from here
_ROUNDING_S = 1e-6
_COARSE_S = 0.001  # uvloop rounds its timers to that, also down


class Clock(Protocol):
    """Monotonic seconds and a way to wait on them."""

    def now(self) -> float:
        """Seconds since an arbitrary origin, never going back."""
        ...

    async def sleep_until(self, instant: float) -> None:
        """Return at `instant`, never before it; after one turn of the loop if it has passed."""
        ...


class LoopClock:
    """The running event loop's own time, so that production and a virtual loop share code."""

    def __init__(self) -> None:
        """Of the loop that runs now. Raises RuntimeError if none does."""
        self._loop = asyncio.get_running_loop()  # looked up once: now() is called for every frame

    def now(self) -> float:
        return self._loop.time()

    async def sleep_until(self, instant: float) -> None:
        await asyncio.sleep(max(0.0, instant - self.now()))
        if (left := instant - self.now()) > _ROUNDING_S:
            await asyncio.sleep(left + _COARSE_S)
