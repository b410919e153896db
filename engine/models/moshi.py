"""Moshi and its kin as the engine sees them: a frame of sound in, a frame of sound and perhaps a word out, for ever.

The model itself lives in the backend (engine/moshi_adapter). What is left here is what surrounds it:

    caller audio -> 24 kHz frames of 80 ms -> backend -> text tokens -> words
                                                      -> frames      -> spoken, or silence that nobody is sent

A response opens with the first frame that sounds or begins a word, and closes once nothing has done either for
`close_after_ms`; the pauses within it are sent, because they are part of how it speaks. Whether to speak, to stop or to
talk over the caller is the model's own decision, so turn detection and response.create do not reach it. Instructions
and voice do where the model takes prompts (PersonaPlex), before the first frame.
"""

import codecs
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.backend import EngineUnavailable
from engine.models.base import (
    AudioChunk,
    Heard,
    Message,
    ModelSpec,
    Segment,
    SessionSetup,
    TickOutput,
    Utterance,
)
from engine.models.tools import Tool, ToolChoice
from engine.speech.loudness import to_pcm16
from engine.speech.resample import Resampler
from engine.work import Feature, Sampling

RATE = 24_000  # Hz, in and out: Mimi's
TICK_MS = 80
FRAME_BYTES = 2 * RATE * TICK_MS // 1000
_FULL_SCALE = 32768.0
_SILENT = TickOutput(speaking=False)
_LISTENED = Heard()
# Text tokens that are no words: end of padding, start, end, padding (moshi's `existing_text_padding_id` and its kin).
_NO_WORDS = frozenset({0, 1, 2, 3})
_TINY_WORDS = 100
_TAG = "<system>"  # before and after a role


@dataclass(frozen=True, slots=True)
class MoshiVoice:
    """How a deployment tells the model's speech from its silence."""

    silence_dbfs: float = -55.0  # RMS of a frame, relative to full scale; below it is silence
    close_after_ms: int = 640  # silence that ends a response


@dataclass(frozen=True, slots=True)
class MoshiPrompts:
    """How a deployment's calls begin."""

    encode: Callable[[str], Sequence[int]]  # a text's tokens
    voices: tuple[str, ...] = ()


def read_spelling(tokenizer: Path) -> tuple[bytes, ...]:
    """What each text token spells, from a SentencePiece model.

    Raises:
        EngineUnavailable: the package is missing, or the file is no such model.
    """
    pieces = _pieces(tokenizer)
    return tuple(_bytes_of(token, pieces.id_to_piece(token)) for token in range(len(pieces)))


def read_encoder(tokenizer: Path) -> Callable[[str], Sequence[int]]:
    """How a text is written in tokens, by a SentencePiece model.

    Raises:
        EngineUnavailable: as `read_spelling`.
    """
    pieces = _pieces(tokenizer)

    def encode(text: str) -> Sequence[int]:
        tokens: list[int] = pieces.encode(text)
        return tokens

    return encode


def _pieces(tokenizer: Path) -> Any:
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise EngineUnavailable("sentencepiece is missing; pip install sentencepiece") from error
    try:
        return SentencePieceProcessor(model_file=str(tokenizer))
    except (OSError, RuntimeError) as error:
        raise EngineUnavailable(f"{tokenizer} is no SentencePiece model") from error


def tiny_encoder(text: str) -> Sequence[int]:
    """A token per word for the tiny random model, always the same."""
    first = len(_NO_WORDS)
    return [first + zlib.crc32(w.encode()) % (_TINY_WORDS - first) for w in text.split()]


def tiny_spelling() -> tuple[bytes, ...]:
    """Words for the text tokens of the tiny random model: " w4" to " w99"."""
    return tuple(b"" if t in _NO_WORDS else f" w{t}".encode() for t in range(_TINY_WORDS))


def _bytes_of(token: int, piece: str) -> bytes:
    if token in _NO_WORDS:
        return b""
    if len(piece) == 6 and piece.startswith("<0x"):  # a byte of a character that has no piece
        return bytes([int(piece[3:5], 16)])
    return piece.replace("▁", " ").encode()


class MoshiCaller:
    """One session's state."""

    def __init__(self, setup: SessionSetup) -> None:
        self.setup = setup
        self.resampler = Resampler(setup.input_rate, RATE)
        self.waiting = b""  # audio at 24 kHz, short of a frame
        # Bytes of an unfinished character wait inside.
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.speaking = False
        self.quiet_ms = 0  # since it last sounded, while speaking


