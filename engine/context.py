"""The mirror of one session's resident context, and how it is brought in line with the conversation. Pure.

The conversation is the truth; the KV cache follows. Before each answer the wanted token sequence is compared with what
is resident: the common prefix is kept, the rest is cut (rewind) and what is missing is appended. So barge-in, truncate,
deleting or inserting items, and new instructions all need no code of their own.

    wanted    [ header, messages … cue ........................................ ]
    resident  [ wanted[0 : pin] ][ wanted[pin + lost : ] ]

The header and the few tokens up to the next block boundary are pinned; `lost` tokens behind them have been dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.kv_policy import KvPolicy
from engine.models.base import Segment


@dataclass(frozen=True, slots=True)
class Reconciled:
    """How to reach the wanted context: first drop, then keep, then append."""

    drop: tuple[int, int] | None
    keep_tokens: int  # after the drop
    token_ids: tuple[int, ...]

    @property
    def input_tokens(self) -> int:
        return self.keep_tokens + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """What one session may hold."""

    policy: KvPolicy
    block_size: int
    max_context: int
    can_drop: bool


class ContextTooLong(ValueError):
    """The header alone leaves no room for an answer."""


class ResidentContext:
    """What the backend holds for one session: every token appended or sampled, less what was dropped."""

    def __init__(self, limits: ContextLimits) -> None:
        self.limits = limits
        self.tokens: list[int] = []
        self.header = 0  # length of the header in `tokens`
        self.pin = 0  # resident tokens before the hole; 0 while there is none
        self.lost = 0  # tokens dropped at `pin`

    def reconcile(self, segments: Sequence[Segment], room: int) -> Reconciled:
        """How to reach the context that `segments` describe, leaving `room` tokens for the answer.

        Changes nothing but the mirror of what is dropped or forgotten; `appended` follows when the append is sent.

        Raises:
            ContextTooLong: header and room together pass what one session may hold.
        """
        header = sum(len(s.token_ids) for s in segments if s.kind == "header")
        wanted = [token for segment in segments for token in segment.token_ids]
        limit = self.limits.policy.limit(header, self.limits.max_context) - room
        if header >= limit:
            raise ContextTooLong(
                f"a header of {header} tokens leaves no room in a context of {limit + room}"
            )
        keep = self._common(wanted)
        rest = wanted[keep + self.lost :] if keep > self.pin or not self.lost else None
        if rest is not None and header == self.header:
            if keep + len(rest) <= limit:
                return self._reached(None, keep, rest)
            cut = self._cut(keep, len(rest) + room)
            if cut is not None and keep - (cut[1] - cut[0]) + len(rest) <= limit:
                return self._reached(cut, keep - (cut[1] - cut[0]), rest)
        return self._rebuild(wanted, header, limit)

    def due_drop(self) -> tuple[int, int] | None:
        """A drop that the policy wants now, if the backend can do it."""
        return self._cut(len(self.tokens), 0)

    def _cut(self, length: int, spare: int) -> tuple[int, int] | None:
        if not self.limits.can_drop or self.limits.policy.name != "anchored":
            return None
        return self.limits.policy.cut(length, self.header, self.limits.block_size, spare)

    def _common(self, wanted: list[int]) -> int:
        """Length of the resident prefix that `wanted` still has, counted in resident tokens."""
        before = _common_prefix(self.tokens, wanted)
        if not self.lost or before < self.pin:
            return before
        return self.pin + _common_prefix(self.tokens[self.pin :], wanted[self.pin + self.lost :])

    def _rebuild(self, wanted: list[int], header: int, limit: int) -> Reconciled:
        """Start over from what of `wanted` fits: the pinned start and the newest tokens."""
        block = self.limits.block_size
        pin = min(-(-header // block) * block, limit - 1)
        excess = max(0, len(wanted) - limit)
        target = wanted[:pin] + wanted[pin + excess :] if excess else wanted
        self.header = header
        keep = min(_common_prefix(self.tokens, target), self.pin if self.lost else len(self.tokens))
        self.pin, self.lost = (pin, excess) if excess else (0, 0)
        return self._reached(None, keep, target[keep:])

    def _reached(self, drop: tuple[int, int] | None, keep: int, rest: list[int]) -> Reconciled:
        if drop is not None:
            self.dropped(*drop)
        if not rest:  # the engine needs a token to compute from
            keep, rest = keep - 1, [self.tokens[keep - 1]]
        return Reconciled(drop, keep, tuple(rest))

    def appended(self, keep_tokens: int | None, token_ids: Sequence[int]) -> None:
        """An append was sent."""
        if keep_tokens is not None:
            del self.tokens[keep_tokens:]
        self.tokens.extend(token_ids)

    def sampled(self, token_ids: Sequence[int]) -> None:
        """Tokens came back."""
        self.tokens.extend(token_ids)

    def dropped(self, start: int, stop: int) -> None:
        """The tokens [start, stop) are being forgotten."""
        assert not self.lost or start == self.pin, (start, self.pin)
        del self.tokens[start:stop]
        self.pin = start
        self.lost += stop - start

    def reset(self) -> None:
        """The context is gone."""
        self.tokens.clear()
        self.header = self.pin = self.lost = 0


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading elements are equal."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))
