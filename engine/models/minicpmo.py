"""MiniCPM-o 4.5: a full-duplex model that decides once a second whether to listen or to speak.

    header  <unit> 10 audio | <|listen|>                          listening costs one decoded token
    </unit> <unit> <image> 64 </image> 10 audio | <|listen|>      with something to see
    </unit> <unit> 10 audio | <|speak|> so it goes <|chunk_eos|>  speaking at most 20
    </unit> <unit> 10 audio | and ends. <|turn_eos|> <|chunk_eos|>
    </unit> <unit> 10 audio | <|listen|>

Each line but the first is one append; what stands behind the bar is decoded, and its last token is part of the context
like all others (the backend feeds it again, because vLLM would forget it). The protocol's rules are enforced while
sampling: within a turn of its own the model cannot listen, the 20th token ends the unit, and control tokens of the
input are never written. Two things differ from the authors' code: <|chunk_eos|> competes with the other tokens rather
than being drawn first, and audio is encoded second by second, without their encoder's cache of the past.

The model writes text; its own voice (a second model and a vocoder fed with hidden states) is not run. A voice part
speaks instead.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.models.audio_format import AudioFormat, Tensors
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
from engine.models.chatml import ChatMl, Persona
from engine.models.image_format import ImageFormat, minicpm_images, moved
from engine.models.picture import PictureError
from engine.models.tools import Tool, ToolChoice
from engine.speech.mel import Features, StreamingMel
from engine.speech.ports import SPEECH_RATE, Voice
from engine.speech.resample import Resampler
from engine.work import Sampling, TokenRules

ARCHITECTURE = "MiniCPMO"
TICK_MS = 1000
UNIT_TOKENS = 20  # decoded per second at most
MAX_WORDS = 64  # tokens of text beside an image, which are fed with it
MAX_SHOWN = (
    8  # images that wait for their unit; each has one of its own. Past it the oldest is not seen
)
FORCED_LISTENS = 1  # units at the start of a call in which it may not speak
_RATE = 24_000
_NEVER_WRITTEN = (
    "<unk>",
    "<unit>",
    "</unit>",
    "<image>",
    "</image>",
    "<slice>",
    "</slice>",
    "<|audio_start|>",
    "<|audio|>",
    "<|audio_end|>",
    "<|im_start|>",
    "<|tts_pad|>",
)
PERSONA = Persona("Streaming Omni Conversation.")


def audio_format(config: Mapping[str, Any], control: Callable[[str], int]) -> AudioFormat:
    """From config.json; `control` gives the id of a control token."""
    pool: int = config.get("audio_pool_step", 5)

    def tokens(frames: int) -> int:
        return ((frames - 1) // 2 + 1 - pool) // pool + 1

    return AudioFormat(
        bins=config.get("audio_config", {}).get("num_mel_bins", 80),
        chunk_frames=100,
        min_frames=2 * pool,
        placeholder=control("<unk>"),
        before=(),
        after=(),
        tokens=tokens,
        tensors=_tensors,
    )


def image_format(config: Mapping[str, Any], control: Callable[[str], int]) -> ImageFormat:
    """From config.json; `control` gives the id of a control token."""
    around = control("<image>"), control("</image>")
    return minicpm_images(config.get("query_num", 64), control("<unk>"), around)


def _tensors(mel: Features, silence: float) -> Tensors:
    """float32[1, bins, frames]."""
    return {
        "audio_features": mel[None],
        "audio_feature_lens": np.array([[mel.shape[1]]], np.int64),
    }


class UnitTokens(ChatMl):
    """The tokenizer, and the tokens of the unit protocol."""

    def __init__(self, folder: Path) -> None:
        """Read `tokenizer.json` in `folder`.

        Raises:
            ValueError: it is unusable, or lacks a token of the protocol.
        """
        super().__init__(folder, PERSONA)
        self._folder = folder
        self.unit, self.unit_ends = self.control("<unit>"), self.control("</unit>")
        self.listen, self.speaks = self.control("<|listen|>"), self.control("<|speak|>")
        self.chunk_ends = self.control("<|chunk_eos|>")
        self.turn_ends = self.control("<|turn_eos|>")
        self.voice_begins = self.control("<|tts_bos|>")
        self.terminators = (self.listen, self.chunk_ends, self.control("<|chunk_tts_eos|>"))
        known = (self._tokenizer.token_to_id(name) for name in _NEVER_WRITTEN)
        self.never_written = tuple(token for token in known if token is not None)

    def words(self, text: str) -> tuple[int, ...]:
        """The tokens of a stretch of text."""
        return self._text(text)

    def control(self, name: str) -> int:
        """The id of a control token. Raises ValueError if there is none."""
        return self._control(name, self._folder)


class _Call:
    """One session's state."""

    def __init__(self, setup: SessionSetup, bins: int, unspelled: Any) -> None:
        self.setup = setup
        self.resampler = Resampler(setup.input_rate, SPEECH_RATE)
        self.mel = StreamingMel(bins)
        self.shown: deque[AudioChunk] = deque(maxlen=MAX_SHOWN)
        self.units = 0  # appended so far
        self.speaking = False  # a turn of the model's is open
        self.asked = False  # to speak: its next unit begins so
        self.detokenizer = unspelled


