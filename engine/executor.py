"""Owns the backend: exactly one step at a time, on the one thread that may touch it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from engine.backend import Backend
from engine.clock import Clock
from engine.work import KvSnapshot, StepResult, TickBatch


class Executor(Protocol):
    """Runs steps, between `start` and `shutdown`. After `shutdown` it may be started again, with a new backend."""

    async def start(self) -> KvSnapshot:
        """Build the backend; the empty pool."""
        ...

    async def step(self, batch: TickBatch) -> StepResult:
        """One step. Raises EngineDead."""
        ...

    @property
    def busy(self) -> bool:
        """True while the backend has unfinished appends."""
        ...

    @property
    def max_context(self) -> int: ...

    @property
    def can_drop(self) -> bool: ...

    @property
    def is_hung(self) -> bool:
        """True while a step is under way: for ever, if nobody waits for it any more."""
        ...

    async def shutdown(self) -> None:
        """Free the backend. One that hangs in a step is left behind, thread and all: nothing can end it."""
        ...


class ThreadExecutor:
    """The engine thread: it builds the backend, steps it and shuts it down; nothing else ever touches it."""

    def __init__(self, build: Callable[[], Backend]) -> None:
        self._build = build
        self._thread: ThreadPoolExecutor | None = None  # None until started
        self._backend: Backend | None = None  # None until started
        self._step: Future[StepResult] | None = None  # the newest; None before the first

    async def start(self) -> KvSnapshot:
        loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._step = None
        self._backend = await loop.run_in_executor(self._thread, self._build)
        return await loop.run_in_executor(self._thread, self._backend.snapshot)

    async def step(self, batch: TickBatch) -> StepResult:
        assert self._thread is not None, "start() comes first"
        self._step = self._thread.submit(self._started.step, batch)
        return await asyncio.wrap_future(self._step)

    @property
    def _started(self) -> Backend:
        assert self._backend is not None, "start() comes first"
        return self._backend

    @property
    def busy(self) -> bool:
        return self._backend is not None and self._backend.busy

    @property
    def max_context(self) -> int:
        return self._started.max_context

    @property
    def can_drop(self) -> bool:
        return self._started.can_drop

    @property
    def is_hung(self) -> bool:
        return self._step is not None and not self._step.done()

    async def shutdown(self) -> None:
        thread, backend, self._backend = self._thread, self._backend, None
        if thread is None:
            return
        if backend is not None and not self.is_hung:
            await asyncio.get_running_loop().run_in_executor(thread, backend.shutdown)
        thread.shutdown(wait=False)


class SimExecutor:
    """Steps a simulated backend on the loop and lets its cost pass on the clock, real or virtual.

    Started again, it is the same backend, which its shutdown has emptied.
    """

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock

    async def start(self) -> KvSnapshot:
        return self._backend.snapshot()

    async def step(self, batch: TickBatch) -> StepResult:
        result = self._backend.step(batch)
        if result.engine_s > 0:
            await self._clock.sleep_until(self._clock.now() + result.engine_s)
        else:
            await asyncio.sleep(0)  # a free engine must not starve the sockets
        return result

    @property
    def busy(self) -> bool:
        return self._backend.busy

    @property
    def max_context(self) -> int:
        return self._backend.max_context

    @property
    def can_drop(self) -> bool:
        return self._backend.can_drop

    @property
    def is_hung(self) -> bool:
        return False

    async def shutdown(self) -> None:
        self._backend.shutdown()
