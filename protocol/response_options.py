"""How one answer is to be given: the session's settings, with what a response.create says differently."""

from typing import Any

import msgspec
from msgspec import UNSET

from protocol.audio_format import AudioFormat
from protocol.commands import ContextMessage, CreateResponse
from protocol.conversation import Conversation, message_of
from protocol.errors import ProtocolError, invalid_value
from protocol.ids import IdFactory
from protocol.items import Entry, parsed
from protocol.session_config import SessionConfig, SessionDefaults, chosen_format, known_voice
from protocol.session_patch import (
    AudioPatch,
    FunctionChoice,
    MaxOutputTokens,
    Modality,
    OutputPatch,
    ResponsePatch,
    Tool,
)
from protocol.session_view import plain_tools
from protocol.validation import checked

# What a response.create takes over as it comes.
_PLAIN = ("instructions", "tool_choice", "parallel_tool_calls", "max_output_tokens", "metadata")


class ResponseOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settled when the answer begins; a later session.update does not touch them."""

    instructions: str
    modality: Modality
    voice: str
    speed: float
    format: AudioFormat
    tools: tuple[Tool, ...]
    tool_choice: str | FunctionChoice
    parallel_tool_calls: bool
    max_output_tokens: MaxOutputTokens
    metadata: dict[str, str] | None = None
    out_of_band: bool = False
    context: tuple[ContextMessage, ...] | None = None  # None: the conversation

    def has_tool(self, name: str) -> bool:
        """Whether one of the tools is called that."""
        return any(tool.name == name for tool in self.tools)

    def command(self, response_id: str, conversation: Conversation) -> CreateResponse:
        """The order to the engine."""
        limit, choice = self.max_output_tokens, self.tool_choice
        return CreateResponse(
            response_id=response_id,
            instructions=self.instructions,
            messages=conversation.messages() if self.context is None else self.context,
            audio=self.modality == "audio",
            voice=self.voice,
            speed=self.speed,
            max_output_tokens=None if limit == "inf" else int(limit),
            out_of_band=self.out_of_band,
            tools=plain_tools(self.tools),
            tool_choice=choice if isinstance(choice, str) else msgspec.to_builtins(choice),
            parallel_tool_calls=self.parallel_tool_calls,
        )


def standing(config: SessionConfig) -> ResponseOptions:
    """An answer as the session's settings have it."""
    return ResponseOptions(
        instructions=config.instructions,
        modality=config.modality,
        voice=config.voice,
        speed=config.speed,
        format=config.output_format,
        tools=config.tools,
        tool_choice=config.tool_choice,
        parallel_tool_calls=config.parallel_tool_calls,
        max_output_tokens=config.max_output_tokens,
    )


class OptionsReader:
    """Reads the `response` of a response.create against the session it belongs to."""

    def __init__(
        self, defaults: SessionDefaults, conversation: Conversation, ids: IdFactory
    ) -> None:
        self._defaults = defaults
        self._conversation = conversation
        self._ids = ids

    def read(
        self, raw: dict[str, Any] | None, config: SessionConfig
    ) -> ResponseOptions | ProtocolError:
        """The options asked for; absent and null mean as in the session."""
        options = standing(config)
        patch = checked(raw or {}, ResponsePatch, "response")
        if isinstance(patch, ProtocolError):
            return patch
        changes: dict[str, Any] = {
            name: value for name in _PLAIN if (value := getattr(patch, name)) not in (UNSET, None)
        }
        if patch.tools is not UNSET and patch.tools is not None:
            changes["tools"] = tuple(patch.tools)
        if patch.output_modalities:
            changes["modality"] = patch.output_modalities[0]
        changes["out_of_band"] = patch.conversation == "none"
        if patch.input is not UNSET and patch.input is not None:
            context = self._context(patch.input)
            if isinstance(context, ProtocolError):
                return context
            changes["context"] = context
        output = self._output(patch.audio or AudioPatch(), options)
        if isinstance(output, ProtocolError):
            return output
        settled = msgspec.structs.replace(options, **changes, **output)
        choice = settled.tool_choice
        if isinstance(choice, FunctionChoice) and not settled.has_tool(choice.name):
            return invalid_value(f"There is no tool '{choice.name}'.", "response.tool_choice")
        return settled

    def _output(
        self, audio: AudioPatch, options: ResponseOptions
    ) -> dict[str, Any] | ProtocolError:
        patch, changes = audio.output or OutputPatch(), dict[str, Any]()
        if patch.voice is not UNSET and patch.voice is not None:
            changes["voice"] = known_voice(patch.voice, self._defaults)
        if patch.format is not UNSET and patch.format is not None:
            chosen = chosen_format(options.format, patch.format, "response.audio.output.format")
            if isinstance(chosen, ProtocolError):
                return chosen
            changes["format"] = chosen
        return changes

    def _context(
        self, raw_items: list[dict[str, Any]]
    ) -> tuple[ContextMessage, ...] | ProtocolError:
        """The messages in `response.input`: new items and references to old ones."""
        messages = []
        for index, raw in enumerate(raw_items):
            entry = self._entry(raw, f"response.input[{index}]")
            if isinstance(entry, ProtocolError):
                return entry
            if (message := message_of(entry)) is not None:
                messages.append(message)
        return tuple(messages)

    def _entry(self, raw: dict[str, Any], param: str) -> Entry | ProtocolError:
        if raw.get("type") == "item_reference":
            item_id = raw.get("id")
            referred = self._conversation.get(item_id) if isinstance(item_id, str) else None
            if referred is None:
                return invalid_value(f"There is no item with id '{item_id}'.", f"{param}.id")
            return referred
        new = parsed(raw, param, self._ids.new("item"), self._ids.new("call"))
        if isinstance(new, ProtocolError):
            return new
        if new.shown:
            return invalid_value(
                "Images are taken by conversation.item.create only; refer to that item here.",
                f"{param}.content",
            )
        return Entry(new.item)
