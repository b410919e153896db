"""Every shape of event that the server emits in its own tests passes the parsers of three clients."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clients.stock import CLIENTS, HERE, NODE, PYTHON, ROOT
from support.validate_events import validated

pytestmark = pytest.mark.slow

EVERY_EVENT = {
    "error",
    "session.created",
    "session.updated",
    *(
        f"input_audio_buffer.{name}"
        for name in (
            "cleared",
            "committed",
            "speech_started",
            "speech_stopped",
            "timeout_triggered",
        )
    ),
    *(
        f"conversation.item.{name}"
        for name in ("added", "done", "deleted", "retrieved", "truncated")
    ),
    *(
        f"conversation.item.input_audio_transcription.{name}"
        for name in ("delta", "completed", "failed")
    ),
    "response.created",
    "response.done",
    *(
        f"response.{part}.{name}"
        for part in ("output_item", "content_part")
        for name in ("added", "done")
    ),
    *(
        f"response.{stream}.{name}"
        for stream in (
            "output_audio",
            "output_audio_transcript",
            "output_text",
            "function_call_arguments",
        )
        for name in ("delta", "done")
    ),
}
# Events that a client does not know, and so passes over: they are newer than it.
UNKNOWN_TO_ZOD = {"input_audio_buffer.timeout_triggered"}
UNKNOWN_TO_PIPECAT = {"input_audio_buffer.timeout_triggered"}


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One example of every shape, from a run of the tests in which the protocol machine is at work."""
    file = tmp_path_factory.mktemp("events") / "events.jsonl"
    tests = (
        "tests/protocol",
        "tests/server/test_connection.py",
        "tests/server/test_client_secrets.py",
    )
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "support.event_dump"),
            *(f"--dump-events={file}", "-p", "no:cacheprovider", *tests),
        ],
        cwd=ROOT,
        env=None,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-2000:]
    return file


def refused(command: list[str]) -> list[Any]:
    """What a parser had to complain of."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


def skip_without(client: str) -> None:
    missing = CLIENTS[client].missing()
    if missing is not None:
        pytest.skip(missing)


def expected_of_pipecat(complaint: dict[str, str]) -> bool:
    """It knows no transcription sessions and no choice of one function, and never asks for either."""
    unknown = (
        "Input should be 'realtime' [type=literal_error, input_value='transcription'",
        "session.tool_choice\n  Input should be 'auto', 'none' or 'required'",
    )
    about = complaint["complaint"]
    return complaint["type"] in UNKNOWN_TO_PIPECAT or any(text in about for text in unknown)


def expected_of_zod(complaint: dict[str, Any]) -> bool:
    """It shows images but does not know them in what comes back: such an item is passed over, as the real service's is.

    No other type of content can be meant: `validated` knows them all.
    """
    problems = complaint["complaint"]
    of_content = isinstance(problems, list) and all(
        problem["path"][:2] == ["item", "content"] and problem["path"][3:] == ["type"]
        for problem in problems
    )
    return complaint["type"] in UNKNOWN_TO_ZOD or of_content


def test_the_openai_package(events: Path) -> None:
    """The strict union, and the rules that the other clients' code adds to it."""
    types = {validated(text)["type"] for text in events.read_text().splitlines()}
    assert types == EVERY_EVENT  # else the run was not what it should be


def test_the_zod_schemas_of_agents_realtime(events: Path) -> None:
    """What these refuse the client drops in silence."""
    skip_without("@openai/agents-realtime (Node)")
    complaints = refused([str(NODE), str(HERE / "node/parse_with_zod.mjs"), str(events)])
    assert [c for c in complaints if not expected_of_zod(c)] == []


def test_the_parser_of_pipecat(events: Path) -> None:
    """What this refuses ends the client's session."""
    skip_without("pipecat-ai")
    complaints = refused([str(PYTHON), str(HERE / "programs/parse_with_pipecat.py"), str(events)])
    assert [c for c in complaints if not expected_of_pipecat(c)] == []
