"""The live ramp: its deployment starts, its callers keep what a refusal says, its ratios are right."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.ramp import Outcome, _figures, _write
from bench.ramp_callers import Callers
from bench.ramp_fleets import hopeless, miss_ratio
from bench.ramp_server import FILL_S, TICK_S, WINDOW, configuration
from bench.ramp_trace import Trace
from bench.ramp_turns import SHARES, Tally, Turns
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


async def _door(
    answers: list[bytes], open_calls: list[asyncio.Task[None]], heard: list[int]
) -> asyncio.Server:
    """A server that answers handshakes from a list, then lets everybody in. `heard`: bytes, per call."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_calls.append(task)
        await reader.readuntil(b"\r\n\r\n")
        refused = answers.pop(0) if answers else b""
        writer.write(refused or b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        await writer.drain()
        if not refused:
            number = len(heard)
            heard.append(0)
            while data := await reader.read(65_536):  # until the caller hangs up
                heard[number] += len(data)
        writer.close()
        await writer.wait_closed()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


async def _until(holds: Callable[[], bool]) -> None:
    """Callers tell nobody what they do."""
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)


REFUSED = b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nX-Metronome-Reason: capacity\r\n\r\n{}"


@pytest.mark.socket
def test_a_caller_that_is_refused_comes_back_until_it_is_in() -> None:
    """What it was told is kept, with the time it took; a refusal without a reason is unclean."""

    async def main() -> Callers:
        calls: list[asyncio.Task[None]] = []
        no_reason = REFUSED.replace(b"X-Metronome", b"X-Other")
        server = await _door([REFUSED, REFUSED, no_reason], calls, [])
        async with server:
            crowd = Callers(server.sockets[0].getsockname()[1], "/v1/realtime", 0.2)
            crowd.grow(1, 0.0)
            await _until(lambda: crowd.seen.inside > 0)
            await crowd.leave()
            await asyncio.gather(*calls)
            return crowd

    crowd = asyncio.run(main())
    assert crowd.seen.reasons == {"capacity": 2, "": 1}
    assert len(crowd.seen.refusals_ms) == 3
    assert crowd.seen.unclean == ["HTTP/1.1 503 Busy"]


@pytest.mark.socket
def test_who_hushes_neither_sends_nor_asks() -> None:
    """Then only those who are told to speak send; who was not let in yet asks again."""

    async def main() -> tuple[int, list[int], list[int], list[int]]:
        calls: list[asyncio.Task[None]] = []
        heard: list[int] = []
        server = await _door([], calls, heard)
        async with server:
            crowd = Callers(server.sockets[0].getsockname()[1], "/v1/realtime", 0.01)
            crowd.hush()
            crowd.grow(3, 0.0)
            await asyncio.sleep(0.1)
            asked = len(calls)
            crowd.speak(1, 2)
            await _until(lambda: len(heard) == 3 and max(heard) > 2_000)
            one = list(heard)
            crowd.hush()
            await asyncio.sleep(0.05)
            silent = list(heard)
            await asyncio.sleep(0.1)
            still = list(heard)
            crowd.speak()
            await _until(lambda: min(heard) > 0)
            await crowd.leave()
            await asyncio.gather(*calls)
        return asked, one, silent, still

    asked, one, silent, still = asyncio.run(main())
    assert asked == 0
    assert sorted(one)[:2] == [0, 0]
    assert silent == still


def _tally(share: float, missed: int, turns: int = 10) -> Tally:
    """A fleet of that share of 100, which was owed 5,000 ticks a turn."""
    return Tally(share, turns, round(share * 100) * turns, 100 * turns, 5_000 * turns, missed)


def test_the_capacity_is_the_largest_fleet_that_missed_one_in_a_thousand_at_most() -> None:
    """However small those are that did not hold; 0 where none did."""
    fixed = [_tally(0.5, 60), _tally(0.87, 0), _tally(1.0, 50), _tally(1.08, 51)]
    turns = Turns(_tally(1.0, 0), fixed)
    assert turns.settled == 100
    assert turns.capacity == pytest.approx(100)
    assert Turns(_tally(1.0, 0), [_tally(0.5, 60), _tally(1.0, 70)]).capacity == 0
    assert Turns(Tally(1.0, 10), [Tally(1.0, 10)]).capacity == 0  # nobody was in


def test_a_fleet_leaves_the_round_once_it_cannot_hold() -> None:
    """Of twenty turns 100 ticks may be missed. Half the fleet stays: the others are compared with what it misses."""
    turns = Turns(fixed=[_tally(0.5, 500), _tally(1.0, 100), _tally(1.18, 101), Tally(1.3)])
    assert [tally.share for tally in turns.still_in(20)] == [0.5, 1.0, 1.3]


def test_a_turn_counts_what_was_owed_in_it() -> None:
    """Late, empty and dropped are missed."""
    before = Scrape({"on_time": 100, "late": 1, "empty": 0, "dropped": 0}, 0, 0, 0)
    after = Scrape({"on_time": 196, "late": 3, "empty": 1, "dropped": 1}, 0, 0, 0)
    tally = Tally(1.08)
    tally.add(54, 50, before, after)
    assert (tally.turns, tally.sessions, tally.inside, tally.owed) == (1, 54, 50, 100)
    assert tally.miss == pytest.approx(0.04)


def _outcome(
    full_miss: float, refusals_ms: list[float], unclean: list[str], held: float
) -> Outcome:
    """Of a door with 100 in; the largest fleet that held was that share of it."""
    fixed = [_tally(0.5, 10), *(_tally(share, 1_000 * (share > held)) for share in SHARES[1:])]
    turns = Turns(_tally(1.0, 0), fixed)
    return Outcome(turns, full_miss, refusals_ms, {"capacity": 50}, unclean, Trace())


def test_the_verdict_names_each_target() -> None:
    """Distance from the capacity, misses beyond those of half the fleet, slow refusals, unclean ends."""
    for held in SHARES[1:-1]:
        good = _outcome(0.0012, [3.0] * 50, [], held)
        assert all(figure.met is not False for figure in _figures(126, good))
    for held in (SHARES[0], SHARES[-1]):
        bad = _outcome(0.0013, [300.0] * 50, ["lost"], held)
        assert [figure.name for figure in _figures(126, bad) if figure.met is False] == [
            "distance from it",
            "more than by half",
            "refusal, slowest of a hundred",
            "unclean ends",
        ]


def test_every_turn_is_kept(tmp_path: Path) -> None:
    """With what each fleet was owed and missed, and what the door said."""
    path = tmp_path / "ramp.json"
    _write(path, Report("ramp", []), _outcome(0.0, [3.0], [], 1.08))
    written = json.loads(path.read_text(encoding="utf-8"))
    assert [fleet["share"] for fleet in written["turns"]["fixed"]] == list(SHARES)
    assert written["turns"]["fixed"][-1]["missed"] == 1_000
    assert written["reasons"] == {"capacity": 50}


def test_there_is_no_latency_where_no_tick_was_owed() -> None:
    """Between turns: neither zero nor infinite, which is that of ticks that never came."""
    trace = Trace()
    for ticks, p99 in ((0, 0.0), (50, 0.4), (50, None)):
        recent = {"ticks": ticks, "p99_share": p99}
        decisions = {"rejected": 0}
        found = {"recent": recent, "active": 5, "limit": 6, "decisions": decisions}
        trace.add(1.0, 10, {**found, "binding": "model"})
    assert trace.as_json()["p99_share"] == [None, 0.4, 2.0]
