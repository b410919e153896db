"""A browser, the page's files, and a microphone for it."""

import contextlib
import functools
import http.server
import threading
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from browser.chromium import Page, chromium, find_chromium

from bench.server_process import ServerProcess, free_port, metronome

REPO = Path(__file__).parents[2]
SPEECH_HZ = 48_000  # what Chromium's fake device runs at: no resampling before the page's own


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs Chromium and takes its time."""
    here = Path(__file__).parent
    missing = find_chromium() is None
    for item in items:
        if here not in item.path.parents:
            continue
        item.add_marker(pytest.mark.browser)
        item.add_marker(pytest.mark.socket)
        item.add_marker(pytest.mark.slow)
        if missing:
            item.add_marker(pytest.mark.skip(reason="no Chromium: apt-get install chromium"))


@pytest.fixture(scope="session")
def static_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page's files alone, open in a browser: no Realtime server behind them."""
    handler = functools.partial(_QuietFiles, directory=str(REPO / "server" / "web"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with chromium(tmp_path_factory.mktemp("profile")) as page:
                page.open(f"http://127.0.0.1:{server.server_port}/")
                yield page
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="session")
def sim_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The real server with the simulated engine; its address."""
    with serving("sim", tmp_path_factory.mktemp("server")) as address:
        yield address


@contextlib.contextmanager
def serving(
    model: str, folder: Path, change: tuple[str, str] = ("", ""), key: str = ""
) -> Iterator[str]:
    """A server process, ready; its address. It runs the shipped configuration of `model` with one text changed."""
    port = free_port()
    shipped = (REPO / "configs" / f"{model}.toml").read_text("utf-8")
    file = folder / "server.toml"
    assert change[0] in shipped
    file.write_text(shipped.replace(*change), "utf-8")
    command = metronome("serve", "--config", str(file), "--port", str(port))
    if key:
        command = ["env", f"METRONOME_API_KEYS={key}", *command]
    with ServerProcess(command, port, folder / "server.log") as server:
        server.wait_ready()
        yield f"http://127.0.0.1:{port}/"


class _QuietFiles(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def write_microphone(path: Path, *parts: tuple[str, float]) -> Path:
    """A WAV for the fake microphone: ("speech" | "quiet", seconds) in order, then a minute of quiet.

    Its speech is a voiced buzz with syllables, which an energy detector takes for speech.
    """
    samples = [_part(kind, seconds) for kind, seconds in (*parts, ("quiet", 60.0))]
    return write_wav(path, np.concatenate(samples), SPEECH_HZ)


def padded(recording: Path, path: Path) -> Path:
    """A recording with a second of quiet before it and a minute after, as a microphone WAV."""
    samples, hz = soundfile.read(recording, dtype="float64")
    return write_wav(path, np.concatenate([np.zeros(hz), samples, np.zeros(60 * hz)]), hz)


def write_wav(path: Path, samples: "np.ndarray[tuple[int], np.dtype[np.float64]]", hz: int) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(hz)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return path


def _part(kind: str, seconds: float) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    t = np.arange(round(seconds * SPEECH_HZ)) / SPEECH_HZ
    if kind == "quiet":
        return np.zeros(len(t))
    buzz = np.sum([np.sin(2 * np.pi * 140 * k * t) / k for k in range(1, 20)], axis=0)
    return np.asarray(0.25 * buzz * (0.65 + 0.35 * np.sin(2 * np.pi * 4 * t)))
