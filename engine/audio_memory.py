"""What a model that hears for itself has been given to hear in one call. Pure.

In a context every stretch of audio is a run of the same placeholder token, whatever was said. The mirror of the context
must tell them apart, so there each stretch is written as its *mark* instead: one negative number, repeated.

    fed to the engine    … <|im_start|> user \\n <|audio_bos|> A  A  A  A <|audio_eos|> …
    in the mirror        … <|im_start|> user \\n <|audio_bos|> -7 -7 -7 -7 <|audio_eos|> …

Features are kept for as much audio as a context can hold, so that any of it can be fed again: after an item was
deleted, or the caller interrupted, or the engine gave the context up. What is older is fed as bare placeholders.
"""

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from engine.models.base import AudioChunk, Segment
from engine.work import Feature

MAX_ITEMS = 4096  # spoken items, oldest forgotten: hours of them


class AudioMemory:
    """Items spoken so far, the turn under way, and the features behind them."""

    def __init__(self, max_audio_tokens: int) -> None:
        """Features are kept for the newest `max_audio_tokens` tokens of audio."""
        self.turn: list[int] = []  # marked tokens of the turn under way; empty between turns
        self.audio_tokens = 0  # for which features are kept
        self._max_audio_tokens = max_audio_tokens
        self._spoken: OrderedDict[str, tuple[int, ...]] = OrderedDict()  # item id -> marked tokens
        self._features: OrderedDict[int, Feature] = OrderedDict()  # mark -> offset 0
        self._placeholders: dict[int, int] = {}  # mark -> token id
        self._marks = itertools.count(-1, -1)

    def hear(self, chunk: AudioChunk) -> tuple[int, ...]:
        """Add a chunk to the turn under way; its tokens, marked."""
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
        self.turn.extend(marked)
        return tuple(marked)

    def commit(self, item_id: str) -> None:
        """The turn under way is over and is this item."""
        self._spoken[item_id] = tuple(self.turn)
        self.turn.clear()
        if len(self._spoken) > MAX_ITEMS:
            self._spoken.popitem(last=False)

    def clear(self) -> None:
        """The turn under way is no turn after all."""
        self.turn.clear()

    def spell(self, segments: Sequence[Segment]) -> list[Segment]:
        """The segments, with what was heard in place of the words of spoken items."""
        return [
            replace(segment, token_ids=self._spoken[segment.item_id])
            if segment.item_id in self._spoken
            else segment
            for segment in segments
        ]

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
