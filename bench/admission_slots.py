"""What a step does to every session of the simulated engine, compiled.

A run makes a step every few virtual milliseconds, over hundreds of sessions: in NumPy the calls into it took five
sixths of the time, because each is over so little. Numba comes with vLLM, which depends on it.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from bench.admission_terms import Floats
from engine.staleness import FORGOTTEN, NEWEST, is_hopeless

# One session; an empty slot is never ready.
SLOT = np.dtype(
    [
        ("ready", "f8"),  # instant its tick's audio is complete; inf: empty slot
        ("tick_s", "f8"),
        ("begun", "f8"),  # instant its tick was begun
        ("usual_s", "f8"),  # what its ticks take, smoothed
        ("context", "f8"),  # tokens it keeps
        ("left", "i8"),  # steps to go in its tick, …
        ("steps", "i8"),  # … of so many
        ("unread", "i8"),  # tokens to prefill with the tick's first step
        ("prefill", "i8"),  # … as they are for every tick but the first
        ("counted", "?"),  # the pending tick was already counted as missed
    ]
)
Slots = npt.NDArray[np.void]  # of SLOT
Places = npt.NDArray[np.int64]  # indices of slots
_INBOX_S = 2.0  # audio that may wait in a session, as in the configurations of full-duplex models

_F = TypeVar("_F", bound=Callable[..., Any])


def _compiled(function: _F) -> _F:
    """Compiled at its first call; same results."""
    return cast(_F, numba.njit(function))


_is_hopeless = _compiled(is_hopeless)


def empty(count: int) -> Slots:
    """So many slots with nobody in them."""
    slots = np.zeros(count, SLOT)
    slots["ready"] = np.inf
    return slots


@_compiled
def join(slots: Slots, now: float, due: Places) -> tuple[int, int, float]:
    """Write into `due` who joins a step that begins now: (how many, tokens to prefill, tokens that they keep)."""
    count, unread, context = 0, 0, 0.0
    for place in range(len(slots)):
        slot = slots[place]
        if slot.ready <= now:
            if slot.left == slot.steps:
                slot.begun = now
            due[count] = place
            count += 1
            unread += slot.unread
            context += slot.context
    return count, unread, context


@_compiled
def next_ready(slots: Slots) -> float:
    """The instant of the earliest tick."""
    earliest = np.inf
    for place in range(len(slots)):
        earliest = min(earliest, slots[place].ready)
    return earliest


@_compiled
def count_overdue(slots: Slots, now: float) -> int:
    """Ticks whose time has passed, each counted once."""
    count = 0
    for place in range(len(slots)):
        slot = slots[place]
        if now - slot.ready > slot.tick_s and not slot.counted:
            slot.counted = True
            count += 1
    return count


@_compiled
def _leave_out(slot: Any, now: float) -> int:
    """Ticks that no longer fit into its inbox, and those that the engine would not begin any more."""
    behind_s, skipped = now - slot.ready, 0
    while behind_s > _INBOX_S or (
        behind_s > 0 and _is_hopeless(behind_s, slot.usual_s, slot.tick_s)
    ):
        behind_s -= slot.tick_s
        slot.usual_s *= 1 - FORGOTTEN
        skipped += 1
    slot.ready += skipped * slot.tick_s
    return skipped


@_compiled
def serve(
    slots: Slots, due: Places, window: int, began: float, now: float, shares: Floats
) -> tuple[int, float, int, int, int, float]:
    """A step that began then is over now: one token for everybody who is `due`, and has not left meanwhile.

    Writes into `shares` the latency of every tick that ends, where it was not counted as missed before, as a share of
    its budget. Returns (sessions in the step, tokens kept more than before, shares written, how many of those missed,
    ticks left out, seconds of call served in time).
    """
    stepped, grown, ended, missed, skipped, served_s = 0, 0.0, 0, 0, 0, 0.0
    for place in due:
        slot = slots[place]
        if slot.ready > began:
            continue
        stepped += 1
        context = min(float(window), slot.context + slot.unread + 1)
        grown += context - slot.context
        slot.context = context
        slot.unread = 0
        slot.left -= 1
        if slot.left > 0:
            continue
        latency = now - slot.ready
        if not slot.counted:
            shares[ended] = latency / slot.tick_s
            ended += 1
            missed += latency > slot.tick_s
        if latency <= slot.tick_s:
            served_s += slot.tick_s
        slot.counted = False
        slot.ready += slot.tick_s
        slot.left = slot.steps
        slot.unread = slot.prefill
        slot.usual_s += NEWEST * (min(now - slot.begun, slot.tick_s) - slot.usual_s)
        if now > slot.ready:
            skipped += _leave_out(slot, now)
    return stepped, grown, ended, missed, skipped, served_s
