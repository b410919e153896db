"""The simulated plant: the backend contract with a cost law instead of a model. Deterministic.

Step time is `fixed_s + session_s·n + token_s·new + resident_s·held`: n sessions in the step, `new` tokens computed,
`held` tokens read from their contexts. It is the plant's true cost; what admission *believes* it learns by itself.
Tokens are a function of the context alone (as in greedy decoding), so that rewinding and re-appending repeats them.
"""

from dataclasses import dataclass, field

from engine.sim_json import Unmakeable, made_up, spelled
from engine.work import Append, Drop, KvSnapshot, StepResult, TickBatch, TokenChunk

_MASK = (1 << 61) - 1
_MULTIPLIER = 6364136223846793005  # of Knuth's MMIX generator
FIRST_WORD = 10


@dataclass(frozen=True, slots=True)
class SimCost:
    """Seconds."""

    fixed_s: float = 0.0
    session_s: float = 0.0
    token_s: float = 0.0
    resident_s: float = 0.0

    def step_s(self, sessions: int, new_tokens: int, resident_tokens: int) -> float:
        return (
            self.fixed_s
            + self.session_s * sessions
            + self.token_s * new_tokens
            + self.resident_s * resident_tokens
        )


@dataclass(slots=True)
class _Context:
    """One session's logical context and its unfinished append."""

    tokens: list[int] = field(default_factory=list)
    append: Append | None = None  # None while the session waits
    produced: int = 0  # tokens of the append so far
    unread: int = 0  # appended tokens that the next step computes
    script: list[int] = field(
        default_factory=list
    )  # what a schema makes it decode, last token first

    def blocks(self, block_size: int) -> int:
        return -(-len(self.tokens) // block_size)


class SimBackend:
    """Implements `engine.backend.Backend`."""

    def __init__(
        self,
        cost: SimCost | None = None,
        *,
        block_size: int = 32,
        total_blocks: int = 4096,
        max_context: int = 65_536,
        vocab: int = 1000,
    ) -> None:
        self._cost = cost or SimCost()
        self._block_size = block_size
        self._total_blocks = total_blocks
        self._max_context = max_context
        self._vocab = vocab
        self._sessions: dict[str, _Context] = {}
        self._running: dict[str, _Context] = {}  # those with an unfinished append
        self._held = 0  # blocks
        self._resident = 0  # tokens

    # -- the port ------------------------------------------------------------

    def step(self, batch: TickBatch) -> StepResult:
        for session_id in batch.closes:
            self._forget(session_id)
        for drop in batch.drops:
            self._drop(drop)
        chunks = [chunk for append in batch.appends if (chunk := self._begin(append)) is not None]
        sessions, new_tokens, read = len(self._running), 0, 0
        for session_id, context in list(self._running.items()):
            new_tokens += context.unread + 1
            read += len(context.tokens)
            chunks.append(self._decode_one(session_id, context))
        engine_s = self._cost.step_s(sessions, new_tokens, read) if sessions else 0.0
        return StepResult(tuple(chunks), engine_s, self.snapshot())

    @property
    def busy(self) -> bool:
        return bool(self._running)

    @property
    def max_context(self) -> int:
        return self._max_context

    @property
    def can_drop(self) -> bool:
        return True

    def snapshot(self) -> KvSnapshot:
        return KvSnapshot(
            self._block_size,
            self._total_blocks,
            self._total_blocks - self._held,
            self._resident,
            len(self._sessions),
        )

    def shutdown(self) -> None:
        self._sessions.clear()
        self._running.clear()
        self._held = self._resident = 0

    # -- inside --------------------------------------------------------------

    def _begin(self, append: Append) -> TokenChunk | None:
        """Start an append; an error chunk if it is not legal."""
        context = self._sessions.get(append.session_id)
        if context is None:
            context = self._sessions[append.session_id] = _Context()
        error = self._refusal(append, context)
        script: list[int] = []
        if error is None and append.sampling.schema:
            try:
                script = context.script if _goes_on(append, context) else _script(append)
            except Unmakeable as unmakeable:
                error = str(unmakeable)
        if error is None:
            before = context.blocks(self._block_size), len(context.tokens)
            if append.keep_tokens is not None:
                del context.tokens[append.keep_tokens :]
            context.tokens.extend(append.token_ids)
            context.append, context.produced, context.unread = append, 0, len(append.token_ids)
            context.script = script
            self._running[append.session_id] = context
            if not self._account(context, before):
                error = "no KV block is free"
        if error is None:
            return None
        self._forget(append.session_id)
        return TokenChunk(append.session_id, append.epoch, (), finished=True, error=error)

    def _refusal(self, append: Append, context: _Context) -> str | None:
        keep = len(context.tokens) if append.keep_tokens is None else append.keep_tokens
        if context.append is not None:
            return "an append is still under way"
        if not 0 <= keep <= len(context.tokens):
            return f"cannot keep {append.keep_tokens} of {len(context.tokens)} tokens"
        if keep + len(append.token_ids) == 0:
            return "nothing to decode from"
        if keep + len(append.token_ids) + append.decode > self._max_context:
            return f"the context would pass {self._max_context} tokens"
        return None

    def _decode_one(self, session_id: str, context: _Context) -> TokenChunk:
        append = context.append
        assert append is not None, session_id
        before = context.blocks(self._block_size), len(context.tokens)
        token = context.script.pop() if context.script else self._sample(context.tokens, append)
        context.tokens.append(token)
        context.produced += 1
        context.unread = 0
        stopped = token in append.stop_token_ids
        finished = stopped or context.produced >= append.decode
        if not self._account(context, before):
            self._forget(session_id)
            return TokenChunk(
                session_id, append.epoch, (), finished=True, error="no KV block is free"
            )
        if finished:
            context.append = None
            del self._running[session_id]
        return TokenChunk(
            session_id, append.epoch, (token,), finished, stopped, len(context.tokens)
        )

    def _sample(self, tokens: list[int], append: Append) -> int:
        """A token that depends on the last tokens and the length; ends an answer after 12 tokens and 12 more or so.

        Tokens below `FIRST_WORD` are a chat format's signs: one among the last 12 means that the answer has only begun.
        """
        seed = len(tokens)
        for token in tokens[-4:]:
            seed = (seed * _MULTIPLIER + token + 1442695040888963407) & _MASK
        draw = seed >> 20
        if append.stop_token_ids and draw % 12 == 0 and min(tokens[-12:]) >= FIRST_WORD:
            return append.stop_token_ids[0]
        return FIRST_WORD + draw % (self._vocab - FIRST_WORD)

    def _drop(self, drop: Drop) -> None:
        context = self._sessions.get(drop.session_id)
        if context is None or context.append is not None:
            return
        before = context.blocks(self._block_size), len(context.tokens)
        del context.tokens[drop.start : drop.stop]
        self._account(context, before)

    def _account(self, context: _Context, before: tuple[int, int]) -> bool:
        """Move the pool's totals from `before` (blocks, tokens) to now; False if it is over-full."""
        self._held += context.blocks(self._block_size) - before[0]
        self._resident += len(context.tokens) - before[1]
        return self._held <= self._total_blocks

    def _forget(self, session_id: str) -> None:
        self._running.pop(session_id, None)
        context = self._sessions.pop(session_id, None)
        if context is not None:
            self._held -= context.blocks(self._block_size)
            self._resident -= len(context.tokens)


def _goes_on(append: Append, context: _Context) -> bool:
    """Whether an append goes on with the value that the last one began."""
    return bool(context.script) and append.keep_tokens is None and not append.token_ids


def _script(append: Append) -> list[int]:
    """The tokens that an append's schema makes the plant decode, and the stop after them; the last one first."""
    return [*append.stop_token_ids[:1], *reversed(spelled(made_up(append.sampling.schema)))]
