"""What a dead engine leads to: the process ends for its supervisor, or a new engine takes its place."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import websockets
from support.server_process import SIM, Running, run_server
from support.sim_engine import cascade
from support.wire import append, ask, enter, last, until
from websockets.exceptions import InvalidStatus

from admission.port import Rejection, Request
from admission.static_cap import StaticCap
from engine.backend import EngineDead
from engine.clock import LoopClock
from engine.engine import Engine
from engine.executor import SimExecutor
from engine.kv_policy import KvPolicy
from engine.models.base import SessionSetup
from engine.observer import NullObserver
from engine.pool import Pools
from engine.settings import EngineSettings
from engine.sim_backend import SimBackend
from engine.virtual_time import run_virtual
from engine.work import StepResult, TickBatch
from server.config import load_config
from server.health import Health, Phase
from server.lifeline import MAX_RESTARTS, RESTARTS_WITHIN_S, Lifeline
from server.process import serve


class Mortal(SimBackend):
    """Dies of its next step for as long as `dying` is set."""

    dying = True

    def step(self, batch: TickBatch) -> StepResult:
        if self.dying:
            raise EngineDead("out of memory")
        return super().step(batch)


class World:
    """A lifeline on a simulated engine, and what it moves."""

    def __init__(self, on_death: str) -> None:
        clock = LoopClock()
        self.backend = Mortal()
        self.health, self.admission = Health(), StaticCap(4)
        executor = SimExecutor(self.backend, clock)
        self.engine = Engine(
            cascade(),
            executor,
            clock,
            NullObserver(),
            EngineSettings(),
            KvPolicy(),
            Pools.inline(),
        )
        self.lifeline = Lifeline(self.engine, self.admission, self.health, clock, on_death)  # type: ignore[arg-type]

    async def begin(self) -> "asyncio.Task[None]":
        """Start, warm, and run."""
        await self.engine.start()
        self.lifeline.cold.clear()
        self.health.become(Phase.READY)
        running = asyncio.create_task(self.lifeline.run())
        await asyncio.sleep(0)
        return running

    async def die(self) -> None:
        """The next step is the engine's last."""
        self.backend.dying = True
        self.engine._stepper.close("nobody")
        self.engine._stepper._closes.append("nobody")
        self.engine._stepper._wake.set()
        await asyncio.sleep(0.1)


def test_exit_closes_the_door_and_is_dead_for_good() -> None:
    """The default: whoever supervises the process starts another."""

    async def main() -> None:
        world = World("exit")
        running = await world.begin()
        await world.die()
        await running
        assert world.health.phase is Phase.DEAD
        assert world.health.note == "out of memory"
        refused = world.admission.try_admit(0.0, Request())
        assert isinstance(refused, Rejection)
        assert refused.reason == "engine_down"
        assert world.lifeline.restarts == 0

    run_virtual(main(), 60)


def test_restart_gives_the_engine_another_life() -> None:
    """Not ready and closed until the new engine is warm, which is another's to say."""

    async def main() -> None:
        world = World("restart")
        running = await world.begin()
        await world.die()
        world.backend.dying = False
        assert world.health.phase is Phase.STARTING
        assert not world.health.is_ready
        assert "out of memory" in world.health.note
        assert world.lifeline.cold.is_set()
        assert world.lifeline.restarts == 1
        assert isinstance(world.admission.try_admit(0.0, Request()), Rejection)
        world.engine.open("s1", SessionSetup(), None)  # type: ignore[arg-type]  # it lives
        world.engine.close("s1")
        world.lifeline.request_stop()
        await running

    run_virtual(main(), 60)


def test_an_engine_that_keeps_dying_is_given_up() -> None:
    """Three restarts in ten minutes are enough; later ones are counted anew."""

    async def main() -> None:
        world = World("restart")
        running = await world.begin()
        for _ in range(MAX_RESTARTS):
            await world.die()
            assert not running.done()
        await asyncio.sleep(RESTARTS_WITHIN_S)
        await world.die()
        assert not running.done()
        for _ in range(MAX_RESTARTS):
            await world.die()
        await running
        assert world.health.phase is Phase.DEAD
        assert world.lifeline.restarts == MAX_RESTARTS + 1 + MAX_RESTARTS - 1

    run_virtual(main(), 2000)


def test_an_engine_that_dies_while_the_server_drains_is_not_restarted() -> None:
    """The calls are over either way."""

    async def main() -> None:
        world = World("restart")
        running = await world.begin()
        world.health.become(Phase.DRAINING)
        await world.die()
        await running
        assert world.health.phase is Phase.DEAD

    run_virtual(main(), 60)


