"""The command line, in process: help, dispatch, messages and exit codes."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from engine.speech.ports import SpeechUnavailable
from engine.vllm_adapter.environment import EngineUnavailable
from engine.weights import WeightsCorrupt, WeightsMissing
from server.cli import COMMANDS, main
from server.config import Config

COMMAND_LINES = [["serve"], ["bench"], ["models"], ["models", "fetch"], ["models", "list"]]
COMMAND_LINES += [["check-config"], ["doctor"], []]


@pytest.fixture(autouse=True)
def environ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No keys, an empty cache, and threads as if the user had fixed them."""
    monkeypatch.delenv("METRONOME_API_KEYS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return monkeypatch


class Runtime(ModuleType):
    """Stands in for `server.process`: keeps what it was asked to serve."""

    def __init__(self, raises: BaseException | None = None) -> None:
        super().__init__("server.process")
        self.served: list[Config] = []
        self.raises = raises

    def serve(self, config: Config, read: Callable[[], Config]) -> int:
        self.served.append(config)
        self.read = read
        if self.raises is not None:
            raise self.raises
        return 0


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    return installed(monkeypatch, Runtime())


def installed(monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> Runtime:
    monkeypatch.setitem(sys.modules, "server.process", runtime)
    return runtime


Capture = pytest.CaptureFixture[str]


def one_line(capsys: Capture) -> str:
    """The only line on stderr; stdout is empty."""
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("metronome: ")
    return line


@pytest.mark.parametrize("command", COMMAND_LINES, ids=" ".join)
def test_every_command_has_help(command: list[str], capsys: Capture) -> None:
    """`--help` exits with 0 and shows how the command is called."""
    with pytest.raises(SystemExit) as exited:
        main([*command, "--help"])
    assert exited.value.code == 0
    assert f"usage: metronome {' '.join(command)}".rstrip() in capsys.readouterr().out


def test_help_lists_every_command(capsys: Capture) -> None:
    """The first page names all commands."""
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(command.split()[0] in text for command in COMMANDS)


def test_version(capsys: Capture) -> None:
    """`--version` prints one line."""
    with pytest.raises(SystemExit) as exited:
        main(["--version"])
    assert exited.value.code == 0
    assert capsys.readouterr().out.startswith("metronome 0.")


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["sing"],
        ["serve", "--loud"],
        ["serve", "--port", "x"],
        ["serve", "--config", "a", "--model", "b"],
        ["bench"],
        ["bench", "everything"],
        ["check-config"],
        ["check-config", "a", "b"],
        ["models", "bake"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_exits_with_2(argv: list[str], capsys: Capture) -> None:
    """argparse's usage message and exit code 2."""
    with pytest.raises(SystemExit) as exited:
        main(argv)
    assert exited.value.code == 2
    assert "usage: metronome" in capsys.readouterr().err


def test_help_and_check_config_import_nothing_heavy() -> None:
    """Neither pulls in what takes long: no numerics, web framework, TLS or metadata."""
    probe = (
        "import sys\nfrom server.cli import main\nmain(['check-config', sys.argv[1]])\n"
        "heavy = {'numpy', 'torch', 'vllm', 'fastapi', 'asyncio', 'prometheus_client', 'msgspec'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    path = Path(__file__).resolve().parents[2] / "configs" / "embedded.toml"
    done = subprocess.run([sys.executable, "-c", probe, path], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_serve_starts_the_default(runtime: Runtime) -> None:
    """`serve` alone serves embedded.toml, whose values are the defaults."""
    assert main(["serve", "--port", "0"]) == 0
    (config,) = runtime.served
    assert (config.model.id, config.server.port) == ("embedded", 0)


def test_flags_beat_the_file(runtime: Runtime, tmp_path: Path) -> None:
    """Flags override the file; what is not given is left as it is there."""
    file = tmp_path / "x.toml"
    file.write_text("[server]\nport = 1\nmax_session_s = 9.0\n[model]\nid = 'sim'\n", "utf-8")
    flags = ["--host", "localhost", "--port", "0", "--log-level", "debug"]
    assert main(["serve", "--config", str(file), *flags]) == 0
    (config,) = runtime.served
    assert (config.server.host, config.server.port, config.log.level) == ("localhost", 0, "debug")
    assert (config.server.max_session_s, config.model.id) == (9.0, "sim")
    assert config.server.allow_anonymous is False
    file.write_text("[server]\nport = 1\n[model]\nid = 'tml-200ms'\n", "utf-8")
    again = runtime.read()  # what SIGHUP reads
    assert (again.model.id, again.server.port) == ("tml-200ms", 0)


@pytest.mark.parametrize(
    ("model", "max_sessions", "llm"),
    [
        ("sim-duplex", 4096, "sim-duplex"),
        ("embedded", 8, "embedded:smollm2-135m"),
        ("org/m", 8, "org/m"),
    ],
)
def test_a_model_is_a_shipped_configuration_or_an_llm(
    runtime: Runtime, model: str, max_sessions: int, llm: str
) -> None:
    """`--model` takes the name of a configuration that ships; anything else is the LLM."""
    assert main(["serve", "--model", model, "--port", "0"]) == 0
    (config,) = runtime.served
    assert (config.engine.max_sessions, config.model.llm_id) == (max_sessions, llm)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["serve", "--config", "/nowhere.toml"], "/nowhere.toml: cannot be read: No such file"),
        (["check-config", "/nowhere.toml"], "/nowhere.toml: cannot be read: No such file"),
        (["serve", "--port", "70000"], "command line: server.port: must be between 0 and 65535"),
        (["serve", "--ssl-certfile", "c"], "server.ssl_certfile: needs ssl_keyfile as well"),
        (["serve", "--model", "/nowhere"], "model.id: no such folder: /nowhere"),
        (["serve", "--model", "."], "model.id: not a model folder (it has no config.json): ."),
        (["serve", "--host", "0.0.0.0"], "refusing to listen on 0.0.0.0 without API keys"),
    ],
)
def test_a_wrong_configuration_is_one_line_and_exit_2(
    argv: list[str], said: str, capsys: Capture, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong is said in one line on stderr; nothing is served."""
    monkeypatch.chdir(Path(__file__).parent)
    assert main(argv) == 2
    assert said in one_line(capsys)
    assert runtime.served == []


def test_missing_certificates_are_each_named(capsys: Capture, runtime: Runtime) -> None:
    """Each file that is not there gets its line."""
    assert main(["serve", "--ssl-certfile", "/no/c", "--ssl-keyfile", "/no/k"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "metronome: server.ssl_certfile: no such file: /no/c",
        "metronome: server.ssl_keyfile: no such file: /no/k",
    ]


def test_consent_or_keys_open_other_addresses(
    runtime: Runtime, environ: pytest.MonkeyPatch
) -> None:
    """Beyond loopback it starts with --allow-anonymous, or with a key."""
    argv = ["serve", "--model", "sim", "--host", "0.0.0.0", "--port", "0"]
    assert main([*argv, "--allow-anonymous"]) == 0
    environ.setenv("METRONOME_API_KEYS", "canary")
    assert main(argv) == 0
    assert [config.server.allow_anonymous for config in runtime.served] == [True, False]
    assert "canary" not in repr(runtime.served)


@pytest.mark.parametrize(
    "error", [WeightsCorrupt, WeightsMissing, SpeechUnavailable, EngineUnavailable]
)
def test_a_part_that_cannot_be_had_is_one_line_and_exit_1(
    error: type[RuntimeError], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the weights, the speech parts or the engine say is all that is printed."""
    installed(monkeypatch, Runtime(error("llm/model.safetensors is corrupt: fetch it")))
    assert main(["serve", "--port", "0"]) == 1
    assert one_line(capsys) == "metronome: llm/model.safetensors is corrupt: fetch it"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("onnxruntime", "'onnxruntime' is not installed: run 'make setup' in a checkout, else pip"),
        ("vllm.engine", "pip install 'metronome-realtime[cpu]'"),
        ("uvicorn", "run 'metronome doctor'"),
    ],
)
def test_a_missing_package_is_one_line_and_exit_1(
    name: str, said: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An optional dependency that is missing is named, with what to install."""
    installed(monkeypatch, Runtime(ModuleNotFoundError(f"No module named {name!r}", name=name)))
    assert main(["serve", "--port", "0"]) == 1
    assert said in one_line(capsys)


def test_an_interrupt_is_no_traceback(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C before the server handles signals exits as a shell expects, silently."""
    installed(monkeypatch, Runtime(KeyboardInterrupt()))
    assert main(["serve", "--port", "0"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("argv", "module", "forwarded"),
    [
        (["demo", "--out", "x", "--help"], "bench.demo", ["--out", "x", "--help"]),
        (["demo"], "bench.demo", []),
        (["bench", "turn", "--quick", "--json", "f"], "bench.turn", ["--quick", "--json", "f"]),
        (["bench", "frontend", "--help"], "bench.frontend", ["--help"]),
        (["bench", "turn-taking", "--quick"], "bench.turn_taking", ["--quick"]),
    ],
)
def test_demo_and_bench_are_run_by_name(
    argv: list[str], module: str, forwarded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They get all that follows their name, and their exit code is the command's."""
    calls: list[Sequence[str]] = []
    stub = SimpleNamespace(main=lambda rest: calls.append(rest) or 3)
    monkeypatch.setitem(sys.modules, module, stub)
    assert main(argv) == 3
    assert calls == [forwarded]


def test_check_config_says_what_it_read(capsys: Capture, tmp_path: Path) -> None:
    """A good file is summed up in a line; what this machine lacks is a warning, not an error."""
    file = tmp_path / "x.toml"
    text = "[server]\nssl_certfile = '/no/c'\nssl_keyfile = '/no/k'\n[engine]\nmax_sessions = 3\n"
    file.write_text(text, encoding="utf-8")
    assert main(["check-config", str(file)]) == 0
    said, *warnings = capsys.readouterr().out.splitlines()
    assert said == (
        f"{file}: ok: embedded at wss://127.0.0.1:8000/v1/realtime, up to 3 calls, "
        "KV policy anchored"
    )
    assert warnings == [
        f"{file}: warning: server.ssl_certfile: no such file: /no/c",
        f"{file}: warning: server.ssl_keyfile: no such file: /no/k",
    ]


def test_models_list_says_what_is_missing(capsys: Capture) -> None:
    """With an empty cache it names the missing file, and is no error."""
    assert main(["models", "list"]) == 0
    text = capsys.readouterr().out
    assert "embedded:smollm2-135m" in text
    assert "is missing" in text
