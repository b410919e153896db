"""Reads a deployment's configuration, once: TOML file, then command line, checked, frozen.

The command line beats the file, and the file beats the defaults (`server/config_schema.py`).
Everything wrong is reported together, one line each, as
`configs/x.toml: engine.kv.window_tokens: must be …`.

This is also the only file of the project that reads the environment.
"""

import dataclasses
import difflib
import os
import tomllib
import types
import typing
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from server.config_schema import (
    AdmissionConfig,
    Config,
    EngineConfig,
    KvConfig,
    LogConfig,
    ModelConfig,
    ServerConfig,
    SimConfig,
    TurnDetectionConfig,
    VllmConfig,
)
from server.config_section import ConfigError, Problem, Section, limit_problem

__all__ = [
    "AdmissionConfig",
    "Config",
    "ConfigError",
    "EngineConfig",
    "Environment",
    "KvConfig",
    "LogConfig",
    "ModelConfig",
    "Problem",
    "ServerConfig",
    "SimConfig",
    "TurnDetectionConfig",
    "VllmConfig",
    "api_keys",
    "default_config_path",
    "environment",
    "load_config",
    "set_thread_environment",
    "shipped_configs",
]

COMMAND_LINE = "command line"

# Beside `server/` in a checkout and in site-packages alike. Not importlib.resources: `configs`
# holds no code, hence is a namespace package, which it cannot read under `pip install -e` (3.11).
CONFIGS = Path(__file__).resolve().parent.parent / "configs"