class MiniCpmO:
    """Frame-locked `InteractionModel` that writes."""

    def __init__(
        self,
        model_id: str,
        tokens: UnitTokens,
        audio: AudioFormat,
        voice: Voice,
        images: ImageFormat | None = None,
    ) -> None:
        """`images` None: it does not see."""
        shown = images.cost + MAX_WORDS if images else 0
        self.spec = ModelSpec(
            id=model_id,
            tick_ms=TICK_MS,
            input_rate=_RATE,
            output_rate=voice.rate,
            decode_per_tick=UNIT_TOKENS,
            prefill_per_tick=2 + audio.cost(audio.chunk_frames),
            prefill_per_image=shown,
            header_tokens=len(tokens.header("")),
            decides_turns=True,
            writes=True,
            stop_token_ids=tokens.terminators,
        )
        self._tokens = tokens
        self._audio = audio
        self._images = images
        self._voice = voice

    def open(self, setup: SessionSetup) -> _Call:
        return _Call(setup, self._audio.bins, self._tokens.detokenizer())

    def configure(self, state: _Call, setup: SessionSetup) -> None:
        """New instructions count for the next call: this one's header is in its context."""
        if setup.input_rate != state.setup.input_rate:
            state.resampler = Resampler(setup.input_rate, SPEECH_RATE)
        state.setup = setup

    # -- one second ------------------------------------------------------------

    def hear(self, batch: Sequence[tuple[_Call, bytes]]) -> list[Heard]:
        return [Heard(chunk=self._unit(state, pcm)) for state, pcm in batch]

    def _unit(self, state: _Call, pcm: bytes) -> AudioChunk:
        tokens = self._tokens
        state.mel.push(state.resampler.push(pcm))
        item = self._audio.item(state.mel.take(state.mel.ready), state.mel.floor)
        header: tuple[int, ...] = ()
        if state.units == 0:
            header = tokens.header(state.setup.instructions)
        before = (*header, tokens.unit) if header else (tokens.unit_ends, tokens.unit)
        seen = state.shown.popleft() if state.shown else AudioChunk((), 1)
        features = (
            *(moved(feature, len(before)) for feature in seen.features),
            *(moved(feature, len(before) + len(seen.token_ids)) for feature in item.features),
        )
        state.units += 1
        return AudioChunk(
            (*before, *seen.token_ids, *item.token_ids),
            UNIT_TOKENS,
            features=features,
            header=len(header),
            stop_token_ids=tokens.terminators,
            sampling=self._rules(state),
        )

    def _rules(self, state: _Call) -> Sampling:
        tokens = self._tokens
        first = tokens.speaks if state.asked and not state.speaking else None
        if state.units <= FORCED_LISTENS:
            first = tokens.listen
        else:
            state.asked = False
        rules = TokenRules(
            forbid=tokens.never_written,
            instead=((tokens.listen, tokens.voice_begins),) if state.speaking else (),
            first=first,
            last=tokens.chunk_ends,
        )
        return Sampling(0.7, 0.8, top_k=20, repetition_penalty=1.05, rules=rules)

    def decode(self, state: _Call, token_ids: Sequence[int], pcm: bytes = b"") -> TickOutput:
        if not token_ids or token_ids[0] == self._tokens.listen:
            state.speaking = False
            return TickOutput(speaking=False)
        if not state.speaking:
            state.detokenizer = self._tokens.detokenizer()
        state.speaking = self._tokens.turn_ends not in token_ids
        text = state.detokenizer.feed(token_ids)
        return TickOutput(text, turn_over=not state.speaking)

    def see(self, content: Sequence[str | bytes]) -> AudioChunk:
        assert self._images is not None, self.spec
        if sum(isinstance(part, bytes) for part in content) != 1:
            raise PictureError(
                "This model is shown one image per item: each has a second of its own."
            )
        seen = self._images.content(tuple(content), self._tokens.words)
        if len(seen.token_ids) > self.spec.prefill_per_image:
            raise PictureError(f"The text beside an image may have {MAX_WORDS} tokens.")
        return seen

    def show(self, state: _Call, content: AudioChunk) -> None:
        state.shown.append(content)

    def speak(self, text: str, voice: str, speed: float) -> bytes:
        return self._voice.speak(text, voice, speed)

    # -- what a frame-locked model has no use for --------------------------------

    def prompt(self, state: _Call, instructions: str, messages: Sequence[Message]) -> list[Segment]:
        """The header; messages have no place in its context."""
        return [Segment(self._tokens.header(instructions), "header")]

    def calls(
        self, messages: Sequence[Message], tools: Sequence[Tool], choice: ToolChoice
    ) -> Sequence[str]:
        """It calls nothing."""
        return ()

    def utterance(self, state: _Call, *, cut: bool) -> Utterance | None:
        """None: it hears by itself."""
        return None

    def clear(self, state: _Call) -> None:
        """Nothing is buffered."""

    def transcribe(self, utterance: Utterance) -> str:
        """It answers what it hears, and does not say what that was."""
        return ""

    def weigh(self, state: _Call, utterance: Utterance, words: str) -> None:
        """It decides by itself when to speak."""

    def begin(self, state: _Call) -> None:
        """An answer is asked for: the next unit is not one of listening."""
        state.asked = True

    def remember(self, state: _Call, text: str, token_ids: Sequence[int]) -> None:
        """Nothing to spell again."""

    def ended(self, state: _Call, playback_ms: int) -> None:
        """It never waits for the caller."""

    def sampling(self) -> Sampling:
        return Sampling()
