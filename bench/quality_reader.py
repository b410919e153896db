"""Reads a text into a session of the real engine and tells how likely each token was to the model.

vLLM returns log-probabilities of a resumable request's tokens for its first chunk only. The model runs in this process,
so its hidden states are taken as they leave it, and the full-vocabulary log-probabilities computed from those with the
model's own head: the same numbers, for every token, through the same paged cache, drops included.
"""

from collections.abc import Sequence
from typing import Any

from engine.context import ContextLimits, ResidentContext
from engine.kv_policy import KvPolicy
from engine.models.base import Segment
from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings
from engine.work import Append, Drop, TickBatch

CHUNK = 32  # tokens appended at a time: a tick


class ReadingFailed(RuntimeError):
    """The engine did something else than read the tokens it was given."""


class SeenBackend(VllmBackend):
    """Keeps the hidden states of the latest step."""

    def __init__(self, settings: VllmSettings) -> None:
        super().__init__(settings)
        self._hidden: Any = None  # torch tensor, (tokens of the step, hidden size)
        self._core.model.register_forward_hook(self._see)

    def _see(self, module: Any, inputs: Any, output: Any) -> None:
        self._hidden = output

    def logprobs(self, tokens: int) -> Any:
        """Of what follows each of the latest step's tokens: torch float32, (tokens, vocabulary).

        Raises:
            ReadingFailed: the step computed another number of tokens.
        """
        import torch

        if len(self._hidden) != tokens:
            raise ReadingFailed(f"{len(self._hidden)} tokens were computed, not {tokens}")
        with torch.inference_mode():
            logits = self._core.model.compute_logits(self._hidden)
            return logits.float().log_softmax(dim=-1)


class Reader:
    """One session that reads."""

    def __init__(
        self, backend: SeenBackend, name: str, policy: KvPolicy, header: Sequence[int]
    ) -> None:
        """The header is fed with the first `read`."""
        self.name = name
        self.dropped = 0  # tokens, ever
        self.engine_s = 0.0  # in all steps
        self.shift_s = 0.0  # of that, in drops
        self._backend = backend
        limits = ContextLimits(
            policy, backend.snapshot().block_size, backend.max_context, backend.can_drop
        )
        self._context = ResidentContext(limits)
        self._header = tuple(header)
        self._expected: Any = None  # log-probabilities of the next token; None before the first

    def read(self, tokens: Sequence[int]) -> list[float]:
        """Log-probability of each of `tokens` where it stands; the session goes on behind them.

        The window is cut back whenever it has outgrown its slack.

        Raises:
            ReadingFailed: the engine refused.
        """
        if self._expected is None:
            self._open()
        scores: list[float] = []
        for start in range(0, len(tokens), CHUNK):
            chunk = tokens[start : start + CHUNK]
            drops = self._due()
            scores += self._feed(chunk, drops)
            self._context.appended(None, chunk)
        return scores

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probability of each of `tokens` if they came next; the session does not remember them."""
        expected = self._expected
        scores = self._feed(tokens, ())
        self._expected = expected
        return scores

    def _open(self) -> None:
        plan = self._context.reconcile([Segment(self._header, "header")], 1)
        self._feed(plan.token_ids, ())
        self._context.appended(None, plan.token_ids)

    def _due(self) -> tuple[Drop, ...]:
        cut = self._context.due_drop()
        if cut is None:
            return ()
        self._context.dropped(*cut)
        self.dropped += cut[1] - cut[0]
        return (Drop(self.name, *cut),)

    def _feed(self, tokens: Sequence[int], drops: tuple[Drop, ...]) -> list[float]:
        """Append `tokens` behind what is resident, in place of whatever was sampled or scored there."""
        keep = len(self._context.tokens)
        append = Append(self.name, 0, tuple(tokens), 1, 0.0, keep_tokens=keep)
        result = self._backend.step(TickBatch((append,), drops))
        self.engine_s += result.engine_s
        self.shift_s += result.shift_s
        (chunk,) = result.chunks
        if chunk.error is not None or not chunk.finished:
            raise ReadingFailed(f"{self.name}: {chunk.error or 'not finished in one step'}")
        logprobs = self._backend.logprobs(len(tokens))
        first = [] if self._expected is None else [float(self._expected[tokens[0]])]
        rest: list[float] = logprobs[range(len(tokens) - 1), list(tokens[1:])].tolist()
        self._expected = logprobs[-1].clone()
        return first + rest
