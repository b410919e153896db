"""The live ramp: its deployment starts, its callers keep what a refusal says, its ratios are right."""

import asyncio
import json
from pathlib import Path

import pytest

from bench.ramp import Outcome, _figures
from bench.ramp_callers import Callers
from bench.ramp_fleets import Held, Look, hopeless, miss_ratio
from bench.ramp_server import FILL_S, TICK_S, WINDOW, configuration
from bench.ramp_speed import Speed
from bench.ramp_trace import Trace
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


def test_a_fleet_is_held_once_the_machine_was_slow_enough() -> None:
    """Not before the least time, not later than the most."""
    look = Look(25.0, 150.0, as_slow=0.0004)
    assert not look.suffices(24.0, 0.0004)
    assert not look.suffices(100.0, 0.0003)
    assert look.suffices(26.0, 0.00039)
    assert look.suffices(151.0, 0.0003)
    assert Look(25.0, 25.0).suffices(26.0, 0.0)


def test_a_fleet_that_failed_on_a_slower_machine_proves_nothing() -> None:
    """Where no speed is asked for every failure counts."""
    assert Look(25.0, 150.0, as_slow=0.0003).is_unlike(0.0004)
    assert not Look(25.0, 150.0, as_slow=0.0003).is_unlike(0.00031)
    assert not Look(25.0, 25.0).is_unlike(0.0004)


def _speed(*spells: tuple[int, float]) -> Speed:
    """Seconds and the milliseconds that 2,000 sessions in steps took each; a look every two seconds."""
    speed, now, step_s, stepped = Speed(), 0.0, 0.0, 0.0
    speed.add(now, Scrape({}, 0, 0, 0, step_s, stepped))
    for seconds, each_ms in spells:
        for _ in range(seconds // 2):
            now, step_s, stepped = now + 2.0, step_s + 2 * each_ms, stepped + 2000
            speed.add(now, Scrape({}, 0, 0, 0, step_s, stepped))
    return speed


def test_the_slowest_spell_is_ten_seconds_long() -> None:
    """A shorter one counts with what was around it, one that was over before does not."""
    assert _speed((60, 0.3), (20, 0.42), (60, 0.3)).slowest() == pytest.approx(0.00042)
    assert _speed((60, 0.3), (4, 0.55), (60, 0.3)).slowest() == pytest.approx(0.0004)
    assert _speed((20, 0.42), (60, 0.3)).slowest(since=20.0) == pytest.approx(0.0003)


def test_too_short_to_have_a_speed() -> None:
    """Nothing is said before ten seconds are over, or while nobody is in a step."""
    assert _speed((8, 0.3)).slowest() == 0
    assert _speed().slowest() == 0
    idle = Scrape({}, 0, 0, 0)
    speed = Speed()
    speed.add(0.0, idle)
    speed.add(20.0, idle)
    assert speed.slowest() == 0


def _trace(*admitted: int) -> Trace:
    trace = Trace()
    for second, active in enumerate(admitted):
        found = {
            "active": active,
            "limit": active,
            "binding": "model",
            "decisions": {"rejected": 0},
            "recent": {"p99_share": None},
        }
        trace.add(float(second), 200, found)
    return trace


def test_the_settled_fleet_met_what_came_after_it_was_there_for_good() -> None:
    """A fleet that shrank in between was not there yet."""
    assert _trace(50, 96, 80, 97, 99, 100).reached(95) == 2
    assert _trace(96, 97).reached(95) == 0


def test_a_trace_can_be_written() -> None:
    """As lists; an infinite latency at the top of the plot."""
    trace = _trace(50, 60)
    trace.speed = _speed((4, 0.3))
    written = json.loads(json.dumps(trace.as_json()))
    assert written["admitted"] == [50, 60]
    assert written["p99_share"] == [2.0, 2.0]
    assert written["cost_t_s"] == [2.0, 4.0]
    assert written["cost_ms"] == pytest.approx([0.3, 0.3])


def test_the_verdict_names_each_target() -> None:
    """Distance from the capacity, misses beyond those at half load, slow refusals, unclean ends."""
    held = Held(100, 0.0004)
    good = Outcome(0.001, 0.0015, 92.0, 0.0004, [3.0] * 50, {"capacity": 50}, [], Trace())
    assert all(figure.met is not False for figure in _figures(126, held, good))
    bad = Outcome(0.0, 0.01, 60.0, 0.0004, [300.0] * 50, {}, ["lost"], Trace())
    assert [figure.name for figure in _figures(126, held, bad) if figure.met is False] == [
        "distance from the capacity",
        "more missed than at half load",
        "refusal, slowest of a hundred",
        "unclean ends",
    ]
