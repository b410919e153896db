"""JSON made up to fit a schema: what the simulated plant decodes where a real one is held to a grammar. Deterministic.

Covers what describes the arguments of functions: types, required and optional properties, enumerations, constants,
bounds, choices, references. Text is spelled in byte tokens, which lie above the simulator's words.
"""

import json
import math
from collections.abc import Callable
from typing import Any

FIRST_BYTE = 1000  # token id of byte 0; the simulator's words end below it

_DEEPEST = (
    12  # levels; beyond, optional parts are left out and a schema that still recurses gives up
)
_FORMATS = {
    "date": "2026-01-31",
    "time": "12:00:00Z",
    "date-time": "2026-01-31T12:00:00Z",
    "email": "name@example.org",
    "uri": "https://example.org/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


class Unmakeable(ValueError):
    """The schema asks for what this sampler cannot make up."""


def spelled(text: str) -> tuple[int, ...]:
    """`text` as byte tokens."""
    return tuple(FIRST_BYTE + byte for byte in text.encode())


def made_up(schema: str) -> str:
    """JSON text that fits `schema` (itself JSON text), with properties in the schema's order.

    Raises:
        Unmakeable: a reference leads nowhere, or round in circles.
    """
    root = json.loads(schema)
    return json.dumps(_Maker(root).make(root, "value", 0), ensure_ascii=False)


class _Maker:
    def __init__(self, root: Any) -> None:
        self._root = root

    def make(self, schema: Any, hint: str, depth: int) -> Any:
        """A value; `hint` is the word that strings are made of."""
        if depth > _DEEPEST:
            raise Unmakeable(f"{hint!r} is nested too deep")
        if not isinstance(schema, dict):  # true: anything
            return hint
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return schema["enum"][0]
        if "$ref" in schema:
            return self.make(self._referred(schema["$ref"]), hint, depth + 1)
        for choice in ("anyOf", "oneOf"):
            if schema.get(choice):
                return self._first_makeable(schema, schema[choice], hint, depth)
        if schema.get("allOf"):
            return self.make(_merged(schema, schema["allOf"]), hint, depth + 1)
        return self._typed(schema, hint, depth)

    def _typed(self, schema: dict[str, Any], hint: str, depth: int) -> Any:
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = kind[0]
        if kind is None:
            kind = "object" if "properties" in schema else "string"
        make = _MAKERS.get(kind)
        if make is None:
            raise Unmakeable(f"there is no type {kind!r}")
        return make(self, schema, hint, depth)

    def object(self, schema: dict[str, Any], hint: str, depth: int) -> dict[str, Any]:
        """Every property, the optional ones as far as they can be made."""
        required = schema.get("required", ())
        made: dict[str, Any] = {}
        for name, wanted in schema.get("properties", {}).items():
            try:
                made[name] = self.make(wanted, name, depth + 1)
            except Unmakeable:
                if name in required:
                    raise
        return made | {name: name for name in required if name not in made}

    def array(self, schema: dict[str, Any], hint: str, depth: int) -> list[Any]:
        count = max(schema.get("minItems", 0), min(1, schema.get("maxItems", 1)))
        return [self.make(schema.get("items", True), hint, depth + 1) for _ in range(count)]

    def string(self, schema: dict[str, Any], hint: str, depth: int) -> str:
        text = _FORMATS.get(schema.get("format", ""), hint)
        least: int = schema.get("minLength", 0)
        most: int = schema.get("maxLength", len(text))
        repeated = text * (1 + least // max(1, len(text)))
        return repeated[: max(least, min(len(text), most))]

    def number(self, schema: dict[str, Any], hint: str, depth: int) -> float:
        return _within(schema, schema.get("multipleOf", 0.5))

    def integer(self, schema: dict[str, Any], hint: str, depth: int) -> int:
        return int(_within(schema, schema.get("multipleOf", 1)))

    def boolean(self, schema: dict[str, Any], hint: str, depth: int) -> bool:
        return True

    def null(self, schema: dict[str, Any], hint: str, depth: int) -> None:
        return None

    def _first_makeable(
        self, schema: dict[str, Any], choices: list[Any], hint: str, depth: int
    ) -> Any:
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
        for choice in choices:
            try:
                return self.make(_merged(rest, [choice]), hint, depth + 1)
            except Unmakeable:
                continue
        raise Unmakeable(f"no choice for {hint!r} can be made up")

    def _referred(self, reference: str) -> Any:
        """What a JSON pointer into the schema names."""
        found = self._root
        for step in reference.lstrip("#/").split("/") if reference != "#" else ():
            key = step.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(key)] if isinstance(found, list) else found[key]
            except (KeyError, IndexError, ValueError, TypeError):
                raise Unmakeable(f"{reference!r} leads nowhere") from None
        return found


def _merged(schema: dict[str, Any], parts: list[Any]) -> dict[str, Any]:
    """One schema that asks for what all of them ask."""
    merged = {key: value for key, value in schema.items() if key != "allOf"}
    for part in parts:
        for key, value in part.items() if isinstance(part, dict) else ():
            if key == "properties":
                merged[key] = {**merged.get(key, {}), **value}
            elif key == "required":
                merged[key] = [*merged.get(key, ()), *value]
            else:
                merged[key] = value
    return merged


def _within(schema: dict[str, Any], step: float) -> float:
    """A multiple of `step` within the bounds: `step` itself if it is, else the one next to a bound."""
    counts = [1, 0]
    for key in ("minimum", "exclusiveMinimum"):
        if key in schema:
            counts += [math.ceil(schema[key] / step), math.ceil(schema[key] / step) + 1]
    for key in ("maximum", "exclusiveMaximum"):
        if key in schema:
            counts += [math.floor(schema[key] / step), math.floor(schema[key] / step) - 1]
    fitting = (count * step for count in counts if _fits(count * step, schema))
    found = next(fitting, None)
    if found is None:
        raise Unmakeable(f"no multiple of {step} is within the bounds")
    return found


def _fits(value: float, schema: dict[str, Any]) -> bool:
    return (
        value >= schema.get("minimum", value)
        and value <= schema.get("maximum", value)
        and value != schema.get("exclusiveMinimum")
        and value != schema.get("exclusiveMaximum")
        and value >= schema.get("exclusiveMinimum", value)
        and value <= schema.get("exclusiveMaximum", value)
    )


_MAKERS: dict[str, Callable[[_Maker, dict[str, Any], str, int], Any]] = {
    "object": _Maker.object,
    "array": _Maker.array,
    "string": _Maker.string,
    "number": _Maker.number,
    "integer": _Maker.integer,
    "boolean": _Maker.boolean,
    "null": _Maker.null,
}
