"""The `metronome` command.

Nothing heavy is imported before a command needs it, so that `--help` and `check-config` answer at
once. What a person can put right ends in one line per problem on stderr, never in a traceback; the
exit code is 2 for a mistake in the command or the configuration, 1 for anything that fails while
running.

`demo` and `bench NAME` live in the `bench` package, which sits above this one: their modules are
found by name when called (`bench.demo`, `bench.<name>`) and provide `main(argv) -> int`, `--help`
included.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from server.command_line import DISTRIBUTION, build_parser
from server.config import (
    Config,
    ConfigError,
    api_keys,
    default_config_path,
    environment,
    load_config,
    shipped_configs,
)

# Which extra brings a package that the server can start without. Import names.
EXTRA_OF = {
    "vllm": "cpu",
    "torch": "cpu",
    "transformers": "cpu",
    "onnxruntime": "embedded",
    "hibari": "embedded",
    "safetensors": "embedded",
    "tokenizers": "embedded",
    "moshi": "moshi",
    "openai": "dev",
    "httpx": "dev",
}

OVERRIDES = {
    "host": "server.host",
    "port": "server.port",
    "ssl_certfile": "server.ssl_certfile",
    "ssl_keyfile": "server.ssl_keyfile",
    "allow_anonymous": "server.allow_anonymous",
    "log_level": "log.level",
}


class Failure(Exception):
    """Ends the command with one line on stderr."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code. Raises SystemExit where argparse does."""
    parser = build_parser()
    args, unknown = parser.parse_known_args(argv)
    if args.forwards:
        args.rest = unknown
    elif unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return COMMANDS[args.command](args)
    except ConfigError as error:
        return _say(2, *map(str, error.problems))
    except Failure as error:
        return _say(error.code, str(error))
    except ModuleNotFoundError as error:
        return _say(1, _missing_package(error))
    except KeyboardInterrupt:
        return 130  # what a shell reports for SIGINT


def _say(code: int, *lines: str) -> int:
    for line in lines:
        print(f"metronome: {line}", file=sys.stderr)
    return code


def _missing_package(error: ModuleNotFoundError) -> str:
    name = (error.name or "").partition(".")[0]
    if name not in EXTRA_OF:
        # One of the base requirements, or a module of ours: a broken installation.
        return f"{error}; the installation is incomplete, run 'metronome doctor'"
    extra = f"pip install '{DISTRIBUTION}[{EXTRA_OF[name]}]'"
    return f"the package {name!r} is not installed: run 'make setup' in a checkout, else {extra}"


@contextmanager
def _start_failures() -> Iterator[None]:
    """Turn parts that cannot be had into one line; these errors say what to do themselves."""
    from engine.speech.ports import SpeechUnavailable
    from engine.vllm_adapter.environment import EngineUnavailable
    from engine.weights import WeightsError

    try:
        yield
    except (WeightsError, SpeechUnavailable, EngineUnavailable) as error:
        raise Failure(str(error)) from None


def _serve(args: argparse.Namespace) -> int:
    # Imported here: neither ssl nor hashing is needed to print a help text.
    from server.auth import KeyRing, refusal_to_bind
    from server.preflight import certificate_problem, file_problems, port_problem

    config = _configuration(args)
    door = config.server
    if problems := file_problems(config):
        raise ConfigError(*problems)
    ring = KeyRing(api_keys(config, environment()))
    if refusal := refusal_to_bind(door.host, ring, allow_anonymous=door.allow_anonymous):
        raise Failure(refusal, 2)
    if problem := certificate_problem(config):
        raise Failure(problem, 2)
    if problem := port_problem(door.host, door.port):  # now, not after the model is loaded
        raise Failure(problem)
    with _start_failures():
        from server.process import serve

        return serve(config, lambda: _configuration(args))


def _configuration(args: argparse.Namespace) -> Config:
    """The file of `--config`, or what `--model` names, or the default; changed by the flags."""
    flags = vars(args)
    overrides: dict[str, Any] = {
        key: flags[flag] for flag, key in OVERRIDES.items() if flags.get(flag) is not None
    }
    path = args.config
    if path is None and args.model is None:
        path = default_config_path()
    elif args.model in shipped_configs():
        path = default_config_path(args.model)
    elif args.model is not None:
        overrides["model.id"] = args.model
    return load_config(path, overrides)


def _calibrate(args: argparse.Namespace) -> int:
    config = _configuration(args)
    with _start_failures():
        from server.admitting import measure

        return measure(config, args.seconds)


def _forward(module: str, argv: Sequence[str]) -> int:
    """Run `main(argv)` of a module in the package above this one."""
    with _start_failures():
        run: Callable[[Sequence[str]], int] = importlib.import_module(module).main
        return run(argv)


def _demo(args: argparse.Namespace) -> int:
    return _forward("bench.demo", args.rest)


def _bench(args: argparse.Namespace) -> int:
    return _forward(f"bench.{args.name.replace('-', '_')}", args.rest)


def _models_fetch(args: argparse.Namespace) -> int:
    with _start_failures():
        from engine.weights import embedded_dir, fetch_embedded

        fetch_embedded(embedded_dir(environment().cache_dir))
    return 0


def _models_list(args: argparse.Namespace) -> int:
    from engine.models.families import supported
    from engine.weights import WeightsError, embedded_dir, verify_embedded

    model = Config().model
    print("The parts of the embedded voice stack:")
    print(f"  vad  {model.vad}\n  stt  {model.stt}\n  llm  {model.llm}")
    print(f"  tts  {model.tts} (its weights come with the package hibari-tts)")
    folder = embedded_dir(environment().cache_dir)
    try:
        verify_embedded(folder)
        print(f"State: whole, in {folder}")
    except WeightsError as error:
        print(f"State: {error}")
    print(f"Configurations that ship, for --model: {', '.join(shipped_configs())}")
    print("Models that hear for themselves, by architecture, and what the adapter was run with:")
    for line in supported():
        print(f"  {line}")
    print(
        "Any other folder or hub id is the language model of a cascade; Moshi: docs/models-moshi.md"
    )
    return 0


def _check_config(args: argparse.Namespace) -> int:
    from server.preflight import file_problems

    config = load_config(args.file)
    scheme = "wss" if config.server.ssl_certfile else "ws"
    where = f"{scheme}://{config.server.host}:{config.server.port}{config.server.paths[0]}"
    print(
        f"{args.file}: ok: {config.model.public_name} at {where}, "
        f"up to {config.engine.max_sessions} calls, KV policy {config.engine.kv.policy}"
    )
    for problem in file_problems(config):  # right, but it will not start on this machine
        print(f"{args.file}: warning: {problem}")
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from server.doctor import examine

    return examine(load_config(args.config or default_config_path()))


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "serve": _serve,
    "demo": _demo,
    "bench": _bench,
    "calibrate": _calibrate,
    "models fetch": _models_fetch,
    "models list": _models_list,
    "check-config": _check_config,
    "doctor": _doctor,
}


if __name__ == "__main__":
    sys.exit(main())
