"""Waiting at the door, on the wire: the handshake stays open, and everybody is answered in the end."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.doors import waiting_room
from support.fake_asgi import FakeSocket
from support.sim_engine import cascade, running

from admission.port import Lease, Request
from admission.static_cap import StaticCap
from engine.clock import LoopClock
from engine.virtual_time import run_virtual
from protocol.session_config import SessionDefaults
from server.auth import KeyRing
from server.client_secrets import ClientSecrets
from server.connection import Limits, Machine
from server.metrics import Metrics
from server.realtime import DoorPolicy, RealtimeDoor
from server.waiting_room import WaitingRoom
from server.websocket import EXTENSION

BROWSER = {
    "origin": "http://127.0.0.1:8000",
    "host": "127.0.0.1:8000",
    "sec-websocket-protocol": "realtime, openai-insecure-api-key.sk-1",
}
PROGRAM = {"authorization": "Bearer sk-1"}


class _House:
    """One place, a line before it, and the callers."""

    def __init__(self, door: RealtimeDoor, room: WaitingRoom, metrics: Metrics) -> None:
        self.door = door
        self.room = room
        self.metrics = metrics

    def knock(self, headers: dict[str, str] = PROGRAM) -> tuple[FakeSocket, "asyncio.Task[None]"]:
        socket = FakeSocket()
        socket.knock()
        scope = {
            "type": "websocket",
            "path": "/v1/realtime",
            "query_string": b"model=sim",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "extensions": {"websocket.http.response": {}, EXTENSION: socket},
        }
        return socket, asyncio.create_task(self.door(scope, socket.receive, socket.send))

    async def enter(self) -> tuple[FakeSocket, "asyncio.Task[None]"]:
        socket, task = self.knock()
        await socket.until("session.created")
        return socket, task

    def waits(self, outcome: str) -> tuple[float, float]:
        """How many waited with that outcome, and how long in all."""
        text = self.metrics.render().decode()
        found = {
            (sample.name.rsplit("_", 1)[1], sample.labels.get("outcome")): sample.value
            for family in text_string_to_metric_families(text)
            if family.name == "metronome_admission_wait_seconds"
            for sample in family.samples
        }
        return found["count", outcome], found["sum", outcome]


@asynccontextmanager
async def _house(wait_s: float = 2.0, places: int = 8) -> AsyncIterator[_House]:
    async with running(cascade()) as (engine, _, _backend):
        metrics = Metrics("sim", 0.16)
        room = waiting_room(StaticCap(1), metrics, wait_s, places)
        policy = DoorPolicy(
            ("/v1/realtime",),
            KeyRing(["sk-1"]),
            (),
            "sim",
            0.16,
            SessionDefaults(),
            ClientSecrets(b"k"),
        )
        machine = Machine(engine, LoopClock(), metrics, Limits())
        keeping = asyncio.create_task(room.run())
        yield _House(RealtimeDoor(policy, machine, room, lambda: 0.0), room, metrics)
        keeping.cancel()
        assert (len(room), room.active) == (0, 0)


def _run(check: Callable[[_House], Awaitable[None]], **more: Any) -> None:
    async def main() -> None:
        async with _house(**more) as house:
            await check(house)

    run_virtual(main())


def _headers(socket: FakeSocket) -> dict[str, str]:
    assert socket.response is not None
    return {name.decode(): value.decode() for name, value in socket.response["headers"]}


async def _leave(socket: FakeSocket, task: "asyncio.Task[None]") -> None:
    socket.leave()
    await task


def _now() -> float:
    return asyncio.get_running_loop().time()


def test_a_caller_who_waits_is_upgraded_when_a_place_frees() -> None:
    """Until then nothing is answered and no place is held."""

    async def check(house: _House) -> None:
        inside, call = await house.enter()
        socket, task = house.knock()
        await asyncio.sleep(1.0)
        assert (socket.accepted, socket.response) == (None, None)
        assert (len(house.room), house.room.active) == (1, 1)
        await _leave(inside, call)
        await socket.until("session.created")
        assert _now() == pytest.approx(1.0)
        assert house.waits("admitted") == (1, pytest.approx(1.0))
        await _leave(socket, task)

    _run(check)


def test_a_wait_that_is_over_ends_in_503_with_position_and_time() -> None:
    """In headers and in words, after exactly as long as was allowed."""

    async def check(house: _House) -> None:
        inside, call = await house.enter()
        started = _now()
        socket, task = house.knock()
        await task
        assert _now() - started == pytest.approx(2.0)
        headers = _headers(socket)
        assert socket.response is not None
        assert socket.response["status"] == 503
        assert headers["x-metronome-queue-position"] == "1"
        assert headers["x-metronome-reason"] == "capacity"
        error = json.loads(socket.body)["error"]
        assert error["code"] == "capacity_exceeded"
        told = f"Position in line: 1; a place is expected in {headers['retry-after']} s."
        assert told in error["message"]
        assert house.waits("timed_out") == (1, pytest.approx(2.0))
        await _leave(inside, call)

    _run(check)


def test_a_browser_waits_before_it_is_accepted() -> None:
    """Then it gets its session, or the same words as an error event and 1013."""

    async def check(house: _House) -> None:
        inside, call = await house.enter()
        late, late_task = house.knock(BROWSER)
        await asyncio.sleep(1.9)
        assert late.accepted is None
        lucky, lucky_task = house.knock(BROWSER)
        await late_task
        assert late.closed == (1013, "capacity")
        assert "Position in line: 1; a place" in late.events[0]["error"]["message"]
        await _leave(inside, call)
        await lucky.until("session.created")
        await _leave(lucky, lucky_task)

    _run(check)


def test_a_line_that_is_full_refuses_at_once() -> None:
    """Within the turn of the loop; the bound is configured."""

    async def check(house: _House) -> None:
        inside, call = await house.enter()
        waiting, waiting_task = house.knock()
        await asyncio.sleep(0.1)
        started = _now()
        socket, task = house.knock()
        await task
        assert _now() == started
        assert _headers(socket)["x-metronome-queue-position"] == "2"
        assert house.waits("refused") == (1, 0.0)
        await _leave(waiting, waiting_task)
        await _leave(inside, call)

    _run(check, places=1)


def test_a_bad_key_never_waits() -> None:
    """Only a place is worth waiting for."""

    async def check(house: _House) -> None:
        inside, call = await house.enter()
        started = _now()
        socket, task = house.knock({"authorization": "Bearer sk-wrong"})
        await task
        assert socket.response is not None
        assert (socket.response["status"], _now()) == (401, started)
        await _leave(inside, call)

    _run(check)


def test_a_caller_who_hangs_up_leaves_the_line_at_once() -> None:
    """Whoever stood behind is next."""

    async def check(house: _House) -> None:
        inside, call = await house.enter()
        first, first_task = house.knock()
        await asyncio.sleep(0.5)
        second, second_task = house.knock()
        await asyncio.sleep(0.5)
        await _leave(first, first_task)
        assert len(house.room) == 1
        assert house.waits("left") == (1, pytest.approx(1.0))
        await _leave(inside, call)
        await second.until("session.created")
        await _leave(second, second_task)

    _run(check)


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("release_first", [True, False])
def test_a_place_given_to_a_caller_who_is_just_gone_is_not_lost(
    turns: int, release_first: bool
) -> None:
    """However many turns of the loop lie between the two events, in either order."""

    async def check(house: _House) -> None:
        held = house.room.try_admit(_now(), Request())
        assert isinstance(held, Lease)
        gone, gone_task = house.knock()
        await asyncio.sleep(0.1)
        behind, behind_task = house.knock()
        await asyncio.sleep(0.1)
        events = [lambda: house.room.release(_now(), held), gone.leave]
        for event in events if release_first else reversed(events):
            event()
            for _ in range(turns):
                await asyncio.sleep(0)
        await gone_task  # after many turns it was accepted, and its call has ended
        assert gone.accepted is None or turns > 3
        await behind.until("session.created")
        await _leave(behind, behind_task)

    _run(check)


def test_a_task_that_is_cancelled_while_it_waits_gives_everything_back() -> None:
    """Also when it has just been given a place."""

    async def check(house: _House) -> None:
        for releases in (False, True):
            held = house.room.try_admit(_now(), Request())
            assert isinstance(held, Lease)
            _, task = house.knock()
            await asyncio.sleep(0.1)
            if releases:
                house.room.release(_now(), held)
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            house.room.release(_now(), held)
            assert (len(house.room), house.room.active) == (0, 0)

    _run(check)


def test_a_drain_answers_everybody_who_waits_before_it_is_over() -> None:
    """At once, in order, and with the reason."""

    async def check(house: _House) -> None:
        held = house.room.try_admit(_now(), Request())
        assert isinstance(held, Lease)
        callers = [house.knock() for _ in range(3)]
        await asyncio.sleep(0.5)
        started = _now()
        house.room.close("draining")
        await house.door.calls.drain(10.0)
        assert _now() == started
        assert all(socket.body for socket, _ in callers)
        for socket, task in callers:
            await task
            assert socket.response is not None
            assert socket.response["status"] == 503
            assert _headers(socket)["x-metronome-reason"] == "draining"
            assert "x-metronome-queue-position" not in _headers(socket)
            assert json.loads(socket.body)["error"]["code"] == "server_draining"
        assert house.waits("refused") == (3, pytest.approx(1.5))
        house.room.release(_now(), held)

    _run(check)


def test_a_caller_who_speaks_before_the_answer_is_no_websocket_client() -> None:
    """RFC 6455, 4.1: it must wait; so it loses its place in line."""

    async def check(house: _House) -> None:
        inside, call = await house.enter()
        socket, task = house.knock()
        await asyncio.sleep(0.5)
        socket.say("session.update")
        await task
        assert socket.response is not None
        assert socket.response["status"] == 400
        await _leave(inside, call)

    _run(check)


def test_bounds_that_heal_by_themselves_are_noticed() -> None:
    """A door that lets people in again is asked every tenth of a second while anybody waits."""

    async def check(house: _House) -> None:
        door = house.room._line.door
        held = door.try_admit(_now(), Request())
        assert isinstance(held, Lease)
        socket, task = house.knock()
        await asyncio.sleep(1.0)
        door.release(_now(), held)  # behind the room's back
        await socket.until("session.created")
        assert 1.0 <= _now() <= 1.2
        await _leave(socket, task)

    _run(check)


def test_who_waits_can_be_seen(caplog: pytest.LogCaptureFixture) -> None:
    """How many, how long the next one would, and one line in the log per caller."""
    caplog.set_level(logging.INFO)

    async def check(house: _House) -> None:
        inside, call = await house.enter()
        first, first_task = house.knock()
        second, second_task = house.knock()
        await asyncio.sleep(1.0)
        shown = house.room.explain()
        assert shown["waiting"] == 2
        assert 3 <= shown["eta_s"] <= 20
        for socket, task in ((first, first_task), (second, second_task), (inside, call)):
            await _leave(socket, task)

    _run(check)
    lines = [r.getMessage() for r in caplog.records if "decision=waiting" in r.getMessage()]
    assert [line.split("position=")[1].split()[0] for line in lines] == ["1", "2"]
