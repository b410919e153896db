"""The one place that reads a clock. Everything else is handed `now`."""

import asyncio
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds and a way to wait on them."""

    def now(self) -> float:
        """Seconds since an arbitrary origin, never going back."""
        ...

    async def sleep_until(self, instant: float) -> None:
        """Return at `instant`, or after one turn of the loop if it has passed."""
        ...


class LoopClock:
    """The running event loop's own time, so that production and a virtual loop share code."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep_until(self, instant: float) -> None:
        await asyncio.sleep(max(0.0, instant - self.now()))
