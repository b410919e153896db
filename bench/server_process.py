"""The real server as a child process: a free port, a log file, readiness, and a sure end."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_STOP_S = 15.0  # for a graceful exit, before it is killed
_POLL_S = 0.2
_TELL_S = 2.0
# A line of the server's own log, and what it says; libraries write others between.
_ENTRY = re.compile(r"^\d\d:\d\d:\d\d [A-Z]+ +\S+: (.{1,80})", re.MULTILINE)


class ServerFailed(RuntimeError):
    """The child ended, or was not ready in time; the message says where its log is."""


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def exit_on_sigterm() -> None:
    """Turn SIGTERM into SystemExit, so that children are ended on the way out."""
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))


def get(port: int, path: str, timeout_s: float = 5.0) -> tuple[int, str]:
    """Status and body of a GET on loopback.

    Raises:
        OSError: nobody answers.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", "replace")
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP answer: {error!r}") from None
    finally:
        connection.close()


def metronome(*arguments: str) -> list[str]:
    """The command line of `metronome …` in this environment."""
    return [str(Path(sys.executable).with_name("metronome")), *arguments]


class Waiting:
    """Tells every two seconds that the server is not ready yet, and what it does."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told_s = 0.0

    def __call__(self, waited_s: float, note: str) -> None:
        if waited_s - self._told_s >= _TELL_S:
            self._told_s = waited_s
            self._tell(f"  server: {note}, {waited_s:.0f} s")


class ServerProcess:
    """A server that runs while the `with` block does. Its output goes to `log`."""

    def __init__(
        self, command: Sequence[str], port: int, log: Path, *, core: int | None = None
    ) -> None:
        self.command = list(command)
        self.port = port
        self.log = log
        self.core = core  # the one core it may use; None: any
        self._child: subprocess.Popen[bytes] | None = None  # None until entered

    def __enter__(self) -> Self:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as sink:
            # A session of its own: Ctrl-C reaches us alone, and we end it in order.
            self._child = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if self.core is not None:
            os.sched_setaffinity(self._child.pid, {self.core})  # before it has made any thread
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._child is not None, "not started"
        return self._child.pid

    def wait_ready(
        self,
        path: str = "/readyz",
        timeout_s: float = 300.0,
        progress: Callable[[float, str], None] = lambda waited_s, note: None,
    ) -> None:
        """Return once `path` answers 200; meanwhile tell `progress` the seconds and the state.

        Raises:
            ServerFailed: the child ended or the time is over.
        """
        started = time.monotonic()
        while (waited_s := time.monotonic() - started) < timeout_s:
            assert self._child is not None, "not started"
            if (code := self._child.poll()) is not None:
                raise ServerFailed(f"the server ended with status {code}{self._last_words()}")
            note = self._latest()
            try:
                status, body = get(self.port, path, timeout_s=2.0)
                if status == 200:
                    return
                note = _note(body)
            except OSError:
                pass  # not listening yet
            progress(waited_s, note)
            time.sleep(_POLL_S)
        raise ServerFailed(f"the server was not ready after {timeout_s:.0f} s{self._last_words()}")

    def _latest(self) -> str:
        """The newest entry of the server's log: what it does before it listens."""
        entries = _ENTRY.findall(self.log.read_text("utf-8", "replace"))
        return entries[-1] if entries else "starting"

    def spread(self, cores: Iterable[int]) -> None:
        """Let every thread of the child use `cores`."""
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)

    def _last_words(self) -> str:
        lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        return "".join(f"\n    {line}" for line in lines[-5:]) + f"\n  full log: {self.log}"

    def stop(self) -> int:
        """End the child, gracefully if it will; its exit status. Idempotent."""
        assert self._child is not None, "not started"
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
        return self._child.wait()


def _note(body: str) -> str:
    """What a probe's body says about the state: its `note` or `status`, else its first line."""
    try:
        found = json.loads(body)
    except ValueError:
        return body.strip().splitlines()[0][:80] if body.strip() else "starting"
    if isinstance(found, dict):
        return str(found.get("note") or found.get("status") or "starting")
    return "starting"
