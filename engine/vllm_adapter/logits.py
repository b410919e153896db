"""Token rules of an append, applied to the scores before a token is drawn.

Models that decide by themselves when to speak have a protocol (MiniCPM-o: listen or speak first, end every unit), and
a sampler that breaks it derails the call. The rules of a request come with the sampling parameters of its newest
append; vLLM hands both, and the tokens drawn since, to this processor.
"""

from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from engine.vllm_adapter.sampling import RULES
from engine.work import TokenRules

if TYPE_CHECKING:
    from vllm.v1.sample.logits_processor import BatchUpdate

_Entry = tuple[TokenRules, int, list[int]]  # rules, quota, tokens of the append so far (live)
_NEVER = float("-inf")


class TokenRulesProcessor(LogitsProcessor):  # type: ignore[misc]  # vLLM is untyped
    """One for all requests of an engine."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._entries: dict[int, _Entry] = {}  # by row of the batch; only requests with rules

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: "BatchUpdate | None") -> None:
        process_dict_updates(self._entries, batch_update, _entry)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """float[rows, vocabulary], changed in place."""
        for row, (rules, quota, drawn) in self._entries.items():
            _obey(logits[row], rules, len(drawn), quota)
        return logits


def _entry(params: Any, prompt: list[int] | None, drawn: list[int]) -> _Entry | None:
    rules = (params.extra_args or {}).get(RULES)
    return None if rules is None else (rules, params.max_tokens, drawn)


def _obey(scores: torch.Tensor, rules: TokenRules, drawn: int, quota: int) -> None:
    """Change the scores of the next token, of which `drawn` of `quota` are there."""
    forced = rules.first if drawn == 0 else None
    if drawn == quota - 1 and rules.last is not None:
        forced = rules.last
    if forced is not None:
        scores.fill_(_NEVER)
        scores[forced] = 0.0
        return
    for token, other in rules.instead:
        scores[other] = torch.maximum(scores[other], scores[token])
        scores[token] = _NEVER
    if rules.forbid:
        scores[list(rules.forbid)] = _NEVER
