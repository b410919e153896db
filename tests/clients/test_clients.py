"""Every stock client holds a whole conversation with a real server, judged by what its user would notice.

The programs are in `programs/` and `node/`; `programs/common.py` says what the conversation consists of, `judge.py`
what must come of it.
"""

import json

import pytest
from clients.document import DOCUMENT, written
from clients.judge import FEATURES
from clients.stock import CLIENTS, HERE, ROOT, Run

pytestmark = [pytest.mark.slow, pytest.mark.socket]


@pytest.fixture(params=sorted(CLIENTS))
def client(request: pytest.FixtureRequest) -> str:
    missing = CLIENTS[request.param].missing()
    if missing is not None:
        pytest.skip(missing)
    name: str = request.param
    return name


def test_it_comes_to_its_end(client: str, runs: dict[str, Run]) -> None:
    """Nothing raised, nothing hung, and what ran is the version that is pinned."""
    run = runs[client]
    assert run.status == 0, run.log
    assert run.report["client"] == client
    assert run.report["version"] == _pinned(client)


@pytest.mark.parametrize("feature", FEATURES)
def test_what_its_user_notices(client: str, runs: dict[str, Run], feature: str) -> None:
    """See `judge.py` for each."""
    if feature in CLIENTS[client].lacks:
        pytest.skip("not in the Live protocol")
    FEATURES[feature](runs[client].report)


def test_the_servers_noticed_nothing(
    client: str, runs: dict[str, Run], server_log: list[str]
) -> None:
    """No error of ours while all of them talked."""
    assert client in runs
    assert [line for line in server_log if "ERROR" in line or "Traceback" in line] == []


def test_the_document_says_what_ran(runs: dict[str, Run], pytestconfig: pytest.Config) -> None:
    """docs/compatibility.md is made from a run like this one: `make clients` writes it anew."""
    if set(runs) != set(CLIENTS):
        pytest.skip("not every client is installed, or was asked for")
    document = written({name: run.report for name, run in runs.items()})
    if pytestconfig.getoption("write_document", False):
        DOCUMENT.write_text(document)
    assert DOCUMENT.read_text() == document


def _pinned(client: str) -> str:
    """The version that the lock files name."""
    package = client.partition(" ")[0]  # "livekit-plugins-openai (own VAD)"
    if CLIENTS[client].is_python:
        package = "openai" if package == "openai-python" else package
        lock = (ROOT / "requirements/clients.lock").read_text()
        return next(
            line.partition("==")[2] for line in lock.splitlines() if line.startswith(f"{package}==")
        )
    package = "openai" if package == "openai-node" else package
    lock_file = json.loads((HERE / "node/package-lock.json").read_text())
    version: str = lock_file["packages"][f"node_modules/{package}"]["version"]
    return version
