"""What the engine thread does next: a pure function from what waits to one batch, earliest deadline first."""

from collections.abc import Iterable

from engine.work import Append


def plan(waiting: Iterable[Append], prefill_budget: int) -> list[Append]:
    """The appends to start with the next step, earliest deadline first.

    `prefill_budget` bounds the new tokens of one step, so that a long header or a crowd of new turns does not stretch
    the step under everybody who is speaking. Appends that only go on decoding always fit. The first append always
    fits, however long: nothing may starve. An append that does not fit is passed over and keeps its place, and those
    behind it may still fit.
    """
    chosen: list[Append] = []
    tokens = 0
    for append in sorted(waiting, key=_deadline):
        size = len(append.token_ids)
        if size and tokens and tokens + size > prefill_budget:
            continue
        tokens += size
        chosen.append(append)
    return chosen


def _deadline(append: Append) -> float:
    return append.deadline
