"""A `Stepper` without a loop: what was submitted runs when the test says so, all sessions in one batch."""

from engine.backend import Backend
from engine.stepping import ChunkSink
from engine.work import Append, Drop, TickBatch, TokenChunk

MAX_STEPS = 200  # far above what any test asks for


class SyncStepper:
    """Has the methods of `engine.stepping.Stepper` that a lane calls."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.drops = 0  # ever
        self._appends: dict[str, Append] = {}
        self._dropping: dict[str, Drop] = {}
        self._closes: list[str] = []
        self._sinks: dict[str, ChunkSink] = {}

    def submit(self, append: Append, sink: ChunkSink) -> None:
        self._appends[append.session_id] = append
        self._sinks[append.session_id] = sink

    def drop(self, drop: Drop) -> None:
        self._dropping[drop.session_id] = drop
        self.drops += 1

    def is_dropping(self, session_id: str) -> bool:
        return session_id in self._dropping

    def withdraw(self, session_id: str) -> None:
        self._appends.pop(session_id, None)

    def close(self, session_id: str) -> None:
        self.withdraw(session_id)
        self._closes.append(session_id)

    def run(self) -> None:
        """Step until nothing is left to do."""
        for _ in range(MAX_STEPS):
            if not (self._appends or self._dropping or self._closes or self.backend.busy):
                return
            for chunk in self.backend.step(self._batch()).chunks:
                self._deliver(chunk)
        raise AssertionError(f"still busy after {MAX_STEPS} steps")

    def _batch(self) -> TickBatch:
        appends, self._appends = self._appends, {}
        drops, self._dropping = self._dropping, {}
        closes, self._closes = tuple(self._closes), []
        for append in appends.values():
            self._sinks[append.session_id].sent(append, 0.0)
        return TickBatch(tuple(appends.values()), tuple(drops.values()), closes)

    def _deliver(self, chunk: TokenChunk) -> None:
        self._sinks[chunk.session_id].take(chunk, 0.0)
