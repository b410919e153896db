"""Turns msgspec's complaints into the API's error codes and parameter paths, and bounds what may be nested."""

import re
from typing import Any, TypeVar

import msgspec

from protocol.errors import ProtocolError, invalid_value, missing

T = TypeVar("T")

# Levels: far above any tool schema, far below what recursion in the JSON encoder can take.
MAX_NESTING = 64

_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]*)`$")
_MISTYPED = re.compile(r"^Expected `(?P<wanted>[^`]*)`, got `(?P<got>[^`]*)`$")


def checked(value: Any, shape: type[T], prefix: str) -> T | ProtocolError:
    """`value` as `shape`, or what is wrong with it; `prefix` is where `value` sits in the client's event."""
    if nested_deeper_than(value, MAX_NESTING):
        return invalid_value(f"'{prefix}' is nested more than {MAX_NESTING} levels deep.", prefix)
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as complaint:
        return explained(complaint, prefix)


def explained(complaint: msgspec.ValidationError, prefix: str = "") -> ProtocolError:
    """The protocol error for a validation failure below `prefix`."""
    match = _PATH.match(str(complaint))
    assert match is not None, complaint
    what, path = match["what"], match["path"] or ""
    param = _joined(prefix, path)
    if absent := _MISSING.match(what):
        return missing(_joined(param, absent["field"]))
    if mistyped := _MISTYPED.match(what):
        return ProtocolError(
            "invalid_type",
            f"Invalid type for '{param}': expected {mistyped['wanted']}, got {mistyped['got']}.",
            param or None,
        )
    return invalid_value(f"Invalid value for '{param}': {what}.", param or None)


def nested_deeper_than(value: Any, limit: int) -> bool:
    """Whether JSON containers are nested more than `limit` deep; itself free of recursion."""
    level = [value]
    for _ in range(limit + 1):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return False
    return True


def _joined(prefix: str, path: str) -> str:
    if not prefix or not path:
        return prefix or path
    return f"{prefix}{path}" if path.startswith("[") else f"{prefix}.{path}"
