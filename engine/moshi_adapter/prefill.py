"""Brings one row through its prompt, a bounded stretch at a time, while the others keep their ticks.

A prompt's tokens are all known, so a stretch of it is one pass of the large transformer over that row alone: no codec,
no small transformer, no other row's state. Only at its end is anything drawn: the tokens of the position at which the
call goes on.
"""

import torch
from moshi.models import LMGen, LMModel
from moshi.utils.sampling import sample_token
from torch import Tensor

from engine.moshi_adapter.prompts import FREE, Prompt
from engine.moshi_adapter.rows import SharedRows


class Prefill:
    """Over the language model's rows. One thread."""

    def __init__(self, lm: LMModel, gen: LMGen, rows: SharedRows) -> None:
        self._lm, self._gen, self._rows = lm, gen, rows

    def advance(self, row: int, prompt: Prompt, done: int, most: int) -> int:
        """Feed up to `most` positions of `prompt` to `row`, which has had `done`; how many it has had then.

        The first stretch starts the row from nothing.
        """
        stop = min(done + most, prompt.frames)
        self._rows.use(1, first=row)
        device = self._lm.device
        if done == 0:
            self._gen.reset_streaming()
        self._gen.set_exec_mask(torch.ones(1, dtype=torch.bool, device=device))
        out = self._lm.transformer(self._inputs(prompt, done, stop))
        if stop == prompt.frames:
            self._enter(prompt, out[:, -1:])
        self._rows.settle()
        return stop

    def _inputs(self, prompt: Prompt, start: int, stop: int) -> Tensor:
        """[1, stop - start, dim]."""
        lm = self._lm
        tokens = prompt.tokens[None, :, start:stop].to(lm.device)
        total = lm.text_emb(tokens[:, 0].clamp(min=0))
        audio = tokens[:, lm.audio_offset :].clamp(min=0)  # left open only where embeddings stand
        for index, emb in enumerate(lm.emb):
            total = total + emb(audio[:, index])
        given = 0 if prompt.embeddings is None else len(prompt.embeddings)
        if prompt.embeddings is not None and start < given:
            known = prompt.embeddings[start:stop].to(total)
            total[0, : len(known)] = known
        inputs: Tensor = total
        return inputs

    def _enter(self, prompt: Prompt, out: Tensor) -> None:
        """Draw what the prompt left open at the next position, and let the stream go on from there."""
        lm, gen = self._lm, self._gen
        if lm.out_norm:
            out = lm.out_norm(out)
        logits = lm.text_linear(out)[:, None].float()
        text = sample_token(logits, gen.use_sampling, gen.temp_text, gen.top_k_text)[:, 0, 0]
        spoken = gen.depformer_step(text, out)
        column = prompt.tokens[:, -1].to(lm.device)
        drawn = torch.full_like(column, FREE)
        drawn[0] = text[0]
        drawn[lm.audio_offset : lm.audio_offset + lm.dep_q] = spoken[0]
        state = gen._streaming_state
        assert state is not None
        state.cache[0, :, prompt.frames % state.cache.shape[2]] = torch.where(
            column == FREE, drawn, column
        )
        state.offsets.fill_(prompt.frames)
