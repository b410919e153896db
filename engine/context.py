"""The mirror of one session's resident context, and how it is brought in line with the conversation. Pure.

The conversation is the truth; the KV cache follows. Before each answer the wanted token sequence is compared with what
is resident: the common prefix is kept, the rest is cut (rewind) and what is missing is appended. So barge-in, truncate,
deleting or inserting items, and new instructions all need no code of their own.

    resident  [ header ][ residue ][ window ............................ ]
              0         header     pin                                   end

The header is never dropped. When the window has moved, what lay between `pin` and the window is gone; the residue (less
than a block of the oldest message, because blocks are dropped whole) stays as it was. Each resident token knows its
place in the conversation, so the window is found again without the messages before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.kv_policy import KvPolicy
from engine.models.base import Segment

Place = tuple[str, int]  # item id, and offset within that item's tokens
_NOWHERE: Place = ("", 0)  # the header, a cue, or tokens of an answer that has no item yet


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


@dataclass(frozen=True, slots=True)
class _Stream:
    """Wanted tokens behind the header, and where each belongs."""

    tokens: list[int]
    places: list[Place]

    def part(self, start: int, stop: int | None = None) -> "_Stream":
        return _Stream(self.tokens[start:stop], self.places[start:stop])

    def __len__(self) -> int:
        return len(self.tokens)


class ContextTooLong(ValueError):
    """What must be kept does not fit into what one session may hold."""


class ResidentContext:
    """What the backend holds for one session: every token appended or sampled, less what was dropped."""

    def __init__(self, limits: ContextLimits) -> None:
        self.limits = limits
        self.tokens: list[int] = []
        self.header = 0  # length of the header in `tokens`
        self.pin = 0  # resident tokens before the window; 0 until it has moved
        self.lost = 0  # tokens gone between them, ever
        self._places: list[Place] = []  # of `tokens`
        self._incoming: list[Place] = []  # of the append that is about to be sent
        self._resume: Place = _NOWHERE  # of the first token of the window, once it has moved

    @property
    def is_full(self) -> bool:
        """True once the window is full: from then on the call costs what it will always cost."""
        return self.lost > 0 or len(self.tokens) >= self.header + self.limits.policy.window_tokens

    def reconcile(self, segments: Sequence[Segment], room: int) -> Reconciled:
        """How to reach the context that `segments` describe, leaving `room` tokens for the answer.

        Messages before the window may be missing from `segments`. What is to be dropped leaves the mirror at once;
        `appended` follows when the append is sent.

        Raises:
            ContextTooLong: the header alone does not fit, or the policy lets nothing go and all of it does not.
        """
        header = [t for s in segments if s.kind == "header" for t in s.token_ids]
        limit = self._limit(len(header)) - room
        if len(header) >= limit:
            raise ContextTooLong(
                f"Instructions of {len(header)} tokens leave no room in a context of {limit + room}."
            )
        stream = _stream([s for s in segments if s.kind != "header"])
        window = self._window(header, stream)
        if window is not None:
            plan = self._continue(window, limit, room)
            if plan is not None:
                return plan
        return self._rebuild(header, stream, limit)

    def due_drop(self, spare: int = 0) -> tuple[int, int] | None:
        """A drop that the policy wants now, for `spare` tokens to fit, if the backend can do it."""
        return self._cut(len(self.tokens), spare)

    # -- finding the way -----------------------------------------------------

    def _limit(self, header: int) -> int:
        return self.limits.policy.limit(header, self.limits.max_context)

    def _cut(self, length: int, spare: int) -> tuple[int, int] | None:
        limits = self.limits
        if not limits.can_drop or limits.policy.name != "anchored":
            return None
        limit = self._limit(self.header)
        return limits.policy.cut(length, self.header, limit, limits.block_size, spare)

    @property
    def _behind(self) -> int:
        return self.pin if self.lost else self.header

    def _window(self, header: list[int], stream: _Stream) -> _Stream | None:
        """What is wanted from the window's start on; None if the resident context starts otherwise."""
        if self.tokens[: self.header] != header:
            return None
        if not self.lost:
            return stream
        if self._resume == _NOWHERE or self._resume not in stream.places:
            return None
        return stream.part(stream.places.index(self._resume))

    def _continue(self, window: _Stream, limit: int, room: int) -> Reconciled | None:
        """Keep what is resident and append the rest, dropping the oldest if that is needed and enough."""
        behind = self._behind
        common = _common_prefix(self.tokens[behind:], window.tokens)
        keep, rest = behind + common, window.part(common)
        if self.lost and not common:
            return None  # nothing of the window is left: it had better start where it should
        self._places[behind:keep] = window.places[:common]
        if keep + len(rest) <= limit:
            return self._reached(None, keep, rest)
        cut = self._cut(keep, len(rest) + room)
        if cut is None or cut[1] >= keep or keep - (cut[1] - cut[0]) + len(rest) > limit:
            return None
        return self._reached(cut, keep - (cut[1] - cut[0]), rest)

    def _rebuild(self, header: list[int], stream: _Stream, limit: int) -> Reconciled:
        """Start over from what fits: the header and the newest tokens."""
        excess = max(0, len(header) + len(stream) - limit)
        if excess and not self.limits.policy.truncates:
            raise ContextTooLong(
                f"The conversation has grown past {limit} tokens, and truncation is disabled."
            )
        if excess:  # cut back to the window, not just to the limit, or the next answer would start over again
            excess += max(0, limit - len(header) - self.limits.policy.window_tokens)
        tail = stream.part(excess)
        target = header + tail.tokens
        keep = _common_prefix(self.tokens, target)
        places = [_NOWHERE] * len(header) + tail.places
        self._places[:keep] = places[:keep]
        self.header = len(header)
        self.pin, self.lost = (len(header), excess) if excess else (0, 0)
        self._resume = tail.places[0] if excess else _NOWHERE
        return self._reached(None, keep, _Stream(target[keep:], places[keep:]))

    def _reached(self, drop: tuple[int, int] | None, keep: int, rest: _Stream) -> Reconciled:
        if drop is not None:
            self.dropped(*drop)
        if not rest.tokens:  # the engine needs a token to compute from
            keep -= 1
            rest = _Stream([self.tokens[keep]], [self._places[keep]])
        self._incoming = rest.places
        return Reconciled(drop, keep, tuple(rest.tokens))

    # -- what happened -------------------------------------------------------

    def appended(self, keep_tokens: int | None, token_ids: Sequence[int]) -> None:
        """An append was sent."""
        if keep_tokens is not None:
            del self.tokens[keep_tokens:], self._places[keep_tokens:]
        places, self._incoming = self._incoming, []
        self.tokens.extend(token_ids)
        self._places.extend(places if len(places) == len(token_ids) else _nowhere(token_ids))

    def sampled(self, token_ids: Sequence[int]) -> None:
        """Tokens came back."""
        self.tokens.extend(token_ids)
        self._places.extend(_nowhere(token_ids))

    def dropped(self, start: int, stop: int) -> None:
        """The tokens [start, stop) are being forgotten."""
        assert self.header <= start < stop <= len(self.tokens), (self.header, start, stop)
        self._resume = self._places[stop] if stop < len(self.tokens) else _NOWHERE
        del self.tokens[start:stop], self._places[start:stop]
        self.pin = start
        self.lost += stop - start

    def reset(self) -> None:
        """The context is gone."""
        self.tokens.clear()
        self._places.clear()
        self.header = self.pin = self.lost = 0


def _stream(messages: Sequence[Segment]) -> _Stream:
    tokens = [token for segment in messages for token in segment.token_ids]
    places = [
        (segment.item_id, offset) if segment.item_id else _NOWHERE
        for segment in messages
        for offset in range(len(segment.token_ids))
    ]
    return _Stream(tokens, places)


def _nowhere(token_ids: Sequence[int]) -> list[Place]:
    return [_NOWHERE] * len(token_ids)


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading elements are equal."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))
