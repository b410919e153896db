"""Simulated models: a word-level chat format for cascades without weights, and a frame-locked model."""

import codecs
import re
import zlib
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
from engine.models.chat import Detokenizer, spoken_prefix
from engine.models.tool_turns import Sampled
from engine.models.tools import CallMark, Then, Tool, ToolChoice, call_schema, tool_block
from engine.sim_json import FIRST_BYTE
from engine.speech.loudness import to_pcm16
from engine.work import Sampling

_STOP = 1  # ends every turn
_ROLES = {"system": 3, "user": 4, "assistant": 5, "tool": 6}
_FIRST_WORD, _VOCABULARY = 10, 1000  # as the simulated backend samples: 10 … 999
_SUBJECTS = (
    "rivers, clouds, engines, bells, sparrows, lanterns, gardens, winters, painters, sailors"
)
_VERBS = "follow carry answer remember cross gather mend paint tune watch"
_OBJECTS = (
    "harbours. mountains. letters. windows. bridges, orchards. melodies, candles. maps. tides."
)
_WORD = re.compile(r"\S+")


def _vocabulary() -> tuple[str, ...]:
    """990 distinct words in ten sorts, every tenth of which ends a clause or a sentence."""
    stems = [word.strip(",.") for word in f"{_SUBJECTS} {_VERBS} {_OBJECTS}".split()]
    ends = {29: ".", 19: ",", 9: "."}
    words = []
    for index in range(_VOCABULARY - _FIRST_WORD):
        stem, turn = stems[index % len(stems)], index // len(stems)
        mark = ends.get(index % len(stems), "")
        words.append(f"{stem}{'' if not turn else _suffix(turn)}{mark}")
    return tuple(words)


