"""A child server is waited for, and always ended."""

import os
import sys
from pathlib import Path

import pytest

from bench.server_process import ServerFailed, ServerProcess, free_port

READY = """
import http.server, sys
class Probe(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Probe).serve_forever()
"""


def child(code: str, log: Path) -> ServerProcess:
    port = free_port()
    return ServerProcess([sys.executable, "-c", code, str(port)], port, log)


@pytest.mark.slow
@pytest.mark.socket
def test_a_ready_child_is_ended_with_the_block(tmp_path: Path) -> None:
    """Nothing is left running, also if the block raises."""
    server = child(READY, tmp_path / "log")

    def interrupted() -> None:
        with server:
            server.wait_ready(timeout_s=20)
            os.kill(server.pid, 0)  # it runs
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


@pytest.mark.slow
@pytest.mark.socket
def test_a_child_that_dies_is_reported_with_its_last_words(tmp_path: Path) -> None:
    """The message holds the end of the log and where the rest is."""
    log = tmp_path / "deep" / "server.log"
    with (
        child("import sys; print('no weights'); sys.exit(3)", log) as server,
        pytest.raises(ServerFailed, match=r"status 3\n    no weights\n  full log: .*server\.log"),
    ):
        server.wait_ready(timeout_s=20)


@pytest.mark.slow
@pytest.mark.socket
def test_waiting_has_an_end_and_is_told(tmp_path: Path) -> None:
    """A child that never listens fails the wait; meanwhile its newest log entry is shown."""
    notes: list[str] = []
    code = "import time; print('12:00:00 INFO    metronome: loading', flush=True); time.sleep(60)"
    with (
        child(code, tmp_path / "log") as server,
        pytest.raises(ServerFailed, match="not ready after 1 s"),
    ):
        server.wait_ready(timeout_s=1, progress=lambda waited_s, note: notes.append(note))
    assert notes[-1] == "loading"
