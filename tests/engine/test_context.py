"""The mirror and its reconciliation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.context import ContextLimits, ContextTooLong, Reconciled, ResidentContext
from engine.kv_policy import KvPolicy
from engine.models.base import Segment

BLOCK = 4
CUE = (7, 7)


def limits(*, can_drop: bool = True, name: str = "anchored") -> ContextLimits:
    policy = KvPolicy(name, window_tokens=32, slack_tokens=16)  # type: ignore[arg-type]
    return ContextLimits(policy, BLOCK, 200, can_drop)


def segments(header: list[int], messages: list[list[int]]) -> list[Segment]:
    return [
        Segment(tuple(header), "header"),
        *(Segment(tuple(m), "message") for m in messages),
        Segment(CUE, "cue"),
    ]


def apply(context: ResidentContext, plan: Reconciled) -> None:
    context.appended(plan.keep_tokens, plan.token_ids)


def test_the_first_answer_appends_everything() -> None:
    """An empty context keeps nothing."""
    context = ResidentContext(limits())
    plan = context.reconcile(segments([1, 2, 3], [[10, 11]]), room=8)
    assert plan == Reconciled(None, 0, (1, 2, 3, 10, 11, *CUE))


def test_the_next_turn_appends_only_what_is_new() -> None:
    """What was sampled stays resident; the next user turn is all that enters."""
    context = ResidentContext(limits())
    apply(context, context.reconcile(segments([1, 2, 3], [[10, 11]]), room=8))
    context.sampled([50, 51, 9])
    plan = context.reconcile(segments([1, 2, 3], [[10, 11], [*CUE, 50, 51, 9], [20]]), room=8)
    assert (plan.keep_tokens, plan.token_ids) == (10, (20, *CUE))


def test_barge_in_cuts_what_was_not_heard() -> None:
    """A truncated answer rewinds to the last token that is still wanted."""
    context = ResidentContext(limits())
    apply(context, context.reconcile(segments([1, 2, 3], [[10, 11]]), room=8))
    context.sampled([50, 51, 52, 53])
    plan = context.reconcile(segments([1, 2, 3], [[10, 11], [*CUE, 50, 51, 9], [20]]), room=8)
    assert (plan.keep_tokens, plan.token_ids) == (9, (9, 20, *CUE))


def test_asking_again_recomputes_one_token() -> None:
    """Nothing new to append: the engine still needs a token to compute from."""
    context = ResidentContext(limits())
    apply(context, context.reconcile(segments([1, 2, 3], [[10]]), room=8))
    context.sampled([50, 51])
    plan = context.reconcile(segments([1, 2, 3], [[10]]), room=8)
    assert (plan.keep_tokens, plan.token_ids) == (5, (CUE[-1],))


def test_new_instructions_rebuild_behind_what_they_share() -> None:
    """A changed header keeps only its common start."""
    context = ResidentContext(limits())
    apply(context, context.reconcile(segments([1, 2, 3], [[10]]), room=8))
    plan = context.reconcile(segments([1, 2, 4, 5], [[10]]), room=8)
    assert (plan.keep_tokens, plan.token_ids) == (2, (4, 5, 10, *CUE))


def test_a_header_that_leaves_no_room_is_refused() -> None:
    """Nothing is changed, and the error says the numbers."""
    context = ResidentContext(limits())
    with pytest.raises(ContextTooLong, match="195 tokens"):
        context.reconcile(segments(list(range(195)), [[1]]), room=60)


message = st.lists(st.integers(10, 40), min_size=1, max_size=12)
edit = st.one_of(
    st.tuples(st.just("say"), message),
    st.tuples(st.just("delete"), st.integers(0, 30)),
    st.tuples(st.just("header"), st.lists(st.integers(1, 5), min_size=1, max_size=9)),
    st.tuples(st.just("truncate"), st.integers(0, 3)),
)


@settings(max_examples=150)
@given(st.lists(edit, max_size=25), st.booleans(), st.sampled_from(["anchored", "recycle"]))
def test_whatever_is_edited_the_context_is_the_conversation_with_one_hole(
    edits: list[tuple[str, object]], can_drop: bool, name: str
) -> None:
    """After every reconcile the resident tokens are the wanted ones less one range, and within the bound."""
    context = ResidentContext(limits(can_drop=can_drop, name=name))
    header, messages, real = [1, 2, 3, 4, 5], [[10]], []
    for kind, value in edits:
        if kind == "say":
            messages.append(list(value))  # type: ignore[call-overload]
        elif kind == "delete" and messages:
            del messages[value % len(messages)]  # type: ignore[operator]
        elif kind == "header":
            header = list(value)  # type: ignore[call-overload]
        elif messages and value:
            messages[-1] = messages[-1][:value] or [10]  # type: ignore[misc]
        wanted = [t for s in segments(header, messages) for t in s.token_ids]
        plan = context.reconcile(segments(header, messages), room=8)
        if plan.drop is not None:  # what a backend would do
            del real[plan.drop[0] : plan.drop[1]]
        del real[plan.keep_tokens :]
        real += plan.token_ids
        apply(context, plan)
        assert context.tokens == real
        hole = (
            wanted[: context.pin] + wanted[context.pin + context.lost :] if context.lost else wanted
        )
        assert real == hole
        assert len(real) + 8 <= len(header) + 32 + 16
        assert real[: len(header)] == header
        answer = [41 + len(real) % 3, 9]
        real += answer
        context.sampled(answer)
        messages.append([*CUE, *answer])
