"""Token rules, on scores by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine.vllm_adapter.sampling import RULES
from engine.work import TokenRules

pytestmark = pytest.mark.vllm


def processor(*rows: tuple[TokenRules | None, int, list[int]]) -> Any:
    """A processor for a batch whose rows have these rules, quotas and tokens drawn so far."""
    from vllm.v1.sample.logits_processor import BatchUpdate

    from engine.vllm_adapter.logits import TokenRulesProcessor

    made = TokenRulesProcessor(None, None, False)
    added: Any = [
        (
            row,
            SimpleNamespace(extra_args={RULES: rules} if rules else None, max_tokens=quota),
            [],
            drawn,
        )
        for row, (rules, quota, drawn) in enumerate(rows)
    ]
    made.update_state(BatchUpdate(len(rows), removed=[], added=added, moved=[]))
    return made


def best(made: Any, *scores: list[float]) -> list[int]:
    """The token that greedy decoding would draw in each row."""
    import torch

    chosen: list[int] = made.apply(torch.tensor(scores)).argmax(dim=-1).tolist()
    return chosen


def test_forbidden_tokens_are_never_drawn() -> None:
    """The next best is; a row without rules is left alone."""
    made = processor((TokenRules(forbid=(2,)), 9, []), (None, 9, []))
    assert best(made, [0.0, 1.0, 5.0], [0.0, 1.0, 5.0]) == [1, 2]


def test_one_token_stands_in_for_another() -> None:
    """Where `a` would be drawn, `b` is; else nothing changes."""
    made = processor(*[(TokenRules(instead=((2, 0),)), 9, [7])] * 2)
    assert best(made, [0.0, 1.0, 5.0], [0.0, 6.0, 5.0]) == [0, 1]


def test_the_first_and_the_last_token_can_be_given() -> None:
    """The tokens drawn since the append are counted as they come."""
    drawn: list[int] = []
    made = processor((TokenRules(first=1, last=0), 3, drawn))
    taken = []
    for _ in range(3):
        taken += best(made, [0.0, 1.0, 5.0])
        drawn.append(taken[-1])
    assert taken == [1, 2, 0]


def test_a_row_that_is_gone_leaves_no_rules_behind() -> None:
    """The next request in it has its own."""
    from vllm.v1.sample.logits_processor import BatchUpdate

    made = processor((TokenRules(forbid=(2,)), 9, []))
    made.update_state(BatchUpdate(0, removed=[0], added=[], moved=[]))
    assert best(made, [0.0, 1.0, 5.0]) == [2]
