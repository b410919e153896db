"""Voxtral realtime: a causal transcriber that hears 80 ms and writes one token, for as long as the call lasts.

    audio   [ 32 x silence ][ 7 x 80 ms of the call ] | 80 ms | 80 ms | …
    tokens  <s> [PAD] x 38                         t0 |  t1   |  t2   | …

A position *is* a token and the 80 ms that belong to it, added up: each append is the token that was sampled last, once
more, now with the sound behind it. So the context grows by one token a tick. Words come `delay` ticks after their
sound; most tokens are padding. Encoder and decoder keep their KV in vLLM's paged cache behind sliding windows of their
own, so nothing is dropped from outside.

Where the context ends, the next tick starts another one with the same preamble, and with the audio whose words were
still to come: none are lost.

Features are made by the encoder itself; what is handed over are samples, with a little before and after each tick.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
from engine.models.detokenizer import IncrementalDetokenizer
from engine.models.tekken import Tekken
from engine.models.tools import Tool, ToolChoice
from engine.speech.ports import SPEECH_RATE, Samples
from engine.speech.resample import Resampler
from engine.work import Feature, Sampling

ARCHITECTURE = "VoxtralRealtimeGeneration"
TICK_MS = 80
_RATE = 24_000  # Hz, of the caller's audio unless a session says otherwise


@dataclass(frozen=True, slots=True)
class KvSpace:
    """What the engine gives one context."""

    tokens: int = 4096  # at most
    block_tokens: int = 32

    def blocks(self, window: int, opens: int) -> int:
        """Held by layers that look back `window` tokens (0: all of them), of contexts that open with so many."""
        kept = min(self.tokens, window + opens) if window else self.tokens
        return -(-kept // self.block_tokens) + 1


class _Call:
    """One session's state.

        # [0, start) forgotten · [start, end) in the context, kept for a new one · [end, …) to be heard

    Positions are samples at 16 kHz of the stream with silence in front.
    """

    def __init__(self, setup: SessionSetup, silence: int, end: int, spelling: Tekken) -> None:
        self.setup = setup
        self.resampler = Resampler(setup.input_rate, SPEECH_RATE)
        self.audio: Samples = np.zeros(silence, np.float32)  # from `start` on
        self.start = 0
        self.end = end  # of the next append's audio, what is looked ahead aside
        self.context = 0  # tokens; 0: the next append opens a context
        self.newest = 0  # the token sampled last
        self.detokenizer = IncrementalDetokenizer(spelling)

    def read(self, start: int, stop: int) -> Samples:
        return self.audio[start - self.start : stop - self.start]

    def forget(self, before: int) -> None:
        if before > self.start:
            self.audio = self.audio[before - self.start :]
            self.start = before


class VoxtralRealtime:
    """Frame-locked `InteractionModel` that transcribes."""

    def __init__(
        self, model_id: str, tokens: Tekken, windows: Sequence[int], space: KvSpace
    ) -> None:
        """`windows`: tokens that each block table of a context keeps; 0: all there are.

        Raises:
            ValueError: the model does not hear 80 ms at a time, or its preamble fills the context.
        """
        audio = self._audio = tokens.audio
        if audio.per_token * 1000 != TICK_MS * SPEECH_RATE:
            raise ValueError(f"a token is {audio.per_token} samples, not {TICK_MS} ms")
        pad = tokens.special("[STREAMING_PAD]")
        preamble = (tokens.special("<s>"), *[pad] * (audio.left_pad + audio.delay))
        if len(preamble) + 2 > space.tokens:
            raise ValueError(f"a context of {space.tokens} tokens holds no more than the preamble")
        self.spec = ModelSpec(
            id=model_id,
            tick_ms=TICK_MS,
            input_rate=_RATE,
            output_rate=_RATE,
            decode_per_tick=1,
            prefill_per_tick=1,
            header_tokens=len(preamble),
            decides_turns=True,
            transcribes=True,
            words_behind_ms=audio.delay * TICK_MS,
            blocks_per_session=sum(space.blocks(window, len(preamble)) for window in windows),
        )
        self._tokens = tokens
        self._pad = pad
        self._preamble = preamble
        self._max_context = space.tokens

    def open(self, setup: SessionSetup) -> _Call:
        # A tick is complete when it is there, because as much silence comes first as is looked ahead.
        silence = self._audio.left_pad * self._audio.per_token + self._audio.look_ahead
        return _Call(setup, silence, self._first_end, self._tokens)

    @property
    def _first_end(self) -> int:
        return len(self._preamble) * self._audio.per_token

    def configure(self, state: _Call, setup: SessionSetup) -> None:
        if setup.input_rate != state.setup.input_rate:
            state.resampler = Resampler(setup.input_rate, SPEECH_RATE)
        state.setup = setup

    # -- one tick ----------------------------------------------------------------

    def hear(self, batch: Sequence[tuple[_Call, bytes]]) -> list[Heard]:
        """A chunk per tick, but none in the first six of a call: the preamble ends with them."""
        return [Heard(chunk=self._chunk(state, pcm)) for state, pcm in batch]

    def _chunk(self, state: _Call, pcm: bytes) -> AudioChunk | None:
        audio = self._audio
        state.audio = np.concatenate([state.audio, state.resampler.push(pcm)])
        if state.start + len(state.audio) < state.end + audio.look_ahead:
            return None
        if state.context + 2 > self._max_context:
            self._start_over(state)
        opens = state.context == 0
        tokens = self._preamble if opens else (state.newest,)
        start = max(state.end - len(tokens) * audio.per_token - audio.look_back, 0)
        heard = state.read(start, state.end + audio.look_ahead)
        state.context += len(tokens) if opens else 1
        state.end += audio.per_token
        state.forget(state.end - (audio.delay + 1) * audio.per_token - audio.look_back)
        feature = Feature("audio", 0, len(tokens), {"audio_arrays": heard[None]})
        return AudioChunk(
            tokens,
            1,
            features=(feature,),
            header=len(tokens) if opens else 0,
            replaces=None if opens else 1,
        )

    def _start_over(self, state: _Call) -> None:
        """A new context: silence, the audio whose words are still to come, and what has not been heard."""
        audio = self._audio
        pending = state.end - (audio.delay + 1) * audio.per_token
        unheard = state.read(pending, state.start + len(state.audio))
        silence = np.zeros(audio.left_pad * audio.per_token, np.float32)
        state.audio, state.start = np.concatenate([silence, unheard]), 0
        state.end, state.context = self._first_end, 0

    def decode(self, state: _Call, token_ids: Sequence[int], pcm: bytes = b"") -> TickOutput:
        """The text that the token completes; `turn_over` where it is padding, so no word is being written."""
        state.newest = token_ids[-1]
        text = state.detokenizer.feed(token_ids)
        return TickOutput(text, speaking=bool(text), turn_over=state.newest == self._pad)

    def sampling(self) -> Sampling:
        return Sampling()

    # -- what a transcriber has no use for ----------------------------------------

    def prompt(self, state: _Call, instructions: str, messages: Sequence[Message]) -> list[Segment]:
        """The preamble, whatever the instructions."""
        return [Segment(self._preamble, "header")]

    def calls(
        self, messages: Sequence[Message], tools: Sequence[Tool], choice: ToolChoice
    ) -> Sequence[str]:
        """It calls nothing."""
        return ()

    def utterance(self, state: _Call, *, cut: bool) -> Utterance | None:
        """None: turns are found beside it."""
        return None

    def clear(self, state: _Call) -> None:
        """What was heard stays heard."""

    def transcribe(self, utterance: Utterance) -> str:
        """It transcribes as it hears."""
        return ""

    def weigh(self, state: _Call, utterance: Utterance, words: str) -> None:
        """Its words end no turn."""

    def begin(self, state: _Call) -> None:
        """It answers nothing."""

    def remember(self, state: _Call, text: str, token_ids: Sequence[int]) -> None:
        """Nothing to spell again."""

    def ended(self, state: _Call, playback_ms: int) -> None:
        """It never waits for the caller."""

    def speak(self, text: str, voice: str, speed: float) -> bytes:
        """It has no voice."""
        return b""
