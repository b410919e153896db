"""The load generator counts every frame, against the echo it is calibrated on."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.server_process import ServerProcess, free_port

pytestmark = [pytest.mark.slow, pytest.mark.socket]


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running echo server."""
    pytest.importorskip("orjson", reason="the echo needs orjson (a development requirement)")
    port = free_port()
    command = [sys.executable, "-m", "bench.echo_app", "--port", str(port)]
    with ServerProcess(command, port, tmp_path_factory.mktemp("echo") / "log") as server:
        server.wait_ready(timeout_s=30)
        yield server


def generate(echo: ServerProcess, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.loadgen", "--port", str(echo.port)]
    command += ["--server-pid", str(echo.pid), "--warmup", "0.1", "--seconds", "0.3", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_closed_loop_loses_nothing_and_knows_what_it_cost(echo: ServerProcess) -> None:
    """Frames sent and answered are equal, and both sides' CPU time is measured."""
    found = generate(echo, "--sessions", "4", "--frame-ms", "80")
    assert found["problems"] == []
    assert found["sent"] == found["received"] > 4
    assert 0 < found["measured"] < found["received"]
    assert found["server_cpu_s"] > 0
    assert found["own_cpu_s"] > 0


def test_a_paced_run_sends_at_the_frame_rate(echo: ServerProcess) -> None:
    """Four callers at 50 frames/s send about 200 frames a second, and each reply is timed."""
    found = generate(echo, "--sessions", "4", "--mode", "paced")
    assert found["problems"] == []
    assert found["sent"] == found["received"]
    assert found["timed"] == pytest.approx(60, abs=12)
    assert found["p99_ms"] > 0


def test_a_refused_caller_is_a_problem_not_a_crash(echo: ServerProcess, tmp_path: Path) -> None:
    """Nobody listens: the result says so."""
    nowhere = ServerProcess([], free_port(), tmp_path / "log")
    nowhere._child = echo._child
    assert "could not connect" in generate(nowhere, "--sessions", "1")["problems"][0]
