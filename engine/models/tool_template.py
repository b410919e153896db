"""The tools branch of a model's own chat template, for ChatML models that were trained to call functions.

    <|im_start|>system\\n…the tools, as the template words them…<|im_end|>\\n
    <|im_start|>assistant\\nwords\\n<tool_call>\\n{"name": …, "arguments": {…}}\\n</tool_call><|im_end|>\\n
    <|im_start|>user\\n<tool_response>\\nresult\\n</tool_response><|im_end|>\\n

The system block is rendered by the template itself. Calls and results are laid out here, token run by token run,
because a conversation is compared with its resident context token by token; at the start a conversation is rendered
both ways, and a template that lays it out otherwise (or has no tools branch) is not used.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from engine.models.tools import Tool

CALL_OPENS, CALL_CLOSES = "<tool_call>\n", "\n</tool_call>"
RESULT_OPENS, RESULT_CLOSES = "\n<tool_response>\n", "\n</tool_response>"
CALL_MARK = CALL_OPENS.rstrip()

_OPEN, _CLOSE = "<|im_start|>", "<|im_end|>"
_PROBE: Tool = {"type": "function", "name": "probe", "parameters": {"type": "object"}}


class ToolTemplate:
    """How one model wants to be told of its tools."""

    def __init__(self, source: str) -> None:
        """`source`: a Jinja template as tokenizer_config.json holds it. Raises whatever Jinja raises."""
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        # As Hugging Face renders chat templates: transformers, "Writing a chat template".
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _json
        environment.globals["raise_exception"] = _refuse
        self._template = environment.from_string(source)

    @staticmethod
    def of(folder: Path, tokenizer_config: dict[str, Any]) -> "ToolTemplate | None":
        """The template of a model folder; None where it has none, or none that is written like this."""
        source = _source(folder, tokenizer_config)
        if source is None or "tools" not in source:
            return None
        try:
            template = ToolTemplate(source)
            return template if template._is_laid_out_so() else None
        except Exception:  # noqa: BLE001  # a template is a program, and may raise anything
            return None

    @lru_cache(maxsize=64)  # noqa: B019  # one per deployment, which lives as long
    def system(self, text: str, tools: str) -> str:
        """What the system turn says where `text` is said in it; `tools` is a JSON list."""
        said = [{"role": "system", "content": text}, {"role": "user", "content": ""}]
        rendered = self._render(said, json.loads(tools))
        head, _, _ = rendered.partition(f"{_CLOSE}\n")
        return head.removeprefix(f"{_OPEN}system\n")

    def _render(self, messages: list[dict[str, Any]], tools: Sequence[Tool]) -> str:
        described = [
            {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
            for tool in tools
        ]
        return self._template.render(
            messages=messages, tools=described, add_generation_prompt=False
        )

    def _is_laid_out_so(self) -> bool:
        """Whether a conversation with calls comes out as the module says."""
        arguments = {"a": [1, "b"]}
        call = {"type": "function", "function": {"name": "probe", "arguments": arguments}}
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "Q"},
            {"role": "assistant", "content": "W", "tool_calls": [call, call]},
            {"role": "tool", "content": "R"},
            {"role": "tool", "content": "T"},
            {"role": "assistant", "content": "A"},
            {"role": "user", "content": "Z"},
        ]
        written = (
            f'{CALL_OPENS}{{"name": "probe", "arguments": {json.dumps(arguments)}}}{CALL_CLOSES}'
        )
        results = "".join(f"{RESULT_OPENS}{result}{RESULT_CLOSES}" for result in "RT")
        expected = "".join(
            f"{_OPEN}{turn}{_CLOSE}\n"
            for turn in (
                "user\nQ",
                f"assistant\nW\n{written}\n{written}",
                f"user{results}",
                "assistant\nA",
                "user\nZ",
            )
        )
        rendered = self._render(messages, [_PROBE])
        system = rendered.removesuffix(expected)
        return (
            system != rendered
            and system.startswith(f"{_OPEN}system\n")
            and system.endswith(f"{_CLOSE}\n")
            and system.count(_OPEN) == 1
            and '"probe"' in system
        )


def _source(folder: Path, tokenizer_config: dict[str, Any]) -> str | None:
    """The template's text: in a file of its own, or in tokenizer_config.json, alone or as one of several by name."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    found = tokenizer_config.get("chat_template")
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found}
        found = named.get("tool_use") or named.get("default")
    return found if isinstance(found, str) else None


def _json(value: Any, **options: Any) -> str:
    """As Hugging Face writes JSON in templates: for a model, not for HTML."""
    return json.dumps(
        value, ensure_ascii=options.get("ensure_ascii", False), indent=options.get("indent")
    )


def _refuse(message: str) -> None:
    raise ValueError(message)
