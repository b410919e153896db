"""How long a resident context is, where nobody has to know what is in it. Constant size, pure.

A frame-locked call is never reconciled with a conversation: its lane only has to know when the window is due to move.
Keeping the tokens themselves would cost a few integers per tick, for as long as the call lasts.
"""

from collections.abc import Sequence

from engine.context import ContextLimits


class Extent:
    """The length of what the backend holds for one session, header included."""

    def __init__(self, limits: ContextLimits) -> None:
        self.limits = limits
        self.length = 0  # tokens resident
        self.header = 0  # of them: never dropped
        self.lost = 0  # tokens dropped, ever
        self._drops = limits.can_drop and limits.policy.name == "anchored"
        self._limit = (-1, 0)  # (header, longest length with that header): asked at every tick

    @property
    def is_full(self) -> bool:
        """True once the window is full: from then on the call costs what it will always cost."""
        return self.lost > 0 or self.length >= self.header + self.limits.policy.window_tokens

    def due_drop(self, spare: int = 0) -> tuple[int, int] | None:
        """A drop that the policy wants now, for `spare` tokens to fit, if the backend can do it."""
        if not self._drops:
            return None
        limits = self.limits
        if self._limit[0] != self.header:
            self._limit = self.header, limits.policy.limit(self.header, limits.max_context)
        limit = self._limit[1]
        if self.length + spare <= limit:
            return None
        return limits.policy.cut(self.length, self.header, limit, limits.block_size, spare)

    def appended(self, keep_tokens: int | None, token_ids: Sequence[int]) -> None:
        """An append was sent."""
        kept = self.length if keep_tokens is None else keep_tokens
        self.length = kept + len(token_ids)

    def sampled(self, token_ids: Sequence[int]) -> None:
        """Tokens came back."""
        self.length += len(token_ids)

    def dropped(self, start: int, stop: int) -> None:
        """The tokens [start, stop) are being forgotten."""
        assert self.header <= start < stop <= self.length, (self.header, start, stop)
        self.length -= stop - start
        self.lost += stop - start

    def reset(self) -> None:
        """The context is gone."""
        self.length = self.header = self.lost = 0
