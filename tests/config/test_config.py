"""Reading a deployment's configuration: precedence, addresses of errors, environment."""

from pathlib import Path
from typing import Any

import pytest

from server.config import (
    Config,
    ConfigError,
    EngineConfig,
    KvConfig,
    ModelConfig,
    ServerConfig,
    api_keys,
    environment,
    load_config,
    set_thread_environment,
)


def written(folder: Path, text: str) -> Path:
    path = folder / "x.toml"
    path.write_text(text, encoding="utf-8")
    return path


def errors_of(path: Path | None, overrides: dict[str, Any] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return [str(problem) for problem in caught.value.problems]


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    """An empty file means the same as no file."""
    assert load_config(written(tmp_path, "")) == load_config() == Config()


def test_file_beats_defaults_and_overrides_beat_the_file(tmp_path: Path) -> None:
    """The command line beats the file, and the file beats the defaults."""
    path = written(tmp_path, "[server]\nport = 1\nhost = '::1'\n[engine.kv]\nslack_tokens = 7")
    config = load_config(path, {"server.port": 2, "engine.kv.window_tokens": 64})
    assert (config.server.port, config.server.host) == (2, "::1")
    assert config.engine.kv == KvConfig(window_tokens=64, slack_tokens=7)
    assert config.engine.max_sessions == EngineConfig().max_sessions


def test_a_whole_number_is_a_number(tmp_path: Path) -> None:
    """An integer where seconds are wanted is taken, as a float."""
    drain_s = load_config(written(tmp_path, "[server]\ndrain_s = 3")).server.drain_s
    assert drain_s == 3.0
    assert type(drain_s) is float


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[server]\nprt = 1", "server.prt: unknown key; did you mean 'port'?"),
        ("[engine.kv]\nwindow_token = 1", "engine.kv.window_token: unknown key; did you mean"),
        ("[sever]\nport = 1", "sever: unknown key; did you mean 'server'?"),
        ("[log]\nqqqq = 1", "log.qqqq: unknown key; known here: format, level"),
        ("[server]\nport = 'x'", "server.port: must be a whole number, not 'x'"),
        ("[server]\nport = true", "server.port: must be a whole number, not true"),
        ("[server]\nport = 1.5", "server.port: must be a whole number, not 1.5"),
        ("[server]\nport = 70000", "server.port: must be between 0 and 65535, not 70000"),
        ("[server]\ndrain_s = 'x'", "server.drain_s: must be a number, not 'x'"),
        ("[server]\ndrain_s = nan", "server.drain_s: must be between 0 and 86400, not nan"),
        ("[server]\nhost = 1", "server.host: must be a string, not 1"),
        ("[server]\nhost = ''", "server.host: must be an address or host name, not ''"),
        ("[server]\nallow_anonymous = 1", "server.allow_anonymous: must be true or false, not 1"),
        ("[server]\npaths = '/x'", "server.paths: must be a list of strings, not '/x'"),
        ("[server]\npaths = [1]", "server.paths: must be a list of strings, not [1]"),
        ("[server]\npaths = ['x']", "server.paths: must be a list of paths that start with '/'"),
        ("[server]\npaths = []", "server.paths: must name at least one path"),
        ("[server]\nallowed_origins = ['a.org']", "server.allowed_origins: must be a list of"),
        ("[server]\nssl_certfile = 'c'", "server.ssl_certfile: needs ssl_keyfile as well"),
        ("[server]\nssl_keyfile = 'k'", "server.ssl_keyfile: needs ssl_certfile as well"),
        ("server = 1", "server: must be a table ([server]), not 1"),
        ("[engine]\nkv = 3", "engine.kv: must be a table ([engine.kv]), not 3"),
        ("[server.port]\nx = 1", "server.port: must be a whole number, not a table"),
        ("[engine.kv]\npolicy = 'best'", "engine.kv.policy: must be one of 'anchored', "),
        ("[engine.kv]\npolicy = ['best']", "engine.kv.policy: must be one of 'anchored', "),
        ("[engine.kv]\nslack_tokens = 2000", "engine.kv.slack_tokens: must be at most window"),
        ("[engine.kv]\nwindow_tokens = 2048", "engine.kv.window_tokens: must leave room for the"),
        ("[engine.vllm]\nkv_cache_gib = 0", "engine.vllm.kv_cache_gib: set either this or gpu_"),
        ("[engine.vllm]\ngpu_memory_utilization = 0.9", "engine.vllm.kv_cache_gib: set either"),
        ("[model]\ntick_ms = 100", "model.tick_ms: must be a multiple of 32"),
        ("[model]\nid = 'org/m'\nllm = 'o'", "model.llm: has no use with id = 'org/m'"),
        ("[model]\nid = 'sim'\nvad = 'v'", "model.vad: has no use with id = 'sim'"),
        ("[turn_detection]\nthreshold = 1.5", "turn_detection.threshold: must be between 0 and 1"),
        ("[turn_detection]\nidle_timeout_ms = 10", "turn_detection.idle_timeout_ms: must be"),
        ("[log]\nlevel = 'loud'", "log.level: must be one of 'debug', 'info', "),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    """Each mistake gives one line: file, dotted key, and what it must be."""
    path = written(tmp_path, text)
    (line,) = errors_of(path)
    assert line.startswith(f"{path}: {expected}")
    assert "\n" not in line


def test_all_mistakes_are_reported_together(tmp_path: Path) -> None:
    """Mistakes of several tables, of values and of names, come in one error."""
    text = "[server]\nport = 'x'\nhots = 'y'\n[engine.kv]\nslack_tokens = 2000\n[log]\nlevel = 1"
    addresses = [line.split(": ")[1] for line in errors_of(written(tmp_path, text))]
    assert addresses == ["engine.kv.slack_tokens", "log.level", "server.hots", "server.port"]


def test_a_wrong_flag_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    """A problem with an override names the command line, beside one of the file."""
    path = written(tmp_path, "[log]\nlevel = 'loud'")
    log, server = errors_of(path, {"server.port": -1})
    assert log.startswith(f"{path}: log.level: ")
    assert server.startswith("command line: server.port: must be between")


def test_an_override_below_a_value_is_left_to_the_file_error(tmp_path: Path) -> None:
    """Where the file has a value in place of a table, that is what is reported."""
    (line,) = errors_of(written(tmp_path, "engine = 3"), {"engine.kv.window_tokens": 64})
    assert "engine: must be a table ([engine]), not 3" in line


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"[server\n", "not valid TOML: "), (b"\xff", "not UTF-8 text: "), (None, "cannot be read: ")],
)
def test_an_unreadable_file_is_one_line(
    tmp_path: Path, content: bytes | None, expected: str
) -> None:
    """Bad TOML, bad encoding and a missing file are each one line that names the file."""
    path = tmp_path / "x.toml"
    if content is not None:
        path.write_bytes(content)
    (line,) = errors_of(path)
    assert line.startswith(f"{path}: {expected}")


