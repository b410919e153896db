"""Conversations in ChatML (SmolLM2, Qwen and many others), built from a model folder's tokenizer.json.

    <|im_start|>system\\n…<|im_end|>\\n <|im_start|>user\\n…<|im_end|>\\n … <|im_start|>assistant\\n

Each stretch between two control tokens is tokenised by itself, which is what the tokenizer does with the
whole text, too; so segments joined equal the model's chat template applied to the whole conversation.
Control tokens that a caller or an instruction spells out are read as plain text, never as control.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.models.base import Message
from engine.models.chat import Detokenizer, spoken_prefix
from engine.models.detokenizer import IncrementalDetokenizer, TokenBytes
from engine.models.tools import Tool, ToolChoice, call_schema

_OPEN, _CLOSE = "<|im_start|>", "<|im_end|>"
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
        self._spelling = TokenBytes(self._tokenizer)
        self._persona = persona
        self._open = self._control(_OPEN, folder)
        self._close = self._control(_CLOSE, folder)
        self._newline = self._text("\n")
        self.stop_token_ids = _stop_ids(folder, self._tokenizer, self._close)
        self._speaker = (self._open, *self._text("assistant\n"))
        self.cue = (*self._speaker, *self._no_thinking())
        self._plain_header = self._turn("system", persona.system)
        self._examples = tuple(
            token
            for said, answer in persona.examples
            for message in (Message("user", said), Message("assistant", answer))
            for token in self.message(message)
        )

    def header(self, instructions: str) -> tuple[int, ...]:
        asked = instructions.strip()
        if not asked:
            return self._plain_header + self._examples
        own = self._turn("system", f"{self._persona.system}\n{asked}")
        return own + self._examples if len(asked) <= self._persona.examples_up_to else own

    def message(self, message: Message, sampled: Sequence[int] = ()) -> tuple[int, ...]:
        if message.role != "assistant":
            return self._turn(message.role, message.text)
        kept, spelled = spoken_prefix(message.text, sampled, self.detokenizer())
        rest = self._text(message.text[len(spelled) :])
        return (*self.cue, *sampled[:kept], *rest, self._close, *self._newline)

    def calls(
        self, messages: Sequence[Message], tools: Sequence[Tool], choice: ToolChoice
    ) -> Sequence[str]:
        """One call where one is required. Left to itself ("auto") the model answers in words: nothing reads its
        mind, and models of the size tested here do not call of their own accord.
        """
        return (call_schema(tools),) if tools and choice == "required" else ()

    def detokenizer(self) -> Detokenizer:
        return IncrementalDetokenizer(self._spelling)

    def _turn(self, role: str, text: str) -> tuple[int, ...]:
        return (self._open, *self._text(f"{role}\n{text}"), self._close, *self._newline)

    def _text(self, text: str) -> tuple[int, ...]:
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
