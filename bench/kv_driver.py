"""Calls that only grow, tick by tick, on a real backend: the load of the KV benchmarks.

What `Lane` and `Stepper` do for a call, without the event loop: the mirror and the policy are the production ones
(`ResidentContext`, `KvPolicy`), and a session is cut back where `Lane` would, just before its next append.
"""

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.backend import Backend
from engine.context import ContextLimits, ResidentContext
from engine.kv_policy import KvPolicy
from engine.models.base import Segment
from engine.work import Append, Drop, TickBatch

_FIRST, _LAST = 10, 999  # token ids that the tiny model has, whatever they mean


class CallFailed(RuntimeError):
    """The backend ended a session with an error."""


@dataclass(frozen=True, slots=True)
class TickCost:
    """What one tick of all sessions came to. Seconds."""

    age: int  # tokens that each session has lived through, after the tick
    wall_s: float
    cpu_s: float  # of this thread: the same on a busy machine
    engine_s: float  # within Backend.step
    shift_s: float  # of that, spent on drops
    dropped: int  # tokens forgotten, all sessions together
    held_blocks: int  # after the tick


@dataclass(slots=True)
class _Call:
    """One session, and everything of it that outlives a tick."""

    name: str
    header: tuple[int, ...]
    context: ResidentContext
    tokens: random.Random  # its own stream: no two calls say the same
    age: int = 0  # tokens ever appended and sampled


class GrowingCalls:
    """Sessions that say something new in every tick and never end."""

    def __init__(
        self, backend: Backend, policy: KvPolicy, headers: Sequence[Sequence[int]]
    ) -> None:
        """Nothing is sent yet. One session for each of `headers`, which are their sinks."""
        block_size = backend.snapshot().block_size
        limits = ContextLimits(policy, block_size, backend.max_context, backend.can_drop)
        self._backend, self._limits = backend, limits
        self._calls = [
            _Call(f"call-{index}", tuple(header), ResidentContext(limits), random.Random(index))
            for index, header in enumerate(headers)
        ]

    def open(self, stagger: int = 0) -> None:
        """Send every header, one session after the other as calls come in.

        Session i says `i * stagger` tokens beside it, so that not all are cut back in the same tick.
        """
        for index, call in enumerate(self._calls):
            spoken = _say(call, 1 + index * stagger)
            plan = call.context.reconcile(
                [Segment(call.header, "header"), Segment(spoken, "message")], 1
            )
            call.age = len(plan.token_ids)
            self._run([self._append(call, plan.token_ids, 1, None)], [])

    def tick(self, spoken: int, decode: int) -> TickCost:
        """Every session hears `spoken` new tokens and answers with `decode`.

        Raises:
            CallFailed: the backend ended a session.
        """
        wall, cpu = time.perf_counter(), time.thread_time()
        drops: list[Drop] = []
        appends = [self._next(call, spoken, decode, drops) for call in self._calls]
        engine_s, shift_s = self._run(appends, drops)
        return TickCost(
            min(call.age for call in self._calls),
            time.perf_counter() - wall,
            time.thread_time() - cpu,
            engine_s,
            shift_s,
            sum(drop.stop - drop.start for drop in drops),
            self._backend.snapshot().held_blocks,
        )

    def close(self) -> None:
        self._backend.step(TickBatch(closes=tuple(call.name for call in self._calls)))

    def _next(self, call: _Call, spoken: int, decode: int, drops: list[Drop]) -> Append:
        """The session's append, cut back first if its window is full."""
        context, policy = call.context, self._limits.policy
        fresh = _say(call, spoken)
        if policy.name == "anchored" and (cut := context.due_drop()) is not None:
            context.dropped(*cut)
            drops.append(Drop(call.name, *cut))
        elif policy.name == "recycle" and (cut := self._excess(context)) is not None:
            start, stop = cut
            return self._append(call, (*context.tokens[stop:], *fresh), decode, start)
        return self._append(call, fresh, decode, None)

    def _excess(self, context: ResidentContext) -> tuple[int, int] | None:
        limits = self._limits
        limit = limits.policy.limit(context.header, limits.max_context)
        return limits.policy.cut(len(context.tokens), context.header, limit, limits.block_size)

    def _append(
        self, call: _Call, token_ids: Iterable[int], decode: int, keep: int | None
    ) -> Append:
        append = Append(call.name, 0, tuple(token_ids), decode, 0.0, keep_tokens=keep)
        call.context.appended(keep, append.token_ids)
        return append

    def _run(self, appends: Sequence[Append], drops: Sequence[Drop]) -> tuple[float, float]:
        """Step until all quotas are met; seconds within the backend, and of those on drops."""
        calls = {call.name: call for call in self._calls}
        result = self._backend.step(TickBatch(tuple(appends), tuple(drops)))
        engine_s, shift_s = result.engine_s, result.shift_s
        while True:
            for chunk in result.chunks:
                if chunk.error is not None:
                    raise CallFailed(f"{chunk.session_id}: {chunk.error}")
                calls[chunk.session_id].context.sampled(chunk.token_ids)
                calls[chunk.session_id].age += len(chunk.token_ids)
            if not self._backend.busy:
                return engine_s, shift_s
            result = self._backend.step(TickBatch())
            engine_s += result.engine_s


def _say(call: _Call, count: int) -> tuple[int, ...]:
    call.age += count
    return tuple(call.tokens.randint(_FIRST, _LAST) for _ in range(count))


def random_header(tokens: int, seed: int) -> tuple[int, ...]:
    """Instructions of a call, as far as the engine can tell."""
    drawn = random.Random(f"header {seed}")
    return tuple(drawn.randint(_FIRST, _LAST) for _ in range(tokens))
