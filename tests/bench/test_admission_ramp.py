"""The live ramp: its deployment starts, its callers keep what a refusal says, its ratios are right."""

import asyncio
import json
from pathlib import Path

import pytest

from bench.ramp import Outcome, _figures, _write
from bench.ramp_callers import Callers
from bench.ramp_fleets import hopeless, miss_ratio
from bench.ramp_server import FILL_S, TICK_S, WINDOW, configuration
from bench.ramp_trace import Trace
from bench.report import Report
from bench.scrape import Scrape
from server.config import load_config


def test_its_deployments_are_valid_and_age_in_time(tmp_path: Path) -> None:
    """Both doors; windows are full within twenty seconds."""
    for kind in ("static", "aimd"):
        config = load_config(configuration(tmp_path, tmp_path / "model", kind))
        assert config.admission.kind == kind
        tokens = config.model.prefill_per_tick + config.model.decode_per_tick
        assert TICK_S * WINDOW / tokens < FILL_S < 20


def test_the_ratio_is_of_what_was_owed_in_between() -> None:
    """Late, empty and dropped are missed; nothing owed is nothing missed."""
    before = Scrape({"on_time": 100, "late": 1, "empty": 0, "dropped": 0}, 0, 0, 0)
    after = Scrape({"on_time": 196, "late": 3, "empty": 1, "dropped": 1}, 0, 0, 0)
    assert miss_ratio(before, after) == pytest.approx(0.04)
    assert miss_ratio(after, after) == 0


def test_a_fleet_is_given_up_once_it_cannot_hold() -> None:
    """One in a thousand of the whole look may be missed, however early that happens."""
    before = Scrape({"on_time": 100, "late": 1, "empty": 0, "dropped": 0}, 0, 0, 0)
    after = Scrape({"on_time": 190, "late": 8, "empty": 2, "dropped": 1}, 0, 0, 0)
    assert not hopeless(before, after, owed=10_000)
    assert hopeless(before, after, owed=9_000)


async def _door(answers: list[bytes], open_calls: list[asyncio.Task[None]]) -> asyncio.Server:
    """A server that answers handshakes from a list, then lets everybody in."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_calls.append(task)
        await reader.readuntil(b"\r\n\r\n")
        refused = answers.pop(0) if answers else b""
        writer.write(refused or b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        await writer.drain()
        if not refused:
            await reader.read()  # until the caller hangs up
        writer.close()
        await writer.wait_closed()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


REFUSED = b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nX-Metronome-Reason: capacity\r\n\r\n{}"


@pytest.mark.socket
def test_a_caller_that_is_refused_comes_back_until_it_is_in() -> None:
    """What it was told is kept, with the time it took; a refusal without a reason is unclean."""

    async def main() -> Callers:
        calls: list[asyncio.Task[None]] = []
        no_reason = REFUSED.replace(b"X-Metronome", b"X-Other")
        server = await _door([REFUSED, REFUSED, no_reason], calls)
        async with server:
            crowd = Callers(server.sockets[0].getsockname()[1], "/v1/realtime", 0.2)
            crowd.grow(1, 0.0)
            async with asyncio.timeout(5):
                while not crowd.seen.inside:  # noqa: ASYNC110 — callers tell nobody that they are in
                    await asyncio.sleep(0)
            await crowd.leave()
            await asyncio.gather(*calls)
            return crowd

    crowd = asyncio.run(main())
    assert crowd.seen.reasons == {"capacity": 2, "": 1}
    assert len(crowd.seen.refusals_ms) == 3
    assert crowd.seen.unclean == ["HTTP/1.1 503 Busy"]


def test_the_verdict_names_each_target() -> None:
    """Distance from the capacity, misses beyond those at half load, slow refusals, unclean ends."""
    good = Outcome(0.001, 0.0015, 92.0, [3.0] * 50, {"capacity": 50}, [], Trace())
    assert all(figure.met is not False for figure in _figures(126, 100, good))
    bad = Outcome(0.0, 0.01, 60.0, [300.0] * 50, {}, ["lost"], Trace())
    assert [figure.name for figure in _figures(126, 100, bad) if figure.met is False] == [
        "distance from the capacity",
        "more missed than at half load",
        "refusal, slowest of a hundred",
        "unclean ends",
    ]


def test_what_the_door_did_is_kept_before_the_last_search(tmp_path: Path) -> None:
    """The search takes half an hour where the machine became faster, and may fail."""
    outcome = Outcome(0.0, 0.002, 41.0, [3.0, 4.0], {"capacity": 2}, [], Trace())
    path = tmp_path / "ramp.json"
    _write(path, Report("ramp", []), outcome)
    door = json.loads(path.read_text(encoding="utf-8"))["door"]
    assert (door["settled"], door["full_miss"], door["refused"]) == (41.0, 0.002, 2)
