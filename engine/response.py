"""What an answer is asked to be, and its life as one table."""

from dataclasses import dataclass
from enum import Enum, auto

from engine.models.base import Message
from engine.models.tools import Tool, ToolChoice


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """One answer."""

    response_id: str
    instructions: str
    messages: tuple[Message, ...]
    audio: bool = True  # speak it; False: text only
    voice: str = ""
    speed: float = 1.0
    max_output_tokens: int | None = None
    out_of_band: bool = False  # must not touch the conversation's resident context
    pending_items: frozenset[str] = (
        frozenset()
    )  # items whose text must still come from transcription
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    only_tool: str = ""  # the one of them that may be called; empty: all of them
    parallel_calls: bool = True  # False: one call at most

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The tools that this answer may call."""
        if not self.only_tool:
            return self.tools
        return tuple(tool for tool in self.tools if tool["name"] == self.only_tool)


class Phase(Enum):
    """Where an answer is."""

    RESOLVING = auto()  # waiting for transcripts and building the prompt
    DECODING = auto()  # tokens are coming
    SPEAKING = auto()  # all tokens are there, voice still has clauses to make
    ENDED = auto()


class Step(Enum):
    """What happens to it."""

    PROMPTED = auto()
    DECODED = auto()
    END = auto()


TRANSITIONS: dict[tuple[Phase, Step], Phase] = {
    (Phase.RESOLVING, Step.PROMPTED): Phase.DECODING,
    (Phase.RESOLVING, Step.END): Phase.ENDED,
    (Phase.DECODING, Step.DECODED): Phase.SPEAKING,
    (Phase.DECODING, Step.END): Phase.ENDED,
    (Phase.SPEAKING, Step.PROMPTED): Phase.DECODING,  # the words are out, and a call follows them
    (Phase.SPEAKING, Step.END): Phase.ENDED,
}


def advance(phase: Phase, step: Step) -> Phase:
    """The next phase. Raises ValueError on an illegal step and changes nothing."""
    try:
        return TRANSITIONS[phase, step]
    except KeyError:
        raise ValueError(f"{step.name} is not possible while {phase.name}") from None
