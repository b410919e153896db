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


def segments(header: list[int], messages: list[list[int]], first: int = 0) -> list[Segment]:
    """Messages before `first` are left out, as a long call leaves them out."""
    return [
        Segment(tuple(header), "header"),
        *(Segment(tuple(m), "message", f"item_{i}") for i, m in enumerate(messages[first:], first)),
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


def test_an_unbounded_context_says_when_it_is_full() -> None:
    """Nothing may be dropped, so the answer is refused in words."""
    context = ResidentContext(limits(name="unbounded"))
    with pytest.raises(ContextTooLong, match="truncation is disabled"):
        context.reconcile(segments([1, 2], [list(range(10, 205))]), room=8)


def test_starting_over_leaves_the_slack_free() -> None:
    """Without drops a full window is prefilled again, once per slack and not at every answer."""
    context = ResidentContext(limits(can_drop=False, name="recycle"))
    messages: list[list[int]] = []
    started_over = 0
    for turn in range(30):
        messages.append([20 + turn % 7] * 3)
        plan = context.reconcile(segments([1, 2, 3, 4, 5], messages), room=4)
        started_over += plan.keep_tokens <= 5
        apply(context, plan)
        context.sampled([50, 9])
        messages.append([*CUE, 50, 9])
    assert 3 <= started_over <= 14


def test_the_window_is_found_again_without_the_messages_before_it() -> None:
    """A call of any length: only the newest messages are handed in, and the window still continues."""
    context = ResidentContext(limits())
    messages: list[list[int]] = []
    for turn in range(40):
        messages.append([20 + turn % 7] * 6)
        wanted = segments([1, 2, 3, 4, 5], messages, first=max(0, len(messages) - 14))
        plan = context.reconcile(wanted, room=4)
        apply(context, plan)
        if turn > 14:
            assert plan.keep_tokens >= 16, turn  # it never starts over
        context.sampled([50, 9])
        messages.append([*CUE, 50, 9])


message = st.lists(st.integers(10, 40), min_size=1, max_size=12)
edit = st.one_of(
    st.tuples(st.just("say"), message),
    st.tuples(st.just("delete"), st.integers(0, 30)),
    st.tuples(st.just("header"), st.lists(st.integers(1, 5), min_size=1, max_size=9)),
    st.tuples(st.just("truncate"), st.integers(0, 3)),
)


@settings(max_examples=150)
@given(st.lists(edit, max_size=25), st.booleans(), st.sampled_from(["anchored", "recycle"]))
def test_whatever_is_edited_the_context_is_a_header_and_the_newest_of_the_conversation(
    edits: list[tuple[str, object]], can_drop: bool, name: str
) -> None:
    """After every reconcile: the mirror is the backend's truth, within the bound, header first, then a residue of less
    than a block, then an unbroken end of the conversation."""
    context = ResidentContext(limits(can_drop=can_drop, name=name))
    header, real = [1, 2, 3, 4, 5], []
    messages: list[tuple[str, list[int]]] = [("first", [10])]
    for number, (kind, value) in enumerate(edits):
        if kind == "say":
            messages.append((f"u{number}", list(value)))  # type: ignore[call-overload]
        elif kind == "delete" and messages:
            del messages[value % len(messages)]  # type: ignore[operator]
        elif kind == "header":
            header = list(value)  # type: ignore[call-overload]
        elif messages and value:
            name_of, tokens = messages[-1]
            messages[-1] = name_of, tokens[:value] or [10]  # type: ignore[misc]
        parts = [
            Segment(tuple(header), "header"),
            *(Segment(tuple(tokens), "message", item) for item, tokens in messages),
            Segment(CUE, "cue"),
        ]
        plan = context.reconcile(parts, room=4)
        if plan.drop is not None:  # what a backend would do
            del real[plan.drop[0] : plan.drop[1]]
        del real[plan.keep_tokens :]
        real += plan.token_ids
        apply(context, plan)
        assert context.tokens == real
        assert real[: len(header)] == header
        assert len(real) + 4 <= len(header) + 32 + 16
        stream = [t for part in parts[1:] for t in part.token_ids]
        behind = context.pin if context.lost else len(header)
        assert behind - len(header) < BLOCK
        window = real[behind:]
        assert window == stream[len(stream) - len(window) :]
        assert context.lost or len(window) == len(stream)
        answer = [41 + len(real) % 3, 9]
        real += answer
        context.sampled(answer)
        messages.append((f"a{number}", [*CUE, *answer]))
