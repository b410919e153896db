"""A pytest plugin that keeps one example of every shape of event the server emits: `-p support.event_dump`.

Shapes differ in keys, in which values are null, and in the values of the keys that name kinds. Examples go to the file
given as `--dump-events`, one JSON text a line.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.server_events import ServerEvents

_NAMES_KINDS = {"type", "status", "role", "object", "reason", "modality"}


def shape(value: Any, key: str = "") -> Any:
    """What of an event a schema can see, short of the values."""
    if isinstance(value, dict):
        return tuple((name, shape(child, name)) for name, child in sorted(value.items()))
    if isinstance(value, list):
        return tuple(sorted({repr(shape(child)) for child in value}))
    if isinstance(value, str) and key in _NAMES_KINDS:
        return value
    return type(value).__name__


class Dump:
    """Events by their shapes."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._examples: dict[Any, str] = {}

    def install(self) -> None:
        """Listen to every connection of this process."""
        take = ServerEvents.take

        def taking(events: ServerEvents) -> list[str]:
            texts = take(events)
            for text in texts:
                self._examples.setdefault(shape(json.loads(text)), text)
            return texts

        ServerEvents.take = taking  # type: ignore[method-assign]

    def write(self) -> None:
        self._file.write_text("".join(f"{text}\n" for text in self._examples.values()))


_DUMP = pytest.StashKey[Dump]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--dump-events", type=Path, help="file for one example of every event's shape")


def pytest_configure(config: pytest.Config) -> None:
    dump = config.stash[_DUMP] = Dump(config.getoption("--dump-events"))
    dump.install()


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_DUMP].write()
