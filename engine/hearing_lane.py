"""A lane that audio enters while the caller still speaks, so that an answer only has to append its cue.

What is fed early is a guess at the conversation to come. The guess need not be right: before an answer the context is
reconciled with what the conversation has become, and where they differ (an item was deleted, an answer cut short) the
difference is fed again.

Feeding without decoding is not possible in vLLM, so each chunk samples one token. It is *surplus*: the next append cuts
it off again, which costs nothing, because the newest sampled token has no KV yet.
"""

from collections.abc import Sequence
from typing import Protocol

from engine.audio_memory import AudioMemory
from engine.context import ContextLimits, Reconciled, ResidentContext
from engine.lane import Lane, Taker
from engine.models.base import Segment
from engine.stepping import Stepper
from engine.work import Append, Feature, Sampling, TokenChunk


class Bridge(Protocol):
    """Says which tokens must come between a context that ends like this and the caller's next turn."""

    def __call__(self, tail: Sequence[int]) -> tuple[int, ...]: ...


class _HearingContext(ResidentContext):
    """Reads what was heard where the conversation has an item that was spoken."""

    def __init__(self, limits: ContextLimits, memory: AudioMemory) -> None:
        super().__init__(limits)
        self._memory = memory

    def reconcile(self, segments: Sequence[Segment], room: int) -> Reconciled:
        return super().reconcile(self._memory.spell(segments), room)


class HearingLane(Lane):
    """One resident context with audio in it."""

    def __init__(
        self,
        lane_id: str,
        stepper: Stepper,
        limits: ContextLimits,
        memory: AudioMemory,
        bridge: Bridge,
    ) -> None:
        super().__init__(lane_id, stepper, limits)
        self.context = _HearingContext(limits, memory)
        self._memory = memory
        self._bridge = bridge
        self._header: tuple[int, ...] | None = None  # None until `open`
        self._live = False  # the turn under way is being fed as it is heard
        self._unfed: list[int] = []  # of that turn, marked
        self._opens = False  # `_unfed` begins a turn
        self._whole = False  # `_unfed` are whole messages, of no turn under way
        self._deadline = 0.0  # of `_unfed`
        self._marked: tuple[int, ...] = ()  # of the newest append submitted
        self._listens = False  # the newest append submitted only listens
        self._in_flight = False  # the backend has an append
        self._listened = False  # and that only listens
        self._surplus = 0  # sampled tokens at the context's end that nobody asked for

    def open(self, header: tuple[int, ...], deadline: float) -> None:
        """Start an empty context with the header, ahead of the first word."""
        self._header, self._deadline = header, deadline
        self._flush()

    def listen(self, marked: tuple[int, ...], *, opens: bool, deadline: float) -> None:
        """More of the caller's turn; `opens` if it is the beginning."""
        if opens:
            self._live = self._taker is None
            if not self._whole:
                self._unfed.clear()
            self._opens = True
        if self._live:
            self._whole = False
            self._unfed.extend(marked)
            self._deadline = deadline
            self._flush()

    def show(self, marked: tuple[int, ...], deadline: float) -> None:
        """A whole message of the caller's between turns: fed now, or when the answer under way has ended."""
        full = len(self._unfed) + len(marked) > self.context.limits.max_context
        if full or not self._whole:
            self._unfed.clear()  # the next answer brings it
        self._opens = self._whole = True
        self._unfed.extend(marked)
        self._deadline = deadline
        self._flush()

    def begin(
        self,
        plan: Reconciled,
        taker: Taker,
        *,
        decode: int,
        deadline: float,
        stop: tuple[int, ...],
        sampling: Sampling,
    ) -> None:
        self._stop_listening()
        super().begin(plan, taker, decode=decode, deadline=deadline, stop=stop, sampling=sampling)

    def rest(self) -> None:
        super().rest()
        self._flush()

    def _stop_listening(self) -> None:
        self._live, self._surplus, self._whole = False, 0, False
        self._unfed.clear()

    def _flush(self) -> None:
        """Feed what is waiting, if nobody else uses the lane."""
        fresh = not self.context.tokens
        if self._in_flight or self._taker is not None or self._header is None:
            return
        if not (self._unfed or fresh):
            return
        if not fresh:
            self._trim(len(self._unfed))  # an image is a large append, and several may have waited
        kept = len(self.context.tokens) - self._surplus
        marked = [*self._joint(kept), *self._unfed]
        if kept + len(marked) + 1 > self._limit():
            self._stop_listening()  # the answer to this turn brings it, and makes room
            return
        if fresh:
            self.context.header = len(self._header)
        self._unfed.clear()
        self._opens = self._whole = False
        # Decoding one token is the least there is.
        self._stop_token_ids, self._sampling = (), Sampling()
        self._submit(tuple(marked), 1, self._deadline, None if fresh else kept)
        self._listens = True

    def _limit(self) -> int:
        """Tokens that listening may fill: what a drop cannot make room for is left to the next answer."""
        limits = self.context.limits
        if limits.policy.name == "anchored" and limits.can_drop:
            return limits.max_context
        assert self._header is not None
        return limits.policy.limit(len(self._header), limits.max_context)

    def _joint(self, kept: int) -> tuple[int, ...]:
        """What comes before the tokens to be fed."""
        if not kept:
            assert self._header is not None
            return self._header
        return self._bridge(self.context.tokens[max(0, kept - 8) : kept]) if self._opens else ()

    def _submit(
        self,
        token_ids: tuple[int, ...],
        decode: int,
        deadline: float,
        keep: int | None,
        pcm: bytes = b"",
        features: tuple[Feature, ...] = (),
    ) -> None:
        self._marked, self._listens = token_ids, False
        plain, found = self._memory.unmark(token_ids)
        super()._submit(plain, decode, deadline, keep, pcm, found)

    # -- ChunkSink -----------------------------------------------------------

    def sent(self, append: Append, now: float) -> None:
        self.sent_at = now
        self._in_flight, self._listened = True, self._listens
        self._surplus = 0
        self.context.appended(append.keep_tokens, self._marked)

    def take(self, chunk: TokenChunk, now: float) -> None:
        super().take(chunk, now)
        if chunk.error is not None:  # the next answer starts over
            self._in_flight = False
            self._stop_listening()
        elif chunk.finished:
            self._in_flight = False
            self._surplus = len(chunk.token_ids) if self._listened else 0
            self._flush()
