"""Every stock client holds a whole conversation with a real server, judged by what its user would notice.

The programs are in `programs/` and `node/`; `programs/common.py` says what the conversation consists of.
"""

import json
from typing import Any

import pytest
from clients.stock import CLIENTS, HERE, Run

pytestmark = [pytest.mark.slow, pytest.mark.socket]

HEARD = (
    "speech lasting one point six seconds"  # what the simulated transcriber makes of the recording
)
ASKED = ["Tell me something about rivers.", HEARD, "Please use get_weather for Paris."]


@pytest.fixture(params=sorted(CLIENTS))
def client(request: pytest.FixtureRequest) -> str:
    missing = CLIENTS[request.param].missing()
    if missing is not None:
        pytest.skip(missing)
    name: str = request.param
    return name


@pytest.fixture
def report(client: str, runs: dict[str, Run]) -> dict[str, Any]:
    """What the client reported; however far it came."""
    return dict(runs[client].report)


def heard_well(turn: dict[str, Any]) -> None:
    """The answer was audible, and what was streamed is what the client keeps of it."""
    assert turn["audio_s"] > 1
    assert turn["loudness"] > 0.02
    assert len(turn["words"].split()) > 5
    assert turn["words"] == turn["item_words"]


def test_it_comes_to_its_end(client: str, runs: dict[str, Run]) -> None:
    """Nothing raised, nothing hung, and what ran is the version that is pinned."""
    run = runs[client]
    assert run.status == 0, run.log
    assert run.report["client"] == client
    assert run.report["version"] == _pinned(client)


def test_a_typed_turn(report: dict[str, Any]) -> None:
    """A typed question is answered aloud."""
    heard_well(report["typed"])


def test_a_spoken_turn(report: dict[str, Any]) -> None:
    """The server finds the end of a spoken question, understands it and answers."""
    heard_well(report["spoken"])
    assert report["spoken"]["heard"] == HEARD


def test_a_tool_turn(report: dict[str, Any]) -> None:
    """The server calls the client's function with arguments of its schema, and answers its result."""
    (call,) = report["tool"]["calls"]
    assert call["name"] == "get_weather"
    arguments = json.loads(call["arguments"])
    assert isinstance(arguments["city"], str)
    heard_well(report["tool"])


def test_a_barge_in(report: dict[str, Any]) -> None:
    """An answer in progress is interrupted by the caller's voice, and what he said is answered."""
    assert report["barge_in"]["interrupted"]
    heard_well(report["barge_in"])


def test_the_history(report: dict[str, Any]) -> None:
    """Both sides, in the order in which they spoke."""
    history = report["history"]
    assert [role for role, _ in history] == ["user", "assistant"] * (len(history) // 2)
    assert [words for role, words in history if role == "user"][:3] == ASKED
    answers = [words for role, words in history if role == "assistant"]
    turns = [report[name]["item_words"] for name in ("typed", "spoken", "tool", "barge_in")]
    told = [*answers[:3], answers[-1]]
    # What was still to be played when the caller spoke again was not heard, and is not remembered.
    assert all(turn.startswith(words) for turn, words in zip(turns, told, strict=True))
    assert all(words for _, words in history)


def test_a_second_session(report: dict[str, Any]) -> None:
    """The first session leaves nothing behind that would harm the next."""
    heard_well(report["second"])


def test_the_server_noticed_nothing(
    runs: dict[str, Run], server_log: list[str], client: str
) -> None:
    """No error of ours and no warning while all of them talked."""
    assert runs[client].status is not None
    assert [line for line in server_log if "ERROR" in line or "Traceback" in line] == []


def _pinned(client: str) -> str:
    """The version that the lock files name."""
    package = client.partition(" ")[0]
    if CLIENTS[client].is_python:
        package = "openai" if package == "openai-python" else package
        lock = (HERE.parents[1] / "requirements/clients.lock").read_text()
        return next(
            line.partition("==")[2] for line in lock.splitlines() if line.startswith(f"{package}==")
        )
    package = "openai" if package == "openai-node" else package
    lock_file = json.loads((HERE / "node/package-lock.json").read_text())
    version: str = lock_file["packages"][f"node_modules/{package}"]["version"]
    return version
