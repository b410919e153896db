"""How one model family takes audio: which tokens stand for it, and which tensors its encoder wants."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.models.base import AudioChunk
from engine.speech.mel import Features
from engine.work import Feature

FRAMES_PER_S = 100
Tensors = dict[str, Any]  # numpy arrays by the encoder's names, one item each


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """Pure functions and constants; shared by all sessions."""

    bins: int  # mel bins
    chunk_frames: int  # of one item while the caller speaks; the last of a turn is shorter
    min_frames: int  # fewer give no token, or break the encoder
    placeholder: int  # token id
    before: tuple[int, ...]  # around each item
    after: tuple[int, ...]
    tokens: Callable[[int], int]  # frames -> placeholders
    tensors: Callable[[Features, float], Tensors]  # features, and the value of silence among them

    def item(self, mel: Features, silence: float) -> AudioChunk:
        """Features float32[bins, frames] as tokens; none for fewer frames than the encoder takes."""
        frames = mel.shape[1]
        if frames < self.min_frames:
            return AudioChunk((), 1)
        length = self.tokens(frames)
        tokens = (*self.before, *[self.placeholder] * length, *self.after)
        feature = Feature("audio", len(self.before), length, self.tensors(mel, silence))
        return AudioChunk(tokens, 1, features=(feature,))

    def cost(self, frames: int) -> int:
        """Context tokens that so much audio of one turn takes, the tokens around its items included."""
        whole, rest = divmod(frames, self.chunk_frames)
        around = len(self.before) + len(self.after)
        cost = whole * (self.tokens(self.chunk_frames) + around)
        return cost + (self.tokens(rest) + around if rest >= self.min_frames else 0)

    @property
    def tokens_per_s(self) -> float:
        """While the caller speaks, the tokens around the items included."""
        return self.cost(self.chunk_frames) * FRAMES_PER_S / self.chunk_frames
