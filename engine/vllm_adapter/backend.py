"""The real backend: vLLM's EngineCore in this process, on the thread that builds it.

A session is one resumable request whose KV stays resident between appends. Two contexts differ by a token:

    logical   everything appended and everything sampled: what callers count in
    resident  the same without the last sampled token, which has no KV while the session waits

vLLM forgets that last token at each append, so it is fed again as the first token of the next one, unless a rewind
cuts before it.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from engine.backend import EngineDead
from engine.vllm_adapter.compat import Output, VllmCore
from engine.vllm_adapter.environment import prepare_environment
from engine.vllm_adapter.rehearsal import rehearse_schema
from engine.vllm_adapter.sampling import sampling_params
from engine.vllm_adapter.settings import VllmSettings
from engine.work import Append, Drop, KvSnapshot, StepResult, TickBatch, TokenChunk

_NO_WORK = TickBatch()


@dataclass(slots=True)
class _Resident:
    """One session's request in the core."""

    request_id: str  # a new one whenever the context had to be fed from the start
    context: int = 0  # logical length, tokens
    epoch: int = 0  # of its last append
    append: Append | None = None  # None while the session waits
    seed: int | None = None  # of the stream its tokens are drawn from
    schema: str = ""  # that its last append was held to


class VllmBackend:
    """Implements `engine.backend.Backend`."""

    def __init__(
        self, settings: VllmSettings, timer: Callable[[], float] = time.perf_counter
    ) -> None:
        """Load the model; seconds. `timer` measures how long steps take.

        Raises:
            EngineUnavailable: vLLM is missing or cannot load the model.
        """
        prepare_environment(settings)
        self._core = VllmCore(settings)
        # Imports torch, so only now that the environment is set.
        from engine.vllm_adapter.window import KeyShift

        self._shift = KeyShift.create(self._core)  # None: keys cannot be moved
        self._timer = timer
        self._sessions: dict[str, _Resident] = {}
        self._owners: dict[str, str] = {}  # request id -> session id
        self._running: set[str] = set()  # sessions with an unfinished append
        self._numbers = itertools.count()  # makes request ids unique
        self._state: Literal["up", "dead", "down"] = "up"  # dead: a step failed; down: shut
        pool = self._core.total_blocks * self._core.block_size
        # A context that the empty pool cannot hold would wait for ever. A sliding window holds less than its context.
        fits = pool if self._core.plain_attention else self._core.max_model_len
        self._max_context = min(self._core.max_model_len, fits)
        if settings.has_tokenizer:
            rehearse_schema(self)

    # -- the port --------------------------------------------------------------------------------

    def step(self, batch: TickBatch = _NO_WORK) -> StepResult:
        if self._state != "up":
            raise EngineDead(f"the engine is {self._state}")
        started = self._timer()
        with self._dying_of_any_error():
            for session_id in batch.closes:
                self._forget(session_id)
            chunks, shift_s = self._drop(batch.drops) if batch.drops else ([], 0.0)
            chunks += [chunk for append in batch.appends if (chunk := self._begin(append))]
            chunks += [chunk for output in self._core.step() if (chunk := self._take(output))]
        return StepResult(tuple(chunks), self._timer() - started, self.snapshot(), shift_s)

    @property
    def busy(self) -> bool:
        return self._state == "up" and bool(self._running)

    @property
    def max_context(self) -> int:
        return self._max_context

    @property
    def can_drop(self) -> bool:
        """Drops are of whole blocks: the range is rounded inward to multiples of the block size."""
        return self._shift is not None

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self._core.vocab_size

    def snapshot(self) -> KvSnapshot:
        """Blocks kept only in case someone shares their content again count as free: they are given out on demand."""
        resident = 0
        if self._state == "up":
            resident = sum(self._core.resident(s.request_id) for s in self._sessions.values())
        core = self._core
        return KvSnapshot(
            core.block_size, core.total_blocks, core.free_blocks, resident, len(self._sessions)
        )

    def shutdown(self) -> None:
        if self._state == "down":
            return
        self._state = "down"
        self._sessions.clear()
        self._owners.clear()
        self._running.clear()
        self._core.shutdown()

    # -- appends ---------------------------------------------------------------------------------

    def _begin(self, append: Append) -> TokenChunk | None:
        """Hand an append to the core; an error chunk if it is not legal."""
        session = self._sessions.get(append.session_id)
        error = self._refusal(append, session)
        goes_on = session is not None and _goes_on(append, session.schema)
        params: Any = None
        if error is None:
            try:
                schema = "" if goes_on else append.sampling.schema  # one that holds is compiled
                params = sampling_params(
                    append.sampling, append.decode, append.stop_token_ids, schema
                )
                if schema:
                    self._core.check_schema(params)
            except ValueError as invalid:
                error = str(invalid)
        if error is not None:
            return self._fail(append.session_id, append.epoch, error)
        if session is None:
            session = self._open(append.session_id)
        keep = session.context if append.keep_tokens is None else append.keep_tokens
        feed = self._feed(append, session, keep)
        session.context = keep + len(append.token_ids)
        session.append, session.epoch = append, append.epoch
        session.schema = append.sampling.schema
        self._running.add(append.session_id)
        if append.sampling.seed != session.seed:
            session.seed = append.sampling.seed
            self._core.reseed(session.request_id, session.seed)
        features = None
        if append.features:
            assert self._core.features is not None, append
            features = self._core.features.specs(append.features, len(feed) - len(append.token_ids))
        self._core.append(session.request_id, feed, params, features, same_grammar=goes_on)
        return None

    def _refusal(self, append: Append, session: _Resident | None) -> str | None:
        """Why the append is not legal, None if it is."""
        context = session.context if session else 0
        keep = context if append.keep_tokens is None else append.keep_tokens
        ids = append.token_ids
        if session is not None and session.append is not None:
            return "an append is still under way"
        if not 0 <= keep <= context:
            return f"cannot keep {keep} of {context} tokens"
        if keep + len(ids) == 0 or append.decode < 1:
            return "nothing to decode"
        if keep + len(ids) + append.decode > self._max_context:
            return f"the context would pass {self._max_context} tokens"
        if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            return f"token ids must be within 0 … {self.vocab_size - 1}"
        if session is None and len(self._sessions) >= self._core.max_requests:
            return f"{self._core.max_requests} sessions are resident already"
        return self._feature_refusal(append) if append.features else None

    def _feature_refusal(self, append: Append) -> str | None:
        if self._core.features is None:
            return "this model hears nothing"
        return self._core.features.refusal(append.features, len(append.token_ids))

    def _feed(self, append: Append, session: _Resident, keep: int) -> list[int]:
        """Cut the session to `keep` tokens; what to append so that all of them and the new ones have KV."""
        if keep == 0:
            if session.context:
                self._restart(append.session_id, session)
            return list(append.token_ids)
        computable = keep - (not append.token_ids)  # at least one token must be left to compute
        request_id = session.request_id
        old = self._core.tokens(request_id, 0, keep) if computable < session.context - 1 else None
        resident = self._core.rewind(request_id, computable)
        if resident == 0 and old is not None:
            self._restart(append.session_id, session)
            return [*old, *append.token_ids]
        again = old[resident:] if old is not None else self._core.tokens(request_id, resident, keep)
        return [*again, *append.token_ids]

    def _open(self, session_id: str) -> _Resident:
        session = self._sessions[session_id] = _Resident(f"{session_id}#{next(self._numbers)}")
        self._owners[session.request_id] = session_id
        return session

    def _restart(self, session_id: str, session: _Resident) -> None:
        """Give the session an empty request in place of its own."""
        self._core.abort(session.request_id)
        del self._owners[session.request_id]
        session.request_id = f"{session_id}#{next(self._numbers)}"
        self._owners[session.request_id] = session_id

    # -- results ---------------------------------------------------------------------------------

    def _take(self, output: Output) -> TokenChunk | None:
        """The chunk for one request's output; None if its session has gone."""
        session_id = self._owners.get(output.request_id)
        if session_id is None:
            return None
        session = self._sessions[session_id]
        append = session.append
        assert append is not None, output
        if output.failed:
            return self._fail(session_id, session.epoch, "the engine gave this session up")
        session.context += len(output.token_ids)
        stopped = False
        if output.finished:
            session.append = None
            self._running.discard(session_id)
            stopped = bool(output.token_ids) and output.token_ids[-1] in append.stop_token_ids
        return TokenChunk(
            session_id,
            session.epoch,
            tuple(output.token_ids),
            output.finished,
            stopped,
            session.context,
        )

    def _fail(self, session_id: str, epoch: int, error: str) -> TokenChunk:
        """End one session with an error; no other notices."""
        self._forget(session_id)
        return TokenChunk(session_id, epoch, (), finished=True, error=error)

    def _forget(self, session_id: str) -> None:
        self._running.discard(session_id)
        session = self._sessions.pop(session_id, None)
        if session is not None:
            del self._owners[session.request_id]
            self._core.abort(session.request_id)

    # -- drops -----------------------------------------------------------------------------------

    def _drop(self, drops: tuple[Drop, ...]) -> tuple[list[TokenChunk], float]:
        """Forget the ranges; the sessions that this ended, and seconds it took.

        Unknown and running sessions are passed over.
        """
        from engine.vllm_adapter.window import Move

        started = self._timer()
        errors: list[TokenChunk] = []
        moves: dict[str, Move] = {}
        for drop in drops:
            session = self._sessions.get(drop.session_id)
            if session is None or session.append is not None or self._shift is None:
                continue
            if drop.session_id in moves:  # its keys are about to move already: one move at a time
                self._shift.apply(list(moves.values()))
                moves.clear()
            block = self._core.block_size
            start = -(-drop.start // block) * block
            stop = min(drop.stop, self._core.resident(session.request_id)) // block * block
            if stop <= start:
                continue
            tables = self._core.splice(session.request_id, start, stop)
            if tables is None:
                errors.append(self._fail(drop.session_id, session.epoch, "no KV block is free"))
                continue
            moves[drop.session_id] = Move(tables, start, stop - start)
            session.context -= stop - start
        if self._shift is not None and moves:
            self._shift.apply(list(moves.values()))
        return errors, self._timer() - started

    @contextmanager
    def _dying_of_any_error(self) -> Iterator[None]:
        """vLLM may raise anything, and its state is undefined afterwards: whatever it was, this backend is dead."""
        try:
            yield
        except Exception as error:
            self._state = "dead"
            raise EngineDead(f"the engine failed: {type(error).__name__}: {error}") from error


def _goes_on(append: Append, schema: str) -> bool:
    """Whether an append goes on with the value that the last one, held to `schema`, began to decode."""
    return append.keep_tokens is None and not append.token_ids and append.sampling.schema == schema
