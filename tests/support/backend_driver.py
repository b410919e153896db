"""Drives a backend in tests: appends by keyword, steps until idle, remembers what to clean up."""

from collections.abc import Iterable
from typing import Any

from engine.backend import Backend
from engine.work import Append, Drop, TickBatch, TokenChunk

MAX_STEPS = 2000  # far above what any test asks for


class BackendDriver:
    """One test's view of a backend that it may share with others."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.sessions: set[str] = set()  # every id this test used

    def append(
        self, session_id: str, token_ids: Iterable[int], decode: int = 1, **fields: Any
    ) -> Append:
        """An append with the fields a test does not care about filled in."""
        self.sessions.add(session_id)
        return Append(session_id, fields.pop("epoch", 0), tuple(token_ids), decode, 0.0, **fields)

    def step(
        self,
        *appends: Append,
        drops: tuple[Drop, ...] = (),
        closes: tuple[str, ...] = (),
    ) -> tuple[TokenChunk, ...]:
        """One step."""
        return self.backend.step(TickBatch(appends, drops, closes)).chunks

    def run(
        self,
        *appends: Append,
        drops: tuple[Drop, ...] = (),
        closes: tuple[str, ...] = (),
    ) -> dict[str, TokenChunk]:
        """Step until idle; per session its last chunk, with the tokens of all of them."""
        merged: dict[str, TokenChunk] = {}
        chunks = self.step(*appends, drops=drops, closes=closes)
        for _ in range(MAX_STEPS):
            for chunk in chunks:
                _merge(merged, chunk)
            if not self.backend.busy:
                return merged
            chunks = self.step()
        raise AssertionError(f"still busy after {MAX_STEPS} steps")

    def decode(
        self, session_id: str, token_ids: Iterable[int], decode: int = 1, **fields: Any
    ) -> tuple[int, ...]:
        """Append, run alone until idle, and return the tokens."""
        chunk = self.run(self.append(session_id, token_ids, decode, **fields))[session_id]
        assert chunk.error is None, chunk.error
        return chunk.token_ids

    def close_all(self) -> None:
        """Close every session this test used."""
        self.step(closes=tuple(self.sessions))


def _merge(merged: dict[str, TokenChunk], chunk: TokenChunk) -> None:
    earlier = merged.get(chunk.session_id)
    token_ids = chunk.token_ids if earlier is None else earlier.token_ids + chunk.token_ids
    merged[chunk.session_id] = TokenChunk(
        chunk.session_id,
        chunk.epoch,
        token_ids,
        chunk.finished,
        chunk.stopped,
        chunk.context_tokens,
        chunk.error,
    )