def test_only_the_reason_it_was_closed_for_opens_the_door() -> None:
    """A restart must not undo a drain."""
    cap = StaticCap(1)
    cap.close("draining")
    cap.close("engine_down")
    cap.reopen("engine_down")
    assert isinstance(cap.try_admit(0.0, Request()), Rejection)
    cap.reopen("draining")
    assert not isinstance(cap.try_admit(0.0, Request()), Rejection)


# -- over the wire ------------------------------------------------------------------------


def _kill(server: Running) -> None:
    """The engine's next step is its last."""
    backend = server.runtime.parts.engine._executor._backend  # type: ignore[attr-defined]

    def dying(batch: TickBatch) -> StepResult:
        del backend.step  # the next life is a better one
        raise EngineDead("out of memory")

    backend.step = dying


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def _ready(client: httpx.AsyncClient, server: Running) -> int:
    return (await client.get(f"{server.http}/readyz")).status_code


@pytest.mark.socket
@pytest.mark.slow
def test_calls_are_told_to_come_back_and_a_new_engine_serves_them() -> None:
    """An error event, a close code that clients reconnect on, 503 meanwhile, then service as before."""

    async def main() -> None:
        async with run_server(engine__on_death="restart") as server, httpx.AsyncClient() as client:
            first, idle = await enter(server.ws), await enter(server.ws)
            restart = server.runtime.parts.engine.restart
            gate = asyncio.Event()

            async def slow_restart() -> object:
                await gate.wait()
                return await restart()

            server.runtime.parts.engine.restart = slow_restart  # type: ignore[method-assign,assignment]
            _kill(server)
            await first.send(ask())
            for socket in (first, idle):
                event, code, _ = await last(socket)
                assert event["error"]["code"] == "engine_unavailable"
                assert code == 1011
            assert await _ready(client, server) == 503
            with pytest.raises(InvalidStatus) as refused:
                await websockets.connect(server.ws)
            assert refused.value.response.status_code == 503
            assert "Retry-After" in refused.value.response.headers
            gate.set()
            while await _ready(client, server) != 200:  # noqa: ASYNC110  # asked as a balancer would
                await asyncio.sleep(0.01)
            again = await enter(server.ws)
            await again.send(append())
            await again.send(ask())
            await until(again, "response.done")
            await again.close()
            rendered = (await client.get(f"{server.http}/metrics")).text
            assert "metronome_engine_restarts_total 1.0" in rendered
            assert 'metronome_engine_errors_total{kind="death"} 1.0' in rendered
            assert 'metronome_sessions_ended_total{reason="engine"} 2.0' in rendered
            await server.settled()

    asyncio.run(main())


@pytest.mark.socket
@pytest.mark.slow
def test_by_default_the_process_ends() -> None:
    """Every call is told first; then `serve` returns by itself."""

    async def main() -> None:
        async with run_server() as server:
            socket = await enter(server.ws)
            _kill(server)
            await socket.send(ask())
            event, code, _ = await last(socket)
            assert (event["error"]["code"], code) == ("engine_unavailable", 1011)
            while await _answers(server.port):  # noqa: ASYNC110  # asked as a supervisor would
                await asyncio.sleep(0.01)
            assert server.runtime.parts.health.phase is Phase.DEAD

    asyncio.run(main())


@pytest.mark.socket
@pytest.mark.slow
def test_the_exit_status_tells_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """1, without anybody's asking."""

    def dying(self: SimBackend, batch: TickBatch) -> StepResult:
        raise EngineDead("out of memory")

    monkeypatch.setattr(SimBackend, "step", dying)
    assert serve(load_config(None, SIM)) == 1


HANGS = """
import threading
from dataclasses import replace
from support.server_process import SIM
from engine.executor import ThreadExecutor
from engine.sim_backend import SimBackend
from server import assembly
from server.config import load_config
from server.process import serve

class Hanging(SimBackend):
    def step(self, batch):
        threading.Event().wait()

settings = assembly._engine_settings
assembly._engine_settings = lambda config: replace(settings(config), hang_limit_s=0.3)
assembly._executor = lambda *args: ThreadExecutor(Hanging)
raise SystemExit(serve(load_config(None, SIM)))
"""


@pytest.mark.socket
@pytest.mark.slow
def test_a_thread_that_hangs_for_good_does_not_keep_the_process() -> None:
    """Python would join it at exit, for ever, and the supervisor would wait as long."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", HANGS],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'tests'}", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1, done.stderr
    assert "nothing has moved for 0.3 s" in done.stderr
