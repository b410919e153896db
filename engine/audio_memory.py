"""What a model that hears for itself has been given to hear, and to see, in one call. Pure.

In a context every stretch of audio is a run of the same placeholder token, whatever was said. The mirror of the context
must tell them apart, so there each stretch is written as its *mark* instead: one negative number, repeated.

    fed to the engine    … <|im_start|> user \\n <|audio_bos|> A  A  A  A <|audio_eos|> …
    in the mirror        … <|im_start|> user \\n <|audio_bos|> -7 -7 -7 -7 <|audio_eos|> …

Images are stretches like any other. One that is shown while the caller speaks becomes a part of that turn, where it was
shown (an *inset*), and its own item is then empty; should the turn be forgotten, the item is a message by itself again.

Features are kept for as much audio as a context can hold, so that any of it can be fed again: after an item was
deleted, or the caller interrupted, or the engine gave the context up. What is older is fed as bare placeholders.
"""

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.models.base import AudioChunk, Segment
from engine.work import Feature

MAX_ITEMS = 4096  # spoken items, oldest forgotten: hours of them


@dataclass(frozen=True, slots=True)
class _Inset:
    """An item that is part of a spoken one."""

    item_id: str
    start: int  # within the tokens of the spoken item
    stop: int


class AudioMemory:
    """Items spoken so far, the turn under way, and the features behind them."""

    def __init__(self, max_audio_tokens: int) -> None:
        """Features are kept for the newest `max_audio_tokens` tokens of audio."""
        self.turn: list[int] = []  # marked tokens of the turn under way; empty between turns
        self.audio_tokens = 0  # for which features are kept
        self._max_audio_tokens = max_audio_tokens
        self._spoken: OrderedDict[str, tuple[int, ...]] = OrderedDict()  # item id -> marked tokens
        self._shown: list[_Inset] = []  # within the turn under way
        self._insets: dict[str, tuple[_Inset, ...]] = {}  # of spoken items that have any
        self._features: OrderedDict[int, Feature] = OrderedDict()  # mark -> offset 0
        self._placeholders: dict[int, int] = {}  # mark -> token id
        self._marks = itertools.count(-1, -1)

    def hear(self, chunk: AudioChunk) -> tuple[int, ...]:
        """Add a chunk to the turn under way; its tokens, marked."""
        marked = self._mark(chunk)
        self.turn.extend(marked)
        return marked

    def show(
        self, item_id: str, content: AudioChunk, around: tuple[tuple[int, ...], tuple[int, ...]]
    ) -> tuple[int, ...]:
        """The caller shows something: part of the turn under way, or a message of its own, with `around` around it.

        Returns what to feed for it, marked.
        """
        marked = self._mark(content)
        message = (*around[0], *marked, *around[1])
        self._keep(item_id, message)
        if not self.turn:
            return message
        self._shown.append(_Inset(item_id, len(self.turn), len(self.turn) + len(marked)))
        self.turn.extend(marked)
        return marked

    def _mark(self, chunk: AudioChunk) -> tuple[int, ...]:
        marked = list(chunk.token_ids)
        for feature in chunk.features:
            mark = next(self._marks)
            run = slice(feature.offset, feature.offset + feature.length)
            self._placeholders[mark] = marked[feature.offset]
            self._features[mark] = Feature(
                feature.modality, 0, feature.length, feature.tensors, feature.key
            )
            self.audio_tokens += feature.length
            marked[run] = [mark] * feature.length
        while self.audio_tokens > self._max_audio_tokens:
            _, oldest = self._features.popitem(last=False)
            self.audio_tokens -= oldest.length
        return tuple(marked)

    def commit(self, item_id: str) -> None:
        """The turn under way is over and is this item."""
        self._keep(item_id, tuple(self.turn))
        if self._shown:
            self._insets[item_id] = tuple(self._shown)
        self.clear()

    def clear(self) -> None:
        """The turn under way is no turn after all."""
        self.turn.clear()
        self._shown.clear()

    def _keep(self, item_id: str, marked: tuple[int, ...]) -> None:
        self._spoken[item_id] = marked
        if len(self._spoken) > MAX_ITEMS:
            oldest, _ = self._spoken.popitem(last=False)
            self._insets.pop(oldest, None)

    def spell(self, segments: Sequence[Segment]) -> list[Segment]:
        """The segments, with what was heard or seen in place of the words of such items."""
        there = {segment.item_id for segment in segments}
        within = {i.item_id for item_id in there for i in self._insets.get(item_id, ())}
        return [
            replace(
                segment,
                token_ids=()
                if segment.item_id in within
                else self._spelled(segment.item_id, there),
            )
            if segment.item_id in self._spoken
            else segment
            for segment in segments
        ]

    def _spelled(self, item_id: str, there: set[str]) -> tuple[int, ...]:
        """An item's tokens, less its insets that are not `there` (any more)."""
        marked = self._spoken[item_id]
        for inset in reversed(self._insets.get(item_id, ())):
            if inset.item_id not in there:
                marked = marked[: inset.start] + marked[inset.stop :]
        return marked

    def unmark(self, marked: Sequence[int]) -> tuple[tuple[int, ...], tuple[Feature, ...]]:
        """What to feed for marked tokens: token ids and the features of each stretch that is whole and still kept."""
        token_ids: list[int] = []
        features: list[Feature] = []
        for token, run in itertools.groupby(marked):
            length = sum(1 for _ in run)
            if token >= 0:
                token_ids += [token] * length
                continue
            feature = self._features.get(token)
            if feature is not None and feature.length == length:
                features.append(
                    Feature(feature.modality, len(token_ids), length, feature.tensors, feature.key)
                )
            token_ids += [self._placeholders[token]] * length
        return tuple(token_ids), tuple(features)
