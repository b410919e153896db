"""Headless Chromium with a fake microphone, driven over its DevTools protocol (one page, flat JSON messages)."""

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

FLAGS = [
    "--headless=new",
    "--no-sandbox",  # containers seldom allow the sandbox; only pages of ours are opened
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--use-fake-device-for-media-stream",
    "--remote-debugging-port=0",
]
START_S = 30.0  # a cold start on a busy machine; usually under 2 s
ANSWER_S = 30.0


def find_chromium() -> str | None:
    """Path of a Chromium or Chrome on this machine, None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


class PageError(Exception):
    """Script in the page threw, or an awaited condition did not come true in time."""


class Page:
    """One tab. Every call waits for Chromium's answer, or raises TimeoutError after `ANSWER_S`."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.errors: list[str] = []  # uncaught exceptions, console errors and CSP violations of the page
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one protocol method. Raises PageError where Chromium refuses it."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while (answer := json.loads(self._socket.recv(timeout=ANSWER_S))).get("id") != number:
            self._note(answer)
        if "error" in answer:
            raise PageError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited. Raises PageError with what it threw."""
        result = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise PageError(str(result["exceptionDetails"]["exception"].get("description")))
        return result["result"].get("value")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def wait(self, condition: str, timeout_s: float = 15.0) -> None:
        """Returns once a JavaScript condition holds, looked at before each frame or every 50 ms.

        Raises PageError after `timeout_s` with the page's text.
        """
        held = self.evaluate(
            f"new Promise((resolve) => {{ const until = performance.now() + {timeout_s * 1000};"
            f" const look = () => {{ if ({condition}) resolve(true);"
            " else if (performance.now() > until) resolve(false); else setTimeout(look, 50); };"
            " look(); })"
        )
        if not held:
            text = self.evaluate("document.body.dataset.state + ': ' + document.body.innerText")
            raise PageError(f"not within {timeout_s} s: {condition}\n{text}\n{self.errors}")

    def click(self, selector: str) -> None:
        """A real click in the middle of an element, which counts as a gesture of the user."""
        x, y = self.evaluate(
            f"(() => {{ const element = document.querySelector({selector!r});"
            " element.scrollIntoView({block: 'center'}); const r = element.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        self.mouse("mousePressed", x, y)
        self.mouse("mouseReleased", x, y)

    def mouse(self, kind: str, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, kind: str, key: str, code: str) -> None:
        self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code)

    def type(self, selector: str, text: str) -> None:
        self.evaluate(f"document.querySelector({selector!r}).focus()")
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(str(details.get("exception", {}).get("description", details["text"])))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")


@contextlib.contextmanager
def chromium(profile: Path, microphone: Path | None = None, allow: bool = True) -> Iterator[Page]:
    """A fresh browser with one empty page; its microphone plays a WAV file once, or is refused where `allow` is False."""
    binary = find_chromium()
    assert binary is not None, "guard with find_chromium()"
    flags = [*FLAGS, f"--user-data-dir={profile}"]
    flags += ["--use-fake-ui-for-media-stream"] if allow else ["--deny-permission-prompts"]
    if microphone is not None:
        flags.append(f"--use-file-for-fake-audio-capture={microphone}%noloop")
    process = subprocess.Popen(
        [binary, *flags, "about:blank"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    try:
        with connect(_page_address(process), max_size=None, compression=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        process.wait(10)
        assert process.stderr is not None
        process.stderr.close()


def _page_address(process: "subprocess.Popen[str]") -> str:
    ...