def test_zero_and_empty_unset_optional_keys(tmp_path: Path) -> None:
    """TOML has no null: 0 unsets an optional number and "" an optional text, false neither."""
    text = "[server]\nssl_certfile = ''\n[engine.vllm]\nkv_cache_gib = 0.0\n"
    config = load_config(written(tmp_path, text + "gpu_memory_utilization = 0.5"))
    assert config.server.ssl_certfile is None
    assert config.engine.vllm.kv_cache_gib is None
    (line,) = errors_of(written(tmp_path, "[turn_detection]\nidle_timeout_ms = false"))
    assert line.endswith("must be a whole number, not false")


def test_a_section_built_in_code_is_checked_too() -> None:
    """Limits and pairs hold without a file."""
    with pytest.raises(ConfigError, match="port: must be between"):
        ServerConfig(port=-1)
    with pytest.raises(ConfigError, match="ssl_certfile: needs"):
        ServerConfig(ssl_certfile="c")
    with pytest.raises(ConfigError, match=r"engine\.kv\.window_tokens"):
        Config(engine=EngineConfig(kv=KvConfig(window_tokens=4096)))


def test_an_unbounded_policy_has_no_window_to_fit() -> None:
    """The window is not compared with the model's length where there is none."""
    kv = KvConfig(policy="unbounded", window_tokens=4096)
    assert Config(engine=EngineConfig(kv=kv)).engine.kv.window_tokens == 4096


