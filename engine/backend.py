"""The port behind which tokens come from: vLLM, the simulator, and whatever follows.

A backend is synchronous and single-threaded. Exactly one thread (or, for the simulator, the event loop) calls it, one
step at a time; nothing else may touch it. The same contract suite (tests/contract) runs against every implementation.
"""

from typing import Protocol

from engine.work import KvSnapshot, StepResult, TickBatch


class Backend(Protocol):
    """Keeps one growing token context per session and decodes from it."""

    def step(self, batch: TickBatch) -> StepResult:
        """Apply `batch`, then run one engine iteration for every session with an unfinished append.

        An unknown session id in an append opens that session. A session has at most one unfinished append; a second
        one, or a `keep_tokens` beyond the context, ends that session with an error chunk, and no other notices.
        A chunk that would pass `max_context`, or whose features the model cannot take, is refused the same way before
        it reaches the engine.

        Raises:
            EngineDead: the engine under it failed; every session is lost.
        """
        ...

    @property
    def busy(self) -> bool:
        """True while any append is unfinished: another step would make progress."""
        ...

    @property
    def max_context(self) -> int:
        """Longest logical context of one session, in tokens."""
        ...

    @property
    def can_drop(self) -> bool:
        """True if `Drop` is exact here (keys can be shifted); otherwise a caller re-prefills."""
        ...

    def snapshot(self) -> KvSnapshot:
        """The block pool now."""
        ...

    def shutdown(self) -> None:
        """Free the engine. Idempotent."""
        ...


class EngineDead(RuntimeError):
    """The engine under a backend failed; a new backend is needed."""


class EngineUnavailable(RuntimeError):
    """A backend's packages or its model are missing or unfit; the message says what to do."""
