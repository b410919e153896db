"""Function calling: what holds a call to its tool, and what models are told whose chat template knows no tools.

A call is one JSON object, `{"name": …, "arguments": {…}}`, in this order. It is decoded under the schema that
`call_schema` makes of the tools, so that what is written is always a call that exists, with arguments as the tool
described them. Models without a tools branch (see `tool_template`) are told of the tools in a system block.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Tool = dict[
    str, Any
]  # {"type": "function", "name": …, "description": …, "parameters": JSON schema}
ToolChoice = Literal["auto", "none", "required"]
# What follows in a context: words, a call, or whatever the model chooses.
Then = Literal["answer", "call", "more"]


@dataclass(frozen=True, slots=True)
class CallMark:
    """What a model that was trained to call functions writes before a call."""

    text: str
    token: int | None  # its id, where it is a single token


# Written as the models were trained on it; llguidance, docs/json_schema.md, "Whitespace handling".
_SPACED = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
# Where schemas stand within a schema: as values of these keys' objects, or in their lists; and what is no schema.
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_DATA = ("const", "enum", "default", "examples")
_LIMITS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "const", "enum"}
_SAFE_INTEGER = 2**53 - 1  # RFC 8259, section 6
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


def tool_block(tools: Sequence[Tool]) -> str:
    """What the system block says of the tools."""
    described = (
        json.dumps({key: tool[key] for key in ("name", "description", "parameters") if key in tool})
        for tool in tools
    )
    return "\n".join(
        (
            "You can call these functions:",
            *described,
            'To call one, write one JSON object and nothing else: {"name": …, "arguments": {…}}',
        )
    )


def call_schema(tools: Sequence[Tool]) -> str:
    """The JSON schema of one call of any of `tools` (at least one), as JSON text."""
    if len(tools) == 1:
        return json.dumps(_call_of(tools[0], "#") | {"x-guidance": _SPACED})
    choices = [_call_of(tool, f"#/anyOf/{index}") for index, tool in enumerate(tools)]
    return json.dumps({"anyOf": choices, "x-guidance": _SPACED})


def call_text(name: str, arguments: str) -> str:
    """A call as a conversation holds it: `arguments` exactly as they were written."""
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}'


def _call_of(tool: Tool, place: str) -> dict[str, Any]:
    """The schema of a call of `tool`, which will stand at the JSON pointer `place`."""
    parameters = (
        {"type": "object", **tool["parameters"]} if "parameters" in tool else _NO_PARAMETERS
    )
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool["name"]},
            "arguments": _moved(parameters, f"{place}/properties/arguments"),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str, *, close: bool = True) -> Any:
    """`schema` as it must read at the JSON pointer `place`: references to its own parts lead there.

    What a grammar permits a small model may write, so it permits less than the schema where that says nothing: objects
    take no other properties than those named, integers have no more digits than every JSON reader understands.
    """
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            moved[key] = f"{place}{value[1:]}"
        elif key in _MAPS and isinstance(value, dict):
            moved[key] = {name: _moved(part, place) for name, part in value.items()}
        elif key in _LISTS and isinstance(value, list):
            moved[key] = [_moved(part, place, close=key != "allOf") for part in value]
        else:
            moved[key] = value if key in _DATA else _moved(value, place)
    if close and _says_all(moved):
        moved["additionalProperties"] = False
    if moved.get("type") == "integer" and not _LIMITS & moved.keys():
        moved |= {"minimum": -_SAFE_INTEGER, "maximum": _SAFE_INTEGER}
    return moved


def _says_all(schema: dict[str, Any]) -> bool:
    """Whether a schema can be taken to name all properties of its objects."""
    named = schema.get("properties")
    if not isinstance(named, dict) or {"additionalProperties", "allOf"} & schema.keys():
        return False
    return set(schema.get("required", ())) <= named.keys()