@pytest.mark.parametrize(
    ("model", "family", "llm", "name"),
    [
        (ModelConfig(), "cascade", "embedded:smollm2-135m", "embedded"),
        (ModelConfig(llm="org/m"), "cascade", "org/m", "embedded"),
        (ModelConfig(id="org/m"), "cascade", "org/m", "org/m"),
        (ModelConfig(id="~/models/m/"), "cascade", "~/models/m/", "m"),
        (ModelConfig(id="org/m", name="fast"), "cascade", "org/m", "fast"),
        (ModelConfig(id="sim"), "sim", "sim", "sim"),
        (ModelConfig(id="sim-duplex"), "sim-duplex", "sim-duplex", "sim-duplex"),
        (ModelConfig(id="moshi:~/m", name="m", tick_ms=80), "moshi", "moshi:~/m", "m"),
    ],
)
def test_what_an_id_stands_for(model: ModelConfig, family: str, llm: str, name: str) -> None:
    """A folder or hub id is the LLM of a cascade; clients see a folder's last part."""
    assert (model.family, model.llm_id, model.public_name) == (family, llm, name)


@pytest.mark.parametrize(
    ("model", "vad", "stt"),
    [
        (ModelConfig(), "embedded:silero-vad", "embedded:moonshine-tiny-en"),
        (ModelConfig(id="sim-duplex"), "sim", "sim"),
        (ModelConfig(id="moshi-tiny-random", tick_ms=80, stt="none"), "sim", "none"),
        (ModelConfig(id="sim-duplex", vad="none", stt="./m"), "none", "./m"),
        (
            ModelConfig(id="moshi:org/m", tick_ms=80),
            "embedded:silero-vad",
            "embedded:moonshine-tiny-en",
        ),
    ],
)
def test_who_listens_to_the_caller(model: ModelConfig, vad: str, stt: str) -> None:
    """A model without weights brings simulated ears, unless others are named; `none` is nobody."""
    assert (model.vad_id, model.stt_id) == (vad, stt)


def test_a_long_tick_need_not_be_whole_silero_frames() -> None:
    """MiniCPM-o hears whole seconds."""
    assert ModelConfig(id="org/m", tick_ms=1000).tick_ms == 1000


def test_the_environment_is_read_by_name() -> None:
    """Keys are separated by commas or spaces; a relative XDG_CACHE_HOME is ignored."""
    env = environment({"METRONOME_API_KEYS": "a, b\nc", "XDG_CACHE_HOME": "/c"})
    assert env.api_keys == ("a", "b", "c")
    assert env.cache_dir == Path("/c/metronome")
    assert environment({"XDG_CACHE_HOME": "c"}).cache_dir == Path("~/.cache/metronome").expanduser()
    assert environment({}).api_keys == ()


@pytest.mark.parametrize(
    ("before", "threads", "after"),
    [
        ({}, 1, {"OMP_NUM_THREADS": "1"}),
        ({}, 0, {}),
        ({"OMP_NUM_THREADS": "3"}, 1, {"OMP_NUM_THREADS": "3"}),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, 1, {"OMP_WAIT_POLICY": "PASSIVE"}),
    ],
)
def test_threads_are_fixed_unless_the_user_has(
    before: dict[str, str], threads: int, after: dict[str, str]
) -> None:
    """OMP_NUM_THREADS is set from the configuration only where the user set neither variable."""
    set_thread_environment(threads, before)
    assert before == after


def test_keys_come_from_file_and_environment(tmp_path: Path) -> None:
    """One key a line, comments and blank lines aside; the environment's are added."""
    file = tmp_path / "keys"
    file.write_text("# ours\nfirst\n\n second  # Bob\n", encoding="utf-8")
    config = Config(server=ServerConfig(api_keys_file=str(file)))
    env = environment({"METRONOME_API_KEYS": "third"})
    assert api_keys(config, env) == ("first", "second", "third")
    assert api_keys(Config(), env) == ("third",)


def test_a_key_file_without_keys_is_an_error(tmp_path: Path) -> None:
    """No file and an empty one are errors: an empty list would let everyone in."""
    file = tmp_path / "keys"
    config = Config(server=ServerConfig(api_keys_file=str(file)))
    with pytest.raises(ConfigError, match=r"server\.api_keys_file: cannot be read"):
        api_keys(config, environment({}))
    file.write_text("# none yet\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds no key"):
        api_keys(config, environment({"METRONOME_API_KEYS": "k"}))