def _suffix(number: int) -> str:
    """A pronounceable ending that tells the words of one stem apart."""
    return "aeiou"[number % 5] + "lmnrst"[number // 5 % 6] + ("" if number < 30 else "y")


_WORDS = _vocabulary()
_IDS = {word: _FIRST_WORD + index for index, word in enumerate(_WORDS)}


class SimDetokenizer:
    """Every token is a word and the space before it, but for the first; byte tokens (JSON) are what they spell."""

    def __init__(self) -> None:
        self._begun = False
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        spelled = bytes(i - FIRST_BYTE for i in token_ids if i >= FIRST_BYTE)
        if spelled:
            return self._bytes.decode(spelled)
        text = " ".join(
            _WORDS[(i - _FIRST_WORD) % len(_WORDS)] for i in token_ids if i >= _FIRST_WORD
        )
        if not text:
            return ""
        spaced = f" {text}" if self._begun else text
        self._begun = True
        return spaced


class SimChat:
    """`ChatFormat` over a fixed vocabulary of words; words it lacks become one it has, always the same."""

    stop_token_ids: tuple[int, ...] = (_STOP,)
    cue: tuple[int, ...] = (_ROLES["assistant"],)
    call_mark: CallMark | None = None

    def header(self, instructions: str, tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        return (_ROLES["system"], *_tokens(instructions), _STOP)

    def message(self, message: Message, sampled: Sequence[int] = ()) -> tuple[int, ...]:
        if message.role != "assistant":
            return (_ROLES[message.role], *_tokens(message.text), _STOP)
        kept, spelled = spoken_prefix(message.text, sampled, self.detokenizer())
        rest = _tokens(message.text[len(spelled) :])
        return (*self.cue, *sampled[:kept], *rest, _STOP)

    def turns(
        self, messages: Sequence[Message], sampled: Sampled, then: Then
    ) -> list[tuple[int, ...]]:
        return [self.message(message, sampled(message)) for message in messages]

    def lead(
        self, messages: Sequence[Message], tools: Sequence[Tool], then: Then
    ) -> tuple[int, ...]:
        if then == "answer":
            return self.cue
        return (_ROLES["system"], *_tokens(tool_block(tools)), _STOP, *self.cue)

    def calls(
        self, messages: Sequence[Message], tools: Sequence[Tool], choice: ToolChoice
    ) -> Sequence[str]:
        """A call of each tool that the last message names, unless a tool or the model itself wrote it.

        Where a call is required, of the first tool at least.
        """
        if choice == "none" or not tools:
            return ()
        # pipecat puts typed messages into the conversation as the system's.
        asks = bool(messages) and messages[-1].role in ("user", "system")
        asked = messages[-1].text if asks else ""
        named = [tool for tool in tools if _plain(tool["name"]) in _plain(asked)]
        if choice == "required":
            named = named or [tools[0]]
        return tuple(call_schema([tool]) for tool in named)

    def detokenizer(self) -> Detokenizer:
        return SimDetokenizer()


def _plain(text: str) -> str:
    """Lower-case words between single spaces: "get_weather" is named by "Get weather!"."""
    return f" {' '.join(re.findall('[a-z0-9]+', text.lower()))} "


def _tokens(text: str) -> tuple[int, ...]:
    return tuple(
        _IDS.get(word) or _FIRST_WORD + zlib.crc32(word.encode()) % len(_WORDS)
        for word in _WORD.findall(text)
    )


@dataclass(frozen=True, slots=True)
class SimDuplexSettings:
    """What a tick of the simulated frame-locked model costs."""

    id: str = "sim-duplex"
    tick_ms: int = 80
    prefill_per_tick: int = 2  # tokens of caller audio
    decode_per_tick: int = 1
    header_tokens: int = 32
    rate: int = 24_000  # Hz, in and out


class _Duplex:
    """One session's state: none, but an identity."""

    __slots__ = ()


class SimDuplex:
    """Frame-locked `InteractionModel`: a frame in, a frame out, each as cheap as it can be.

    Every tick of audio becomes the same few tokens, and whatever is decoded sounds as a steady hum.
    """

    def __init__(self, settings: SimDuplexSettings | None = None) -> None:
        chosen = settings or SimDuplexSettings()
        self.spec = ModelSpec(
            id=chosen.id,
            tick_ms=chosen.tick_ms,
            input_rate=chosen.rate,
            output_rate=chosen.rate,
            decode_per_tick=chosen.decode_per_tick,
            prefill_per_tick=chosen.prefill_per_tick,
            decides_turns=True,
            hears_inline=True,
            quality="simulated",
        )
        audio = tuple(range(_FIRST_WORD, _FIRST_WORD + chosen.prefill_per_tick))
        self._heard = Heard(chunk=AudioChunk(audio, chosen.decode_per_tick))
        self._header = tuple(range(_FIRST_WORD, _FIRST_WORD + chosen.header_tokens))
        samples = chosen.rate * chosen.tick_ms // 1000
        cycles = max(1, round(220 * chosen.tick_ms / 1000))  # whole ones, so that frames join
        phase = np.arange(samples) * (2 * np.pi * cycles / samples)
        self._output = TickOutput(pcm=to_pcm16((0.2 * np.sin(phase)).astype(np.float32)))

    def open(self, setup: SessionSetup) -> _Duplex:
        return _Duplex()

    def configure(self, state: _Duplex, setup: SessionSetup) -> None:
        """There are no settings."""

    def hear(self, batch: Sequence[tuple[_Duplex, bytes]]) -> list[Heard]:
        return [self._heard] * len(batch)

    def utterance(self, state: _Duplex, *, cut: bool) -> Utterance | None:
        """None: this model hears by itself."""
        return None

    def clear(self, state: _Duplex) -> None:
        """Nothing is buffered."""

    def transcribe(self, utterance: Utterance) -> str:
        """Nothing is understood."""
        return ""

    def weigh(self, state: _Duplex, utterance: Utterance, words: str) -> None:
        """The model takes turns by itself."""

    def prompt(
        self, state: _Duplex, instructions: str, messages: Sequence[Message]
    ) -> list[Segment]:
        """The header that opens a call; messages have no place in a frame-locked context."""
        return [Segment(self._header, "header")]

    def calls(
        self, messages: Sequence[Message], tools: Sequence[Tool], choice: ToolChoice
    ) -> Sequence[str]:
        """It calls nothing."""
        return ()

    def begin(self, state: _Duplex) -> None:
        """There is nothing to reset."""

    def decode(self, state: _Duplex, token_ids: Sequence[int], pcm: bytes = b"") -> TickOutput:
        return self._output

    def remember(self, state: _Duplex, text: str, token_ids: Sequence[int]) -> None:
        """Nothing to spell again."""

    def ended(self, state: _Duplex, playback_ms: int) -> None:
        """It never waits for the caller."""

    def speak(self, text: str, voice: str, speed: float) -> bytes:
        """Its voice comes out of `decode`."""
        return b""

    def sampling(self) -> Sampling:
        return Sampling()
