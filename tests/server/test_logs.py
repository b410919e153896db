"""Log lines: one form for people, one for machines, and the session's id on both."""

import json
import logging
from collections.abc import Iterator

import pytest

from server import logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, uvicorn_log = logging.getLogger(), logging.getLogger("uvicorn.error")
    before = root.handlers[:], root.level, uvicorn_log.level, uvicorn_log.filters[:]
    yield
    root.handlers[:], uvicorn_log.filters[:] = before[0], before[3]
    root.setLevel(before[1])
    uvicorn_log.setLevel(before[2])


def test_text_lines_carry_the_session(capsys: pytest.CaptureFixture[str]) -> None:
    """A person can grep one call."""
    logs.set_up("info", "text")
    logs.of_session(logging.getLogger("a.b"), "sess_1").info("began %s", "well")
    logging.getLogger("a.b").info("plain")
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("INFO    a.b [sess_1]: began well")
    assert second.endswith("INFO    a.b: plain")


def test_json_lines_are_objects_with_session_and_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A machine can, too."""
    logs.set_up("info", "json")
    try:
        raise OSError("gone")
    except OSError:
        logs.of_session(logging.getLogger("a.b"), "sess_2").exception("failed")
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["session"], line["message"]) == ("error", "sess_2", "failed")
    assert "OSError: gone" in line["exception"]


def test_the_level_holds(capsys: pytest.CaptureFixture[str]) -> None:
    """Below the level nothing is written."""
    logs.set_up("warning")
    logging.getLogger("a.b").info("quiet")
    assert capsys.readouterr().err == ""


def test_the_spurious_line_of_uvicorn_is_dropped_and_others_pass(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A refused handshake was answered in full; saying otherwise at error level is noise."""
    logs.set_up()
    logs.set_up()  # a second call replaces the first: nothing is written twice
    uvicorn_log = logging.getLogger("uvicorn.error")
    uvicorn_log.error("ASGI callable returned without completing handshake.")
    uvicorn_log.error("something real")
    assert [line.rsplit(": ", 1)[1] for line in capsys.readouterr().err.splitlines()] == [
        "something real"
    ]
