"""The configurations that ship, and the page that describes every key."""

import dataclasses
import re
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.config import Config, ConfigError, default_config_path, load_config, shipped_configs

DOCS = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def keys_of(section: Any, prefix: str = "") -> Iterator[str]:
    """Every dotted key of the schema."""
    hints = typing.get_type_hints(section)
    for spec in dataclasses.fields(section):
        if dataclasses.is_dataclass(hints[spec.name]):
            yield from keys_of(hints[spec.name], f"{prefix}{spec.name}.")
        else:
            yield prefix + spec.name


def flat(table: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def test_these_ship() -> None:
    """The default, the simulated ones and the GPU examples are found by name."""
    assert shipped_configs() == [
        "embedded",
        "gpu-qwen2.5",
        "minicpm-o",
        "moshi",
        "personaplex",
        "qwen2-audio",
        "qwen2.5-omni",
        "qwen3-omni",
        "sim",
        "sim-duplex",
        "tml-200ms",
        "ultravox",
        "voxtral",
    ]
    assert default_config_path().name == "embedded.toml"
    with pytest.raises(ConfigError, match="no such configuration; there are embedded, "):
        default_config_path("nothing")


@pytest.mark.parametrize("name", shipped_configs())
def test_each_is_valid(name: str) -> None:
    """Every configuration that ships passes its own check."""
    assert load_config(default_config_path(name)).model.public_name


def test_the_default_file_shows_every_key_with_its_default() -> None:
    """embedded.toml means the same as an empty file and leaves no key out."""
    path = default_config_path()
    assert load_config(path) == Config()
    assert set(flat(tomllib.loads(path.read_text(encoding="utf-8")))) == set(keys_of(Config))


def test_each_key_of_the_default_file_is_explained() -> None:
    """Every key of embedded.toml has a comment of its own."""
    lines = default_config_path().read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if "=" in line and "#" not in line] == []


def test_the_docs_name_every_key_and_default() -> None:
    """docs/configuration.md has a row for each key of each table, with its default."""
    rows: set[tuple[str, str]] = set()
    table = ""
    for line in DOCS.read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"## (`\[(.+)\]`)?.*", line):
            table = heading[2]
        elif table and (row := re.match(r"\| `(\w+)` \| `?(.*?)`? \|", line)):
            rows.add((f"{table}.{row[1]}", row[2]))
    config = Config()
    expected = {(key, shown(value_at(config, key))) for key in keys_of(Config)}
    assert rows == expected


def value_at(config: Config, dotted: str) -> Any:
    value: Any = config
    for name in dotted.split("."):
        value = getattr(value, name)
    return value


def shown(value: Any) -> str:
    """A default as the documentation prints it."""
    if value is None or value == "":
        return "unset"
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{text}"' for text in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value}"
