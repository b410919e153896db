"""Headless Chromium with a fake microphone, driven by DevTools messages over a pipe: no driver, no port.

`--remote-debugging-pipe`: JSON messages, each ended by a zero byte, in on file descriptor 3 and out on 4.
"""

import base64
import contextlib
import itertools
import json
import os
import select
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless=new",
    "--no-sandbox",  # containers seldom allow the sandbox; only pages of ours are opened
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--use-fake-device-for-media-stream",
    "--remote-debugging-pipe",
]
ANSWER_S = 60.0  # the first answer includes a cold start on a busy machine; usually under 2 s


def find_chromium() -> str | None:
    """Path of a Chromium or Chrome on this machine, None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


class PageError(Exception):
    """Script in the page threw, or an awaited condition did not come true in time."""


class Page:
    """The one tab. Every call waits for Chromium's answer, or raises TimeoutError after `ANSWER_S`."""

    def __init__(self, write_fd: int, read_fd: int) -> None:
        self._write_fd = write_fd
        self._read_fd = read_fd
        self._received = b""
        self._numbers = itertools.count(1)
        self._session: dict[str, str] = {}
        self.errors: list[str] = []  # uncaught exceptions, console errors, what the CSP refused
        self.sent: list[dict[str, Any]] = []  # events on the page's WebSockets, but for audio
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one DevTools method. Raises PageError where Chromium refuses it."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params, **self._session}
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != number:
            self._note(answer)
        if "error" in answer:
            raise PageError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            if not select.select([self._read_fd], [], [], ANSWER_S)[0]:
                raise TimeoutError("Chromium does not answer")
            part = os.read(self._read_fd, 1 << 20)
            assert part, "Chromium has gone"
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed

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

    def wait(self, condition: str, timeout_s: float = 30.0) -> None:
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

    def press(self, key: str) -> None:
        """Tab, Enter or a space, down and up, with what the browser itself makes of it."""
        code, number, text = {"Tab": ("Tab", 9, ""), "Enter": ("Enter", 13, "\r")}.get(
            key, ("Space", 32, " ")
        )
        pressed = {"key": key, "code": code, "windowsVirtualKeyCode": number}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **pressed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def type(self, selector: str, text: str) -> None:
        self.evaluate(f"document.querySelector({selector!r}).focus()")
        self.call("Input.insertText", text=text)

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip

    def screenshot(
        self, path: Path, width: int = 1280, height: int = 800, dark: bool = False
    ) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.size(width, height)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(
                str(details.get("exception", {}).get("description", details["text"]))
            )
        elif message.get("method") == "Network.webSocketFrameSent":
            payload = params["response"]["payloadData"]
            if not payload.startswith('{"type":"input_audio_buffer.append"'):
                self.sent.append(json.loads(payload))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")


@contextlib.contextmanager
def chromium(profile: Path, microphone: Path | None = None, allow: bool = True) -> Iterator[Page]:
    """A fresh browser with one empty page. Its microphone plays a WAV file once; `allow` False refuses it."""
    binary = find_chromium()
    assert binary is not None, "guard with find_chromium()"
    flags = [*FLAGS, f"--user-data-dir={profile}"]
    flags += ["--use-fake-ui-for-media-stream"] if allow else ["--deny-permission-prompts"]
    if microphone is not None:
        flags.append(f"--use-file-for-fake-audio-capture={microphone}%noloop")
    child_in, ours_out = os.pipe()
    ours_in, child_out = os.pipe()
    command = f"exec {shlex.join([binary, *flags])} 3<&{child_in} 4>&{child_out}"
    process = subprocess.Popen(
        ["bash", "-c", command], pass_fds=(child_in, child_out), stderr=subprocess.DEVNULL
    )
    os.close(child_in)
    os.close(child_out)
    try:
        yield Page(ours_out, ours_in)
    finally:
        process.terminate()
        process.wait(10)
        os.close(ours_out)
        os.close(ours_in)
