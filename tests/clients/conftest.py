"""Runs the stock clients once for all tests of a session."""

import asyncio

import pytest
from clients import stock
from clients.stock import CLIENTS, Run, run_all


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-document", action="store_true", help="write docs/compatibility.md anew"
    )


@pytest.fixture(scope="session")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Run]:
    """What every client that this session asks for reported, by name."""
    asked = {
        item.callspec.params["client"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and "client" in item.callspec.params
    }
    wanted = [CLIENTS[name] for name in sorted(asked) if CLIENTS[name].missing() is None]
    return asyncio.run(run_all(wanted, tmp_path_factory.mktemp("clients")))


@pytest.fixture(scope="session")
def server_log() -> list[str]:
    """What the servers of the run wrote, line by line."""
    return stock.server_log
