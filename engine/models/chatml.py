"""Conversations in ChatML (SmolLM2, Qwen and many others), built from a model folder's tokenizer.json.

    <|im_start|>system\\n…<|im_end|>\\n <|im_start|>user\\n…<|im_end|>\\n … <|im_start|>assistant\\n

Each stretch between two control tokens is tokenised by itself, which is what the tokenizer does with the
whole text, too; so segments joined equal the model's chat template applied to the whole conversation.
Control tokens that a caller or an instruction spells out are read as plain text, never as control.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from engine.models.base import Message
from engine.models.chat import Detokenizer, spoken_prefix
from engine.models.detokenizer import IncrementalDetokenizer, TokenBytes
from engine.models.tool_template import (
    CALL_CLOSES,
    CALL_MARK,
    CALL_OPENS,
    RESULT_CLOSES,
    RESULT_OPENS,
    ToolTemplate,
)
from engine.models.tool_turns import Place, Sampled, places
from engine.models.tools import CallMark, Then, Tool, ToolChoice, call_schema, tool_block

_OPEN, _CLOSE = "<|im_start|>", "<|im_end|>"
_TAG = re.compile(r"<\S+>")
_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Persona:
    """What the model is told before the first message."""

    system: str
    examples: tuple[tuple[str, str], ...] = ()  # hidden turns: what a user says, how to answer
    examples_up_to: int = (
        200  # characters of instructions from which the examples only get in the way
    )


# A 135M model rambles under any system text; shown four short turns after the text it was trained with
# it answers in 8 words on average, as one speaks. (Greedy, 15 easy facts: 9 right without, 12 with.)
SMOLLM2_PERSONA = Persona(
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    (
        ("Hi there!", "Hello! How can I help you today?"),
        ("What is the capital of Italy?", "The capital of Italy is Rome."),
        ("How many months are in a year?", "There are twelve months in a year."),
        ("Thank you!", "You are welcome."),
    ),
)
PLAIN_PERSONA = Persona(
    "You are a helpful voice assistant. Everything you write is spoken aloud: answer in one or two short "
    "sentences, without lists or markup."
)


class ChatMl:
    """`ChatFormat` for models that were tuned on ChatML."""

    def __init__(self, folder: Path, persona: Persona = PLAIN_PERSONA) -> None:
        """Read `tokenizer.json` (and, where present, the stop tokens of the other files) in `folder`.

        Raises:
            ValueError: the folder holds no usable tokenizer, or one that does not know ChatML.
        """
        self._tokenizer = _load(folder)
        self._tokenizer.encode_special_tokens = True  # text is text
        self._marks = _marks(self._tokenizer)
        self._spelling = TokenBytes(self._tokenizer)
        self._persona = persona
        self._open = self._control(_OPEN, folder)
        self._close = self._control(_CLOSE, folder)
        self._newline = self._text("\n")
        self.stop_token_ids = _stop_ids(folder, self._tokenizer, self._close)
        self._speaker = (self._open, *self._text("assistant\n"))
        self.cue = (*self._speaker, *self._no_thinking())
        self._template = ToolTemplate.of(folder, _read_json(folder / "tokenizer_config.json"))
        self.call_mark = self._mark() if self._template is not None else None
        self._plain_header = self._turn("system", persona.system)
        self._examples = tuple(
            token
            for said, answer in persona.examples
            for message in (Message("user", said), Message("assistant", answer))
            for token in self.message(message)
        )

    def header(self, instructions: str, tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        asked = instructions.strip()
        if tools and self._template is not None:
            text = f"{self._persona.system}\n{asked}".strip()
            told = self._template.system(text, json.dumps(tools))
            return (self._open, *self._marked(f"system\n{told}"), self._close, *self._newline)
        if not asked:
            return self._plain_header + self._examples
        own = self._turn("system", f"{self._persona.system}\n{asked}")
        return own + self._examples if len(asked) <= self._persona.examples_up_to else own

    def message(self, message: Message, sampled: Sequence[int] = ()) -> tuple[int, ...]:
        if message.role != "assistant":
            return self._turn(message.role, message.text)
        return (*self.cue, *self._written(message.text, sampled), self._close, *self._newline)

    def turns(
        self, messages: Sequence[Message], sampled: Sampled, then: Then
    ) -> list[tuple[int, ...]]:
        if self._template is None:
            return [self.message(message, sampled(message)) for message in messages]
        return [
            self._part(message, sampled(message), place)
            for message, place in zip(messages, places(messages, then), strict=True)
        ]

    def lead(
        self, messages: Sequence[Message], tools: Sequence[Tool], then: Then
    ) -> tuple[int, ...]:
        if then == "more":
            return ()
        if then == "answer":
            return self.cue
        if self._template is None:
            return (*self._turn("system", tool_block(tools)), *self.cue)
        last = messages[-1] if messages else None
        if last is None or last.role != "assistant":
            return (*self.cue, *self._marked(CALL_OPENS))
        return self._marked(f"\n{CALL_OPENS}" if last.call else CALL_OPENS)

    def calls(
        self, messages: Sequence[Message], tools: Sequence[Tool], choice: ToolChoice
    ) -> Sequence[str]:
        """One call where one is required. Left to itself ("auto") the model begins one, or does not."""
        return (call_schema(tools),) if tools and choice == "required" else ()

    def detokenizer(self) -> Detokenizer:
        return IncrementalDetokenizer(self._spelling)

    def _part(self, message: Message, sampled: Sequence[int], place: Place) -> tuple[int, ...]:
        """One message as the part of a turn that it is, in the layout of `tool_template`."""
        closing = (self._close, *self._newline) if place.closes else ()
        if message.role == "tool":
            opening = (self._open, *self._text("user")) if place.opens else ()
            return (
                *opening,
                *self._marked(RESULT_OPENS),
                *self._text(message.text),
                *self._marked(RESULT_CLOSES),
                *closing,
            )
        if message.role != "assistant":
            return self._turn(message.role, message.text)
        opening = self.cue if place.opens else ()
        if message.call:
            line = "\n" if place.follows_call else ""
            written = self._written(message.text, sampled)
            return (
                *opening,
                *self._marked(f"{line}{CALL_OPENS}"),
                *written,
                *self._marked(CALL_CLOSES),
                *closing,
            )
        said = f"{message.text}\n" if place.is_followed_by_call else message.text
        return (*opening, *self._written(said, sampled), *closing)

    def _written(self, text: str, sampled: Sequence[int]) -> tuple[int, ...]:
        """`text`, with as many of the sampled tokens as spell its beginning."""
        kept, spelled = spoken_prefix(text, sampled, self.detokenizer())
        return (*sampled[:kept], *self._text(text[len(spelled) :]))

    def _mark(self) -> CallMark:
        tokens = self._marked(CALL_MARK)
        return CallMark(CALL_MARK, tokens[0] if len(tokens) == 1 else None)

    def _turn(self, role: str, text: str) -> tuple[int, ...]:
        return (self._open, *self._text(f"{role}\n{text}"), self._close, *self._newline)

    def _text(self, text: str) -> tuple[int, ...]:
        """What somebody said: a mark that is spelled out in it is text."""
        if self._marks is None or self._marks.search(text) is None:
            return self._marked(text)
        cuts = [0, *(mark.start() + 1 for mark in self._marks.finditer(text)), len(text)]
        return tuple(token for a, b in pairwise(cuts) for token in self._marked(text[a:b]))

    def _marked(self, text: str) -> tuple[int, ...]:
        """What a template writes: marks are marks."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _control(self, name: str, folder: Path) -> int:
        token = self._tokenizer.token_to_id(name)
        if token is None:
            raise ValueError(
                f"{folder}: its tokenizer has no {name}; only ChatML models are supported"
            )
        return int(token)

    def _no_thinking(self) -> tuple[int, ...]:
        """For models that think aloud first (Qwen3): an empty thought, as their own template writes it."""
        tokens = [self._tokenizer.token_to_id(name) for name in (_THINK_OPEN, _THINK_CLOSE)]
        if None in tokens:
            return ()
        blank = self._text("\n\n")
        return (tokens[0], *blank, tokens[1], *blank)


