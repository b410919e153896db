"""One step of all rows that are due: encode, language model, decode, each in one batch.

A row that is not due is masked out: its streams stay exactly as they were, as if the step had not been. A new session
starts its row from nothing; nothing of the one before can be reached.

    frame 0    starts the clock: the language model takes its start tokens, and says nothing yet. The encoder forgets
               the frame, as in Kyutai's own server, because the model sees the caller's audio from the next one on
    frame n    codes of frame n in; words and codes of frame n − max_delay out (one frame, 80 ms)

A row that had a prompt has its clock running already: its frame 0 is heard and answered like any other.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from moshi.models import LMGen, LMModel
from moshi.utils.compile import no_compile
from numpy.typing import NDArray
from torch import Tensor

from engine.moshi_adapter.prefill import Prefill
from engine.moshi_adapter.prompts import Prompt
from engine.moshi_adapter.rows import SharedRows, row_mask
from engine.moshi_adapter.settings import MoshiSettings
from engine.moshi_adapter.weights import Models


@dataclass(frozen=True, slots=True)
class RowInput:
    """One frame of one row."""

    row: int
    frames: int  # that this session was heard for before this one; 0: it starts here
    pcm: bytes
    prompted: bool = False  # `prefill` brought it through a prompt before

    def is_ready(self, max_delay: int) -> bool:
        """True if this frame gives words and sound."""
        return self.prompted or self.frames >= max_delay


@dataclass(frozen=True, slots=True)
class RowOutput:
    """What a row gave: nothing on its first frames."""

    text_token: int | None
    pcm: bytes


class Lockstep:
    """Owns the models and their streams. One thread."""

    def __init__(self, models: Models, settings: MoshiSettings) -> None:
        """Take the memory of all rows and, on a GPU, capture the graphs of all batch sizes."""
        self._device = torch.device(settings.device)
        self._encoder, self._decoder = models.encoder, models.decoder
        self._gen = LMGen(
            models.lm,
            use_sampling=settings.temperature > 0 or settings.text_temperature > 0,
            temp=settings.temperature,
            temp_text=settings.text_temperature,
            support_out_of_sync=True,
        )
        sizes = self._sizes = settings.batch_sizes
        self._rows = [
            SharedRows((self._encoder,), sizes),
            SharedRows((self._gen, models.lm), sizes),
            SharedRows((self._decoder,), sizes),
        ]
        self.frame_bytes = 2 * int(self._encoder.frame_size)
        self.context_frames = int(models.lm.context)
        self._lm = models.lm
        self._prefill = Prefill(models.lm, self._gen, self._rows[1])
        self._prompt_frames = settings.prompt_frames
        torch.manual_seed(settings.seed)
        self._warm_up(sizes)

    def step(self, size: int, inputs: Sequence[RowInput]) -> list[RowOutput]:
        """Advance the rows in `inputs`, of a batch of `size`; outputs in the same order."""
        ready = [i.row for i in inputs if i.is_ready(self._gen.max_delay)]
        with self._computing():
            self._use(size)
            self._start_rows(size, inputs)
            words, sound = self._run(size, inputs, ready)
            for rows in self._rows:
                rows.settle()
        return [
            RowOutput(int(words[i.row]), sound[i.row].tobytes())
            if i.row in ready
            else RowOutput(None, b"")
            for i in inputs
        ]

    def prefill(self, row: int, prompt: Prompt, done: int) -> int:
        """Bring `row`, which has had `done` frames of `prompt`, a bounded stretch further; how many it has had then."""
        # Every length of a stretch would be compiled anew, while everybody waits.
        with self._computing(), no_compile():
            return self._prefill.advance(row, prompt, done, self._prompt_frames)

    def encode(self, sound: NDArray[np.int16]) -> Tensor:
        """Codes int64[codebooks, frames] of a sound by itself, a rest short of a frame filled up with silence.

        Only while nobody is seated: it takes row 0.
        """
        samples = self.frame_bytes // 2
        padded = np.pad(sound, (0, -len(sound) % samples))
        size = self._sizes[0]
        codes = []
        with self._computing():
            self._use(size)
            self._encoder.reset_streaming(row_mask(size, [0], self._device))
            self._encoder.set_exec_mask(row_mask(size, [0], self._device))
            for start in range(0, len(padded), samples):
                frame = RowInput(0, 0, padded[start : start + samples].astype("<i2").tobytes())
                codes.append(self._encoder.encode(self._sound_of(size, [frame]))[0, :, 0].cpu())
                self._rows[0].settle()
        return torch.stack(codes, dim=1)

    @property
    def lm(self) -> LMModel:
        return self._lm

    def move(self, source: int, target: int) -> None:
        """Let the session in row `source` go on in row `target`."""
        with self._computing():
            for rows in self._rows:
                rows.move(source, target)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """No gradients; and where the work is done.

        On a CPU without torch.compile: moshi's few compiled functions cost 8 s per batch size there. On a GPU with its
        card as the current one: a graph is captured on that one's stream, and on another's it would stay empty.
        """
        on_cpu = self._device.type == "cpu"
        place = no_compile() if on_cpu else torch.cuda.device(self._device)
        with torch.no_grad(), place:
            yield

    def _use(self, size: int) -> None:
        for rows in self._rows:
            rows.use(size)

    def _start_rows(self, size: int, inputs: Sequence[RowInput]) -> None:
        new = [i for i in inputs if i.frames == 0]
        if new:
            mask = row_mask(size, [i.row for i in new], self._device)
            for module in (self._encoder, self._decoder):
                module.reset_streaming(mask)
        unprompted = [i.row for i in new if not i.prompted]
        if unprompted:
            self._gen.reset_streaming(row_mask(size, unprompted, self._device))
        second = [i.row for i in inputs if i.frames == 1 and not i.prompted]
        if second:
            self._encoder.reset_streaming(row_mask(size, second, self._device))

    def _run(
        self, size: int, inputs: Sequence[RowInput], ready: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
        """Text tokens int64[size] and sound int16[size, samples]; rows that are not ready hold anything."""
        due = row_mask(size, [i.row for i in inputs], self._device)
        self._encoder.set_exec_mask(due)
        self._gen.set_exec_mask(due)
        self._decoder.set_exec_mask(row_mask(size, ready, self._device))
        codes = self._encoder.encode(self._sound_of(size, inputs))
        tokens = self._gen.step(codes)
        assert tokens is not None, "support_out_of_sync"
        wave = self._decoder.decode(tokens[:, 1:].clamp(min=0))
        sound = (wave[:, 0] * 32767.0).clamp(-32768, 32767).to(torch.int16)
        return tokens[:, 0, 0].cpu().numpy(), sound.cpu().numpy()

    def _sound_of(self, size: int, inputs: Sequence[RowInput]) -> Tensor:
        """float32[size, 1, samples] at full scale ±1; silence where nothing is due."""
        sound = np.zeros((size, 1, self.frame_bytes // 2), np.int16)
        for item in inputs:
            sound[item.row, 0] = np.frombuffer(item.pcm, "<i2")
        return torch.from_numpy(sound).to(self._device).float() / 32768.0

    def _warm_up(self, sizes: Sequence[int]) -> None:
        """Steps with every row masked out. moshi captures a graph in the second call; two more to be sure."""
        steps = 4 if self._device.type == "cuda" else 1
        with self._computing():
            for size in sizes:
                self._use(size)
                for _ in range(steps):
                    self._run(size, (), ())
                for rows in self._rows:
                    rows.settle()
