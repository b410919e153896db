"""What every table of a deployment's configuration is made of: fields with limits, checked alone and in pairs."""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong: the dotted key it is about, and a sentence fragment that follows it."""

    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}" if self.key else self.message


class ConfigError(ValueError):
    """The configuration cannot be used; `problems` holds everything that is wrong with it."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def between(default: Any, low: float, high: float) -> Any:
    """A field whose value must lie in [low, high] (None, where allowed, is always legal)."""
    return field(default=default, metadata={"low": low, "high": high})


def shaped(default: Any, pattern: str, meaning: str) -> Any:
    """A text (or list of texts) that must match `pattern`; `meaning` completes "must be …"."""
    return field(default=default, metadata={"pattern": pattern, "meaning": meaning})


def limit_problem(spec: dataclasses.Field[Any], value: Any) -> Problem | None:
    """What is wrong with `value` alone, by the limits in the field's metadata."""
    if value is None or not spec.metadata:
        return None
    if "pattern" in spec.metadata:
        texts = value if isinstance(value, tuple) else (value,)
        if all(re.fullmatch(spec.metadata["pattern"], text) for text in texts):
            return None
        return Problem(spec.name, f"must be {spec.metadata['meaning']}, not {value!r}")
    low, high = spec.metadata["low"], spec.metadata["high"]
    if low <= value <= high:  # also false for nan
        return None
    return Problem(spec.name, f"must be between {low:g} and {high:g}, not {value:g}")


class Section:
    """Base of every table: checks limits, then the pairs that a subclass names."""

    __slots__ = ()

    def __post_init__(self) -> None:
        specs = dataclasses.fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
        found = [p for spec in specs if (p := limit_problem(spec, getattr(self, spec.name)))]
        found = found or list(self.pair_problems())
        if found:
            raise ConfigError(*found)

    def pair_problems(self) -> Iterator[Problem]:
        """Combinations that cannot work, each under the key that is easiest to change."""
        yield from ()