def load_config(path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Config:
    """The deployment that `path` describes (None: the defaults), changed by `overrides`.

    `overrides` maps dotted keys to values, as in {"server.port": 8001}.

    Raises:
        ConfigError: the file cannot be read or parsed, or anything in it or `overrides` is wrong.
    """
    table = {} if path is None else _parse(path)
    origins = dict.fromkeys(overrides or {}, COMMAND_LINE)
    for key, value in (overrides or {}).items():
        _put(table, key, value)
    config, problems = _build(Config, table, "")
    if isinstance(config, Config):
        return config
    home = "defaults" if path is None else str(path)
    problems.sort(key=str)
    raise ConfigError(
        *(Problem(f"{origins.get(p.key, home)}: {p.key}", p.message) for p in problems)
    )


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(Problem(str(path), f"not valid TOML: {error}")) from None
    except UnicodeDecodeError as error:
        raise ConfigError(Problem(str(path), f"not UTF-8 text: {error.reason}")) from None
    except OSError as error:
        raise ConfigError(Problem(str(path), f"cannot be read: {error.strerror}")) from None


def _put(table: dict[str, Any], dotted: str, value: Any) -> None:
    """Set `a.b.c` in nested tables; what should be a table and is not, the reader will name."""
    *parents, last = dotted.split(".")
    for parent in parents:
        inner = table.setdefault(parent, {})
        if not isinstance(inner, dict):
            return
        table = inner
    table[last] = value


def _build(section: type[Any], table: Mapping[str, Any], prefix: str) -> tuple[Any, list[Problem]]:
    """An instance of `section`, or None and all problems in `table` with their full addresses."""
    specs = {spec.name: spec for spec in dataclasses.fields(section)}
    hints = typing.get_type_hints(section)
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, raw in table.items():
        where = prefix + key
        if key not in specs:
            problems.append(_unknown(where, key, specs))
        elif isinstance(hints[key], type) and issubclass(hints[key], Section):
            if not isinstance(raw, dict):
                problems.append(Problem(where, f"must be a table ([{where}]), not {_shown(raw)}"))
                continue
            values[key], inner = _build(hints[key], raw, where + ".")
            problems += inner
        else:
            value, problem = _checked(specs[key], hints[key], raw)
            values[key] = value
            if problem is not None:
                problems.append(Problem(where, problem))
    if problems:
        return None, problems
    try:
        return section(**values), []
    except ConfigError as error:
        return None, [Problem(prefix + p.key, p.message) for p in error.problems]


def _unknown(where: str, key: str, known: Mapping[str, Any]) -> Problem:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if near:
        return Problem(where, f"unknown key; did you mean {near[0]!r}?")
    return Problem(where, f"unknown key; known here: {', '.join(sorted(known))}")


def _checked(spec: dataclasses.Field[Any], hint: Any, raw: Any) -> tuple[Any, str | None]:
    """`raw` as the field's type, and what is wrong with it."""
    value, wanted = _coerce(hint, raw)
    if wanted is not None:
        return None, f"must be {wanted}, not {_shown(raw)}"
    problem = limit_problem(spec, value)
    return value, problem.message if problem else None


_NAMES: Mapping[Any, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def _coerce(hint: Any, raw: Any) -> tuple[Any, str | None]:
    """`raw` as `hint`, or the words for what it must be.

    TOML has no null, so an optional number is unset by 0 and an optional text by "".
    """
    origin = typing.get_origin(hint)
    if origin is Literal:
        allowed = typing.get_args(hint)
        return raw, None if raw in allowed else f"one of {', '.join(map(repr, allowed))}"
    if origin is types.UnionType:
        inner = next(arg for arg in typing.get_args(hint) if arg is not type(None))
        return (None, None) if raw in (0, "") and raw is not False else _coerce(inner, raw)
    if origin is tuple:
        if isinstance(raw, list | tuple) and all(isinstance(text, str) for text in raw):
            return tuple(raw), None
        return None, "a list of strings"
    if hint is float and type(raw) is int:
        return float(raw), None
    return raw, None if type(raw) is hint else _NAMES[hint]


def _shown(raw: Any) -> str:
    if isinstance(raw, bool):
        return "true" if raw else "false"
    return "a table" if isinstance(raw, dict) else repr(raw)


def shipped_configs() -> list[str]:
    """Names of the configurations that ship with the package, without `.toml`."""
    return sorted(path.stem for path in CONFIGS.glob("*.toml"))


def default_config_path(name: str = "embedded") -> Path:
    """The file of a shipped configuration.

    Raises:
        ConfigError: no such configuration ships.
    """
    if name not in shipped_configs():
        known = ", ".join(shipped_configs())
        raise ConfigError(Problem(name, f"no such configuration; there are {known}"))
    return CONFIGS / f"{name}.toml"


@dataclass(frozen=True, slots=True)
class Environment:
    """What the project takes from the process environment."""

    api_keys: tuple[str, ...]  # METRONOME_API_KEYS, separated by commas or spaces
    cache_dir: Path  # $XDG_CACHE_HOME/metronome, else ~/.cache/metronome
    omp_num_threads: str | None
    omp_wait_policy: str | None

    def __repr__(self) -> str:
        return f"Environment({len(self.api_keys)} keys, cache_dir={str(self.cache_dir)!r})"


def environment(environ: Mapping[str, str] = os.environ) -> Environment:
    """The environment, read now."""
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification 0.8 demands that a relative path be ignored.
    cache = Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()
    return Environment(
        api_keys=tuple(environ.get("METRONOME_API_KEYS", "").replace(",", " ").split()),
        cache_dir=cache / "metronome",
        omp_num_threads=environ.get("OMP_NUM_THREADS"),
        omp_wait_policy=environ.get("OMP_WAIT_POLICY"),
    )


def set_thread_environment(threads: int, environ: MutableMapping[str, str] = os.environ) -> None:
    """Fix OpenMP's thread count before torch is first imported, unless the user has.

    Unset, vLLM's CPU backend spins two OpenMP threads against the server's own (a turn of 0.84 s
    took 17.1 s, measured on two contended cores, 2026-11). 0 leaves the choice to OpenMP.
    """
    env = environment(environ)
    if threads and env.omp_num_threads is None and env.omp_wait_policy is None:
        environ["OMP_NUM_THREADS"] = str(threads)


def api_keys(config: Config, env: Environment) -> tuple[str, ...]:
    """All keys that open the door: of the file (one a line, `#` comments) and of the environment.

    Raises:
        ConfigError: the file cannot be read or holds no key.
    """
    if config.server.api_keys_file is None:
        return env.api_keys
    path = Path(config.server.api_keys_file).expanduser()
    try:
        lines: Sequence[str] = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(Problem("server.api_keys_file", f"cannot be read: {error}")) from None
    keys = tuple(key for line in lines if (key := line.split("#", 1)[0].strip()))
    if not keys:
        # An empty list would mean "any key is accepted": never by accident.
        raise ConfigError(Problem("server.api_keys_file", f"holds no key: {path}"))
    return keys + env.api_keys
