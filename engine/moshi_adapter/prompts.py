"""What a prompted call begins with: frames whose tokens are given instead of drawn, as PersonaPlex was trained.

    voice   the voice's own codes where the model's would be │ text: padding       │ caller: a tone of 440 Hz
    pause   half a second of silence                         │ text: padding       │ likewise
    role    silence                                          │ text: a token each  │ likewise
    pause   half a second of silence                         │ text: padding       │ likewise

Parts that were not asked for are left out, the role with its pause. The order, the pauses and the tone are those of
NVIDIA's server (github.com/NVIDIA/personaplex, moshi/models/lm.py, `step_system_prompts`).

A frame's codes lie on the positions that the language model reads, each stream delayed as it is in a call:

    position        0      1      2    …   N-1   │  N                  N: where the call itself goes on
    text          start   t1     t2        tN-1  │  drawn
    first code    start   a1     a2        aN-1  │  drawn              the first frame is lost to the start tokens,
    other codes   start  start   a1        aN-2  │  aN-1               here as there
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError

import torch
from moshi.models import LMModel
from torch import Tensor

from engine.backend import EngineUnavailable

PAUSE_FRAMES = 6  # int(0.5 s at 12.5 frames a second)
FREE = -2  # a token that the model draws


@dataclass(frozen=True, slots=True)
class VoicePrompt:
    """A voice: its codes, or what the model's inputs were when it had heard them."""

    codes: Tensor | None  # int64[dep_q, frames]
    # Instead of codes: [frames - 1, dim], and the tokens int64[K, 2] at the last position of the voice and the next.
    embeddings: Tensor | None = None
    ends: Tensor | None = None

    @property
    def frames(self) -> int:
        if self.codes is not None:
            return int(self.codes.shape[1])
        assert self.embeddings is not None
        return len(self.embeddings) + 1


@dataclass(frozen=True, slots=True)
class Prompt:
    """All frames of one call's prompt, as positions."""

    tokens: Tensor  # int64[K, N + 1]; FREE where the model draws
    embeddings: Tensor | None  # [E, dim]: instead of the tokens at the first E positions

    @property
    def frames(self) -> int:
        return int(self.tokens.shape[1]) - 1


def read_voice(path: Path, lm: LMModel) -> VoicePrompt:
    """A voice that NVIDIA's code has saved.

    Raises:
        EngineUnavailable: it is none, or of another model.
    """
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        embeddings, cache = saved["embeddings"], saved["cache"]
        frames, dim = len(embeddings) + 1, lm.text_emb.weight.shape[1]
        embeddings = embeddings.reshape(frames - 1, dim)
        # Their ring of positions; it is written up to one position past the voice's last.
        ring = cache.shape[-1]
        ends = cache.reshape(lm.num_codebooks, ring)[:, [(frames - 1) % ring, frames % ring]]
    # What a file of another kind makes of itself. weights_only: nothing in it is run.
    except (
        OSError,
        EOFError,
        RuntimeError,
        LookupError,
        TypeError,
        AttributeError,
        UnpicklingError,
    ) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise EngineUnavailable(f"{path} is no voice of this model: {reason}") from error
    return VoicePrompt(None, embeddings, ends.long())


class Prompts:
    """Lays prompts out for one model."""

    def __init__(self, lm: LMModel, silence: Tensor, tone: Tensor) -> None:
        """`silence` and `tone` are what the codec makes of them: int64[codebooks]."""
        self._lm = lm
        self._spoken, self._heard = silence[: lm.dep_q], tone[: lm.n_q - lm.dep_q]
        self._initial = lm._get_initial_token()[0, :, 0].cpu()

    def of(self, role: Sequence[int], voice: VoicePrompt | None) -> Prompt:
        """The prompt of a role (text tokens, may be empty) and a voice."""
        pad = self._lm.text_padding_token_id
        pause = [(pad, self._spoken)] * PAUSE_FRAMES
        frames = [*pause]
        if role:
            frames += [*((token, self._spoken) for token in role), *pause]
        before = 0 if voice is None else voice.frames
        if voice is not None and voice.codes is not None:
            frames = [*((pad, voice.codes[:, k]) for k in range(before)), *frames]
            before = 0
        grid = self._grid(frames, before)
        if voice is None or voice.embeddings is None:
            return Prompt(grid, None)
        assert voice.ends is not None
        grid[:, before - 1] = voice.ends[:, 0]
        later = torch.tensor(self._lm.delays) > 0
        grid[later, before] = voice.ends[later, 1]
        return Prompt(grid, voice.embeddings)

    def _grid(self, frames: Sequence[tuple[int, Tensor]], before: int) -> Tensor:
        """The positions of `frames`, which follow `before` others that are left open."""
        lm, total = self._lm, before + len(frames)
        grid = torch.full((lm.num_codebooks, total + 1 + max(lm.delays)), FREE)
        for at, (text, spoken) in enumerate(frames, before):
            column = torch.cat([torch.tensor([text]), spoken, self._heard])
            for k, delay in enumerate(lm.delays):
                grid[k, at + delay] = column[k]
        for k, delay in enumerate(lm.delays):
            grid[k, : delay + 1] = self._initial[k]
        return grid[:, : total + 1]
