"""An event loop whose time jumps: hours of ticks in seconds, with the production code unchanged.

Whenever every task waits, time moves to the next timer (trio's autojump clock is the model). Only timers move time, so
nothing that runs under it may wait for a thread or a socket: use `InlinePool` and `SimExecutor`.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Every task waits and no timer is set: real time would hang here for ever."""


class _JumpingSelector(selectors.DefaultSelector):
    """Answers `select(timeout)` at once and adds `timeout` to the virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("every task waits and no timer is set")
        if timeout > 0:
            self.now += timeout
            return []
        return super().select(0) if timeout == 0 else []


class VirtualLoop(asyncio.SelectorEventLoop):
    """`loop.time()` starts at 0 and jumps to the next timer when idle."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def pass_time(self, seconds: float) -> None:
        """What runs now takes so long: no other task runs meanwhile."""
        self._jumping.now += seconds


def run_virtual(main: Coroutine[Any, Any, T], limit_s: float = 86_400.0) -> T:
    """Run `main` to its end in virtual time.

    Raises:
        Deadlock: real time would hang here.
        TimeoutError: `limit_s` virtual seconds passed; a timer that repeats would keep it going for ever.
    """

    async def limited() -> T:
        async with asyncio.timeout(limit_s):
            return await main

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(limited())