class MoshiModel:
    """Frame-locked `InteractionModel` over a backend that takes and gives sound."""

    def __init__(
        self,
        id: str,
        spelling: Sequence[bytes],
        voice: MoshiVoice | None = None,
        *,
        prompts: MoshiPrompts | None = None,
        quality: str = "",
    ) -> None:
        """`spelling` holds what each text token spells; a token beyond it spells nothing."""
        self.spec = ModelSpec(
            id=id,
            tick_ms=TICK_MS,
            input_rate=RATE,
            output_rate=RATE,
            decode_per_tick=1,
            decides_turns=True,
            hears_inline=True,
            quality=quality,
            blocks_per_session=1,
            prompted=prompts is not None,
            voices=prompts.voices if prompts is not None else (),
        )
        self._prompts = prompts
        chosen = voice or MoshiVoice()
        self._spelling = tuple(spelling)
        self._floor = _FULL_SCALE * 10 ** (chosen.silence_dbfs / 20)
        self._close_after_ms = chosen.close_after_ms

    def open(self, setup: SessionSetup) -> MoshiCaller:
        return MoshiCaller(setup)

    def configure(self, state: MoshiCaller, setup: SessionSetup) -> None:
        """Once frames are heard only the rate of the caller's audio matters."""
        if setup.input_rate != state.setup.input_rate:
            state.resampler = Resampler(setup.input_rate, RATE)
        state.setup = setup

    def opening(self, state: MoshiCaller) -> AudioChunk | None:
        """The role between tags, as PersonaPlex was trained, and the voice by its name."""
        if self._prompts is None:
            return None
        role, voice = state.setup.instructions.strip(), state.setup.voice
        if role and not (role.startswith(_TAG) and role.endswith(_TAG)):
            role = f"{_TAG} {role} {_TAG}"
        tokens = tuple(self._prompts.encode(role)) if role else ()
        voices = (voice,) if voice in self._prompts.voices else ()
        if not tokens and not voices:
            return None
        return AudioChunk(tokens, 1, features=tuple(Feature("voice", 0, 0, {}, v) for v in voices))

    def hear(self, batch: Sequence[tuple[MoshiCaller, bytes]]) -> list[Heard]:
        return [self._hear(state, pcm) for state, pcm in batch]

    def _hear(self, state: MoshiCaller, pcm: bytes) -> Heard:
        """A whole frame if there is one; a commit's short rest waits for what follows it."""
        if state.setup.input_rate != RATE:
            pcm = to_pcm16(state.resampler.push(pcm))
        waiting = state.waiting + pcm
        if len(waiting) < FRAME_BYTES:
            state.waiting = waiting
            return _LISTENED
        state.waiting = waiting[FRAME_BYTES:]
        return Heard(chunk=AudioChunk((), 1, waiting[:FRAME_BYTES]))

    def decode(self, state: MoshiCaller, token_ids: Sequence[int], pcm: bytes = b"") -> TickOutput:
        text = state.decoder.decode(b"".join(self._spelled(token) for token in token_ids))
        if text.strip() or self._sounds(pcm):
            text = text if state.speaking else text.lstrip()
            state.speaking, state.quiet_ms = True, 0
        elif state.speaking:
            state.quiet_ms += TICK_MS
            state.speaking = state.quiet_ms < self._close_after_ms
        return TickOutput(text, pcm) if state.speaking else _SILENT

    def _spelled(self, token: int) -> bytes:
        return self._spelling[token] if token < len(self._spelling) else b""

    def _sounds(self, pcm: bytes) -> bool:
        if not pcm:
            return False
        samples = np.frombuffer(pcm, "<i2").astype(np.float32)
        return float(samples @ samples) > self._floor**2 * len(samples)

    def utterance(self, state: MoshiCaller, *, cut: bool) -> Utterance | None:
        """None: the model hears by itself."""
        return None

    def clear(self, state: MoshiCaller) -> None:
        """What the model has heard it has heard."""

    def transcribe(self, utterance: Utterance) -> str:
        """The model has no words for what it hears."""
        return ""

    def weigh(self, state: MoshiCaller, utterance: Utterance, words: str) -> None:
        """The model takes turns by itself."""

    def prompt(
        self, state: MoshiCaller, instructions: str, messages: Sequence[Message]
    ) -> list[Segment]:
        """Nothing: sound is all that enters."""
        return []

    def calls(
        self, messages: Sequence[Message], tools: Sequence[Tool], choice: ToolChoice
    ) -> Sequence[str]:
        """It calls nothing."""
        return ()

    def begin(self, state: MoshiCaller) -> None:
        """It begins by itself."""

    def remember(self, state: MoshiCaller, text: str, token_ids: Sequence[int]) -> None:
        """Nothing is spelled again."""

    def ended(self, state: MoshiCaller, playback_ms: int) -> None:
        """It never waits for the caller."""

    def speak(self, text: str, voice: str, speed: float) -> bytes:
        """Its voice comes out of `decode`."""
        return b""

    def sampling(self) -> Sampling:
        """Drawn as the backend was told to."""
        return Sampling()
