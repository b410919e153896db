"""One resident context in the backend, and whoever is decoding from it now."""

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from engine.context import ContextLimits, Reconciled, ResidentContext
from engine.extent import Extent
from engine.models.base import AudioChunk
from engine.stepping import Stepper
from engine.work import Append, Drop, Feature, Sampling, TokenChunk

Taker = Callable[[TokenChunk, float], None]


class Mirror(Protocol):
    """What a lane tells its picture of the resident context, and asks of it."""

    header: int

    @property
    def is_full(self) -> bool: ...
    def due_drop(self, spare: int = 0) -> tuple[int, int] | None: ...
    def appended(self, keep_tokens: int | None, token_ids: Sequence[int]) -> None: ...
    def sampled(self, token_ids: Sequence[int]) -> None: ...
    def dropped(self, start: int, stop: int) -> None: ...
    def reset(self) -> None: ...


M = TypeVar("M", bound=Mirror)


class LaneOf(Generic[M]):
    """Keeps the mirror true whatever becomes of the answers: tokens of an abandoned one still enter the context."""

    def __init__(self, lane_id: str, stepper: Stepper, context: M) -> None:
        self.id = lane_id
        self.context = context
        self.epoch = 0  # of the answer that may take chunks; older chunks only move the mirror
        self.sent_at = 0.0  # when the newest append left for the backend
        self._stepper = stepper
        self._taker: Taker | None = None  # None while nobody decodes
        self._stop_token_ids: tuple[int, ...] = ()
        self._sampling = Sampling()

    def _submit(
        self,
        token_ids: tuple[int, ...],
        decode: int,
        deadline: float,
        keep: int | None,
        pcm: bytes = b"",
        features: tuple[Feature, ...] = (),
    ) -> None:
        append = Append(
            self.id,
            self.epoch,
            token_ids,
            decode,
            deadline,
            self._stop_token_ids,
            self._sampling,
            keep,
            pcm,
            features,
        )
        self._stepper.submit(append, self)

    def feed(self, chunk: AudioChunk, deadline: float, taker: Taker) -> None:
        """Append a tick of a frame-locked model."""
        self._taker = taker
        self._stop_token_ids, self._sampling = chunk.stop_token_ids, chunk.sampling
        self._trim()
        if chunk.header:
            self.context.header = chunk.header
        keep = self._kept(chunk.replaces) if chunk.replaces != 0 else None
        self._submit(chunk.token_ids, chunk.decode, deadline, keep, chunk.pcm, chunk.features)

    def _kept(self, replaces: int | None) -> int | None:
        """Tokens to keep in front of a tick that replaces so many, or what there is (None); None: all of them."""
        raise AssertionError(replaces)  # conversations are only appended to

    def _trim(self, spare: int = 0) -> None:
        """Cut the context back if it has outgrown its window, or would with `spare` tokens more."""
        if self._stepper.is_dropping(self.id):
            return
        cut = self.context.due_drop(spare)
        if cut is not None:
            self.context.dropped(*cut)
            self._stepper.drop(Drop(self.id, *cut))

    def abandon(self) -> None:
        """Nobody wants more tokens; those under way go to the mirror only."""
        self.epoch += 1
        self._taker = None
        self._stepper.withdraw(self.id)

    def rest(self) -> None:
        """An answer ended by itself: use the quiet to cut the context back."""
        self._taker = None
        self._trim()

    def close(self) -> None:
        self._taker = None
        self._stepper.close(self.id)

    # -- ChunkSink -----------------------------------------------------------

    def sent(self, append: Append, now: float) -> None:
        self.sent_at = now
        self.context.appended(append.keep_tokens, append.token_ids)

    def take(self, chunk: TokenChunk, now: float) -> None:
        if chunk.error is not None:
            self.context.reset()
        else:
            self.context.sampled(chunk.token_ids)
        if chunk.epoch == self.epoch and self._taker is not None:
            self._taker(chunk, now)


class Lane(LaneOf[ResidentContext]):
    """Of a conversation: the context follows what was said, whatever becomes of it afterwards."""

    def __init__(self, lane_id: str, stepper: Stepper, limits: ContextLimits) -> None:
        super().__init__(lane_id, stepper, ResidentContext(limits))

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
        """Bring the context to where `plan` says and decode the first tokens of a new answer."""
        self.epoch += 1
        self._taker, self._stop_token_ids, self._sampling = taker, stop, sampling
        if plan.drop is not None:
            self._stepper.drop(Drop(self.id, *plan.drop))
        self._submit(plan.token_ids, decode, deadline, plan.keep_tokens)

    def more(self, decode: int, deadline: float) -> None:
        """Go on decoding, in a window that is cut back whenever it has outgrown its slack."""
        self._trim()
        self._submit((), decode, deadline, None)


class FrameLane(LaneOf[Extent]):
    """Of a frame-locked model: only the length of the context matters."""

    def __init__(self, lane_id: str, stepper: Stepper, limits: ContextLimits) -> None:
        super().__init__(lane_id, stepper, Extent(limits))

    def _kept(self, replaces: int | None) -> int | None:
        return 0 if replaces is None else self.context.length - replaces
