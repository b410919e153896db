"""The abuse list, servers that cannot start: one line on stderr that says what to do, and no traceback."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.embedded import embedded_files

from engine.weights.paths import EmbeddedFiles, embedded_dir

pytestmark = pytest.mark.slow


def _serve(*arguments: str, cache: Path | None = None, before: str = "pass") -> tuple[int, str]:
    """Run `metronome serve`, which must end by itself; exit status and stderr. `before` is Python run first."""
    code = f"import sys; {before}; from server.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(cache or "/nonexistent"), "OMP_NUM_THREADS": "1"},
    )
    return done.returncode, done.stderr


def _is_one_line_about(stderr: str, *words: str) -> None:
    assert "Traceback" not in stderr, stderr
    line = stderr.strip().splitlines()[-1]
    for word in words:
        assert word in line, stderr


def test_a_port_in_use() -> None:
    """Names the port, before anything is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, stderr = _serve("--model", "sim", "--port", port)
    assert status != 0
    _is_one_line_about(stderr, port, "in use")


def test_missing_weights(tmp_path: Path) -> None:
    """Says which command fetches them."""
    status, stderr = _serve("--port", "0", cache=tmp_path)
    assert status != 0
    _is_one_line_about(stderr, "metronome models fetch")


def test_corrupt_weights(tmp_path: Path) -> None:
    """Names the file, and the command."""
    file = EmbeddedFiles(embedded_dir(tmp_path / "metronome")).vad
    file.parent.mkdir(parents=True)
    file.write_bytes(b"not a model")
    status, stderr = _serve("--port", "0", cache=tmp_path)
    assert status != 0
    _is_one_line_about(stderr, file.name, "metronome models fetch")


def test_a_model_folder_that_is_no_model(tmp_path: Path) -> None:
    """Names the folder and what it lacks."""
    status, stderr = _serve("--model", str(tmp_path), "--port", "0")
    assert status != 0
    _is_one_line_about(stderr, str(tmp_path), "config.json")


def test_a_missing_optional_package() -> None:
    """Names the package and how to install it."""
    cache = embedded_files().root.parents[1]
    status, stderr = _serve("--port", "0", before="sys.modules['onnxruntime'] = None", cache=cache)
    assert status != 0
    _is_one_line_about(stderr, "onnxruntime", "pip install")


def test_a_configuration_with_a_typing_mistake(tmp_path: Path) -> None:
    """Names the key and the nearest one there is."""
    config = tmp_path / "c.toml"
    config.write_text("[server]\nprot = 1\n")
    status, stderr = _serve("--config", str(config))
    assert status == 2
    _is_one_line_about(stderr, "server.prot", "'port'")


def test_a_public_address_without_keys() -> None:
    """Refused unless it is meant."""
    status, stderr = _serve("--model", "sim", "--host", "0.0.0.0", "--port", "0")
    assert status == 2
    _is_one_line_about(stderr, "--allow-anonymous")
