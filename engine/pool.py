"""Where CPU work of the speech parts runs: threads of our own, never the event loop or the engine thread."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Pool(Protocol):
    """Runs a function somewhere and awaits its result."""

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...

    def shutdown(self) -> None:
        """Wait for what runs; what has not begun never will."""
        ...

    def abandon(self) -> None:
        """The same without waiting, for a pool that hangs."""
        ...


class CpuPool:
    """A fixed number of threads. What is queued behind them is bounded by its callers: one job per session and kind."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))

    def shutdown(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def abandon(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class InlinePool:
    """Runs the function at once, on the loop: for virtual time, and for models whose work takes microseconds."""

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    def shutdown(self) -> None: ...
    def abandon(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Pools:
    """Hearing has a thread of its own: a slow transcription must never make a listening tick late."""

    ear: Pool
    speech: Pool
    beside: Pool  # hears beside a frame-locked model, whose own ticks it must not make late either

    @classmethod
    def threads(cls, speech_threads: int, *, inline_ear: bool = False) -> "Pools":
        """Threads start when they are first needed. `inline_ear`: the model hears in microseconds, on the loop."""
        ear = InlinePool() if inline_ear else CpuPool(1, "ear")
        return cls(ear, CpuPool(speech_threads, "speech"), CpuPool(1, "beside"))

    @classmethod
    def inline(cls) -> "Pools":
        return cls(InlinePool(), InlinePool(), InlinePool())

    def shutdown(self) -> None:
        self.ear.shutdown()
        self.speech.shutdown()
        self.beside.shutdown()

    def abandon(self) -> None:
        self.ear.abandon()
        self.speech.abandon()
        self.beside.abandon()
