"""What a language model reads of a conversation, and what its tokens mean. Interfaces only."""

from collections.abc import Sequence
from typing import Protocol

from engine.models.base import Message
from engine.models.tool_turns import Sampled
from engine.models.tools import CallMark, Then, Tool, ToolChoice


class Detokenizer(Protocol):
    """Tokens of one answer to text, a few at a time."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text these tokens complete; never half a character, never a control token."""
        ...


class ChatFormat(Protocol):
    """The token layout of one model's conversations.

    Every method is a pure function of its arguments and safe on any thread. Joined in order, header,
    messages and cue are what the model was trained to read, token for token, whatever the messages are;
    and an answer's message starts with the cue, so that a conversation only ever grows at its end.
    """

    stop_token_ids: tuple[int, ...]
    cue: tuple[int, ...]  # "now the assistant speaks"
    call_mark: (
        CallMark | None
    )  # how the model itself opens a call, in the middle of its words; None: it does not

    def header(self, instructions: str, tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """The start of every context: what the assistant is and how it should talk, and its tools if it knows any."""
        ...

    def message(self, message: Message, sampled: Sequence[int] = ()) -> tuple[int, ...]:
        """One turn. `sampled` are the tokens the model itself wrote for it, where that is known.

        Text can be tokenised in several ways and the model need not have chosen the tokenizer's. As many
        of the sampled tokens are used as spell the beginning of the message's text; so an answer that was
        spoken in full continues the resident context exactly, and one cut short keeps what was said.
        """
        ...

    def turns(
        self, messages: Sequence[Message], sampled: Sampled, then: Then
    ) -> list[tuple[int, ...]]:
        """A whole conversation, a run of tokens per message; `then` says what comes after the last."""
        ...

    def lead(
        self, messages: Sequence[Message], tools: Sequence[Tool], then: Then
    ) -> tuple[int, ...]:
        """What comes after the turns: the cue to speak, or to call one of `tools`; none where the turn just goes on."""
        ...

    def calls(
        self, messages: Sequence[Message], tools: Sequence[Tool], choice: ToolChoice
    ) -> Sequence[str]:
        """The JSON schema of each function call that the answer must be; none: it answers in words."""
        ...

    def detokenizer(self) -> Detokenizer:
        """For a new answer."""
        ...


def spoken_prefix(text: str, sampled: Sequence[int], detokenizer: Detokenizer) -> tuple[int, str]:
    """How many of the sampled tokens spell the beginning of `text`, and the text they spell."""
    best, spelled, written = 0, "", ""
    for index, token in enumerate(sampled):
        fresh = detokenizer.feed((token,))
        written += fresh
        if not text.startswith(written):
            break
        if fresh:  # a token that completes nothing belongs to the character that follows
            best, spelled = index + 1, written
    return best, spelled