def _load(folder: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ValueError(
            "tokenizers is missing; pip install 'metronome-realtime[embedded]'"
        ) from error
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not a model folder: it has no tokenizer.json")
    try:
        return Tokenizer.from_str(path.read_text("utf-8"))
    except Exception as error:  # tokenizers raises nothing more specific for a damaged file
        raise ValueError(f"{path} is not a usable tokenizer: {error}") from error


def _marks(tokenizer: Any) -> re.Pattern[str] | None:
    """Tokens like <tool_call> and <think>: they steer a model, but its tokenizer reads them in any text."""
    added = tokenizer.get_added_tokens_decoder().values()
    spelled = [re.escape(a.content) for a in added if not a.special and _TAG.fullmatch(a.content)]
    return re.compile("|".join(spelled)) if spelled else None


def _stop_ids(folder: Path, tokenizer: Any, close: int) -> tuple[int, ...]:
    """The end of a turn first, then every other end that the folder names."""
    stops = {close: None}
    named = _read_json(folder / "tokenizer_config.json").get("eos_token")
    name = named.get("content") if isinstance(named, dict) else named
    listed = _read_json(folder / "generation_config.json").get("eos_token_id", [])
    ids = [tokenizer.token_to_id(name) if isinstance(name, str) else None]
    ids += listed if isinstance(listed, list) else [listed]
    ids.append(tokenizer.token_to_id("<|endoftext|>"))
    return tuple(stops | {token: None for token in ids if isinstance(token, int)})


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    return content if isinstance(content, dict) else {}
