"""The prompts of a deployment: which voices there are, what a call asked for, and how far each call has come."""

import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.backend import EngineUnavailable
from engine.moshi_adapter.lockstep import Lockstep
from engine.moshi_adapter.prompts import PAUSE_FRAMES, Prompt, Prompts, VoicePrompt, read_voice
from engine.moshi_adapter.settings import MoshiSettings
from engine.moshi_adapter.slots import Seat
from engine.moshi_adapter.voices import voice_files
from engine.speech.loudness import to_pcm16
from engine.speech.resample import Resampler
from engine.work import Append

_RATE = 24_000  # Hz, Mimi's
_VOICE_DBFS = (
    -24.0
)  # loudness of a recorded voice: NVIDIA's server aims at −24 LUFS, this at the same RMS
# What the released codec makes of digital silence and of a 440 Hz tone, from NVIDIA's server.
_MIMI_CARD = 2048
_SILENCE = (948, 243, 1178, 546, 1736, 1030, 1978, 2008)
_TONE = (430, 1268, 381, 1611, 1095, 1495, 56, 472)
_SETTLED_FRAMES = 10  # of a steady sound, until another codec's codes of it are taken


@dataclass(slots=True)
class _Underway:
    append: Append
    seat: Seat
    prompt: Prompt


class Prompting:
    """Calls whose prompt is not over yet, first come first served. One thread."""

    def __init__(self, lockstep: Lockstep, settings: MoshiSettings) -> None:
        """Read the voices.

        Raises:
            EngineUnavailable: a file is no voice of this model.
        """
        self._lockstep = lockstep
        lm = lockstep.lm
        self._voices = {
            name: self._read(path) for name, path in voice_files(settings.voices).items()
        }
        silence, tone = self._markers(lm.card)
        self._prompts = Prompts(lm, silence, tone)
        longest = max((voice.frames for voice in self._voices.values()), default=0)
        # A prompt may fill the ring, but not drop its own beginning.
        self._role_tokens = lockstep.context_frames - longest - 2 * PAUSE_FRAMES
        if self._role_tokens < 1:
            raise EngineUnavailable(
                f"a voice of {longest} frames and its pauses leave no room for a role "
                f"in {lockstep.context_frames} frames of context"
            )
        self._underway: dict[str, _Underway] = {}

    def __bool__(self) -> bool:
        """True while any prompt is unfinished."""
        return bool(self._underway)

    def has(self, session_id: str) -> bool:
        """True while that call's prompt is unfinished."""
        return session_id in self._underway

    def refusal(self, append: Append) -> str | None:
        """Why this cannot be a call's prompt, if so."""
        if len(append.token_ids) > self._role_tokens:
            return f"the instructions have {len(append.token_ids)} tokens; at most {self._role_tokens} fit"
        unknown = [f.key for f in append.features if f.key not in self._voices]
        return f"there is no voice {unknown[0]!r}" if unknown else None

    def begin(self, append: Append, seat: Seat) -> None:
        """Start the prompt of a call that has just been seated."""
        voices = [self._voices[f.key] for f in append.features if f.key is not None]
        prompt = self._prompts.of(append.token_ids, voices[0] if voices else None)
        self._underway[append.session_id] = _Underway(append, seat, prompt)

    def leave(self, session_id: str) -> None:
        """Forget a call. Idempotent."""
        self._underway.pop(session_id, None)

    def advance(self) -> tuple[Append, Seat] | None:
        """One stretch of the oldest prompt; that call, if it is over with it."""
        if not self._underway:
            return None
        session_id, job = next(iter(self._underway.items()))
        seat = job.seat
        seat.prompt_frames = self._lockstep.prefill(seat.row, job.prompt, seat.prompt_frames)
        if seat.prompt_frames < job.prompt.frames:
            return None
        del self._underway[session_id]
        return job.append, seat

    def _read(self, path: Path) -> VoicePrompt:
        if path.suffix == ".pt":
            return read_voice(path, self._lockstep.lm)
        codes = self._lockstep.encode(_recording(path))
        return VoicePrompt(codes[: self._lockstep.lm.dep_q])

    def _markers(self, card: int) -> tuple[Tensor, Tensor]:
        """Silence and the tone, as codes int64[codebooks]."""
        if card == _MIMI_CARD:
            return torch.tensor(_SILENCE), torch.tensor(_TONE)
        samples = _SETTLED_FRAMES * self._lockstep.frame_bytes // 2
        wave_440 = 0.5 * np.sin(2 * np.pi * 440 * np.arange(samples) / _RATE)
        silence = self._lockstep.encode(np.zeros(samples, np.int16))
        tone = self._lockstep.encode((wave_440 * 32767).astype(np.int16))
        return silence[:, -1], tone[:, -1]


def _recording(path: Path) -> NDArray[np.int16]:
    """A recorded voice at 24 kHz, brought to the loudness of a prompt."""
    try:
        with wave.open(str(path)) as file:
            if (file.getnchannels(), file.getsampwidth()) != (1, 2):
                raise EngineUnavailable(f"{path}: a voice must be mono, 16 bit")
            rate, pcm = file.getframerate(), file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise EngineUnavailable(f"{path} is no recording: {error}") from error
    samples = Resampler(rate, _RATE).push(pcm)
    level = float(np.sqrt(np.mean(np.square(samples)))) if len(samples) else 0.0
    if not level:
        raise EngineUnavailable(f"{path} is silent")
    wanted = 10 ** (_VOICE_DBFS / 20)
    return np.frombuffer(to_pcm16(np.clip(samples * (wanted / level), -1, 1)), "<i2")
