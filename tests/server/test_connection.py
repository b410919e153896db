"""One call on the simulated engine in virtual time: how facts travel, and every way in which a call ends."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from support.fake_asgi import FakeSocket
from support.sim_engine import cascade, duplex, running

from engine.clock import LoopClock
from engine.engine import Engine
from engine.models.base import InteractionModel
from engine.settings import EngineSettings
from engine.sim_backend import SimBackend, SimCost
from engine.virtual_time import run_virtual
from protocol.connection import RealtimeConnection
from protocol.ids import IdFactory
from protocol.session_config import SessionDefaults
from server.connection import Channel, Connection, Limits, Machine
from server.metrics import EndedReason, Metrics

FRAME = base64.b64encode(bytes(3840)).decode()  # 80 ms


@dataclass
class Call:
    """A call under test."""

    socket: FakeSocket
    connection: Connection
    task: "asyncio.Task[EndedReason]"
    engine: Engine
    metrics: Metrics
    backend: SimBackend

    async def ended(self) -> EndedReason:
        return await self.task


def _protocol(*, decides_turns: bool) -> RealtimeConnection:
    return RealtimeConnection(
        session_id="sess_1",
        model="sim",
        defaults=SessionDefaults(decides_turns=decides_turns),
        ids=IdFactory("x"),
        expires_at=None,
    )


@asynccontextmanager
async def calling(
    model: InteractionModel | None = None,
    limits: Limits | None = None,
    *,
    cost: SimCost | None = None,
    settings: EngineSettings | None = None,
) -> AsyncIterator[Call]:
    """A call that has begun; the engine must be empty when it is over."""
    model = model or cascade()
    async with running(model, cost, settings=settings) as (engine, _, backend):
        metrics = Metrics("sim", 0.08)
        socket = FakeSocket()
        machine = Machine(engine, LoopClock(), metrics, limits or Limits())
        protocol = _protocol(decides_turns=model.spec.decides_turns)
        channel = Channel(socket.receive, socket.send, socket)
        connection = Connection("sess_1", protocol, machine, channel)
        task = asyncio.create_task(connection.run())
        await socket.until("session.created")
        yield Call(socket, connection, task, engine, metrics, backend)
        if not task.done():
            socket.leave()
        await asyncio.wait([task])
        assert engine.snapshot().sessions == 0


def _ask(socket: FakeSocket, text: str = "hello there", **response: Any) -> None:
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "role": "user", "content": content}
    socket.say("response.create", response={"input": [item], **response})


def test_a_typed_turn_is_answered_in_order() -> None:
    """response.created comes first, response.done last, and audio lies between."""

    async def main() -> None:
        async with calling() as call:
            _ask(call.socket)
            await call.socket.until("response.done")
            types = call.socket.types()
            assert types[:2] == ["session.created", "response.created"]
            assert "response.output_audio.delta" in types
            assert types[-1] == "response.done"
            call.socket.leave()
            assert await call.ended() == "client"

    run_virtual(main())


def test_a_frame_locked_model_answers_each_frame() -> None:
    """One delta out per frame in, in one response."""

    async def main() -> None:
        async with calling(duplex(80)) as call:
            for _ in range(5):
                call.socket.say("input_audio_buffer.append", audio=FRAME)
            await call.socket.until("response.output_audio.delta", 5)
            assert call.socket.types().count("response.created") == 1

    run_virtual(main())


def test_g711_output_is_at_the_rate_of_the_wire() -> None:
    """A 24 kHz model answers a pcmu session with an eighth of the samples' bytes: 8 kHz, one byte each."""

    async def main() -> None:
        async with calling() as call:
            output = {"format": {"type": "audio/pcmu"}}
            call.socket.say(
                "session.update", session={"type": "realtime", "audio": {"output": output}}
            )
            _ask(call.socket)
            await call.socket.until("response.output_audio.done")
            deltas = [e for e in call.socket.events if e["type"] == "response.output_audio.delta"]
            wire = sum(len(base64.b64decode(delta["delta"])) for delta in deltas)
            done = await call.socket.until("response.done")
            spoken_ms = 50 * done["response"]["usage"]["output_token_details"]["audio_tokens"]
            assert wire / 8 == pytest.approx(spoken_ms, rel=0.1)

    run_virtual(main())


def test_a_binary_frame_is_answered_with_an_error_and_the_call_goes_on() -> None:
    """The protocol is JSON text."""

    async def main() -> None:
        async with calling() as call:
            call.socket.say_bytes(b"\x00\x01")
            error = await call.socket.until("error")
            assert error["error"]["code"] == "invalid_value"
            _ask(call.socket)
            await call.socket.until("response.done")

    run_virtual(main())


def test_audio_past_the_inbox_is_refused_whole_and_the_call_goes_on() -> None:
    """The bound is the engine's; the client is told, and its next events are served."""

    async def main() -> None:
        async with calling(settings=EngineSettings(inbox_s=1.0)) as call:
            second = base64.b64encode(bytes(2 * 24_000)).decode()
            for _ in range(2):
                call.socket.say("input_audio_buffer.append", audio=second)
            error = await call.socket.until("error")
            assert error["error"]["code"] == "input_audio_buffer_full"
            call.socket.say("input_audio_buffer.clear")
            await call.socket.until("input_audio_buffer.cleared")

    run_virtual(main())


def test_leaving_in_the_middle_of_an_answer_frees_the_engine() -> None:
    """No job, session or block outlives the socket."""

    async def main() -> None:
        async with calling() as call:
            _ask(call.socket)
            await call.socket.until("response.output_audio.delta")
            call.socket.leave()
            assert await call.ended() == "client"
            await asyncio.sleep(1)
            assert call.backend.snapshot().held_blocks == 0

    run_virtual(main())


def test_a_call_expires_with_an_error_event_and_1001() -> None:
    """The API's own limit and words."""

    async def main() -> None:
        async with calling(limits=Limits(max_session_s=180.0)) as call:
            assert await call.ended() == "expired"
            assert call.socket.events[-1]["error"]["code"] == "session_expired"
            reason = "Your session hit the maximum duration of 3 minutes."
            assert call.socket.closed == (1001, reason)
            assert asyncio.get_running_loop().time() == pytest.approx(180, abs=1)

    run_virtual(main())


def test_a_client_that_never_reads_is_cut_off() -> None:
    """Five seconds without progress, however little is queued."""

    async def main() -> None:
        async with calling() as call:
            call.socket.stop_reading()
            started = asyncio.get_running_loop().time()
            call.socket.say("input_audio_buffer.clear")
            assert await call.ended() == "slow_consumer"
            assert call.socket.closed == (1008, "slow_consumer")
            assert asyncio.get_running_loop().time() - started < 10

    run_virtual(main())


def test_a_client_that_pauses_for_less_than_the_limit_is_kept() -> None:
    """A hiccup is not slowness."""

    async def main() -> None:
        async with calling() as call:
            call.socket.stop_reading()
            call.socket.say("input_audio_buffer.clear")
            await asyncio.sleep(4)
            call.socket.read_on()
            await call.socket.until("input_audio_buffer.cleared")
            await asyncio.sleep(60)
            assert not call.task.done()

    run_virtual(main())


def test_an_outbox_past_its_bound_cuts_the_client_off_and_counts_what_it_lost() -> None:
    """A client that reads more slowly than it is spoken to."""

    async def main() -> None:
        async with calling(duplex(80), Limits(outbox_s=1.0, stalled_s=1e9)) as call:
            call.socket.stop_reading()
            for _ in range(40):
                call.socket.say("input_audio_buffer.append", audio=FRAME)
            assert await call.ended() == "slow_consumer"
            lines = call.metrics.render().decode().splitlines()
            (line,) = [x for x in lines if x.startswith("metronome_outbox_dropped_frames_total ")]
            assert float(line.split()[1]) >= 12

    run_virtual(main())


def test_drain_ends_an_idle_call_at_once() -> None:
    """1012, with a reason."""

    async def main() -> None:
        async with calling() as call:
            call.connection.drain()
            assert await call.ended() == "drain"
            assert call.socket.closed == (1012, "the server is shutting down")

    run_virtual(main())


def test_drain_lets_the_reply_in_progress_finish() -> None:
    """The last event before 1012 is response.done, completed."""

    async def main() -> None:
        async with calling(cost=SimCost(fixed_s=0.05)) as call:
            _ask(call.socket)
            await call.socket.until("response.output_audio.delta")
            call.connection.drain()
            assert await call.ended() == "drain"
            assert call.socket.events[-1]["type"] == "response.done"
            assert call.socket.events[-1]["response"]["status"] == "completed"

    run_virtual(main())


def test_drain_is_over_for_a_call_whose_reply_is_cancelled() -> None:
    """Silence by the client's wish is silence."""

    async def main() -> None:
        async with calling(cost=SimCost(fixed_s=1.0)) as call:
            _ask(call.socket)
            await call.socket.until("response.created")
            call.connection.drain()
            call.socket.say("response.cancel")
            assert await call.ended() == "drain"

    run_virtual(main())


def test_end_drain_cuts_a_reply_short() -> None:
    """When the time is over nothing is waited for."""

    async def main() -> None:
        async with calling(cost=SimCost(fixed_s=5.0)) as call:
            _ask(call.socket)
            await call.socket.until("response.created")
            call.connection.drain()
            call.connection.end_drain()
            assert await call.ended() == "drain"
            assert call.socket.closed == (1012, "the server is shutting down")

    run_virtual(main())


def test_a_session_that_the_engine_lost_ends_with_an_error_and_1011() -> None:
    """Never silently stuck."""

    async def main() -> None:
        async with calling() as call:
            side = call.connection._engine_side
            side.failed("engine_unavailable", "The engine failed; please reconnect.")
            assert await call.ended() == "engine"
            assert call.socket.events[-1]["error"]["code"] == "engine_unavailable"
            assert call.socket.closed == (1011, "The engine failed; please reconnect.")

    run_virtual(main())


def _broken(*args: object) -> None:
    raise RuntimeError("a bug")


@pytest.mark.parametrize("where", ["receive", "spoke"])
def test_a_bug_of_ours_ends_this_call_with_1011(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the socket's side or the engine's side meets it, and the log has the traceback."""
    monkeypatch.setattr(RealtimeConnection, where, _broken)

    async def main() -> None:
        async with calling(duplex(80)) as call:
            call.socket.say("input_audio_buffer.append", audio=FRAME)
            assert await call.ended() == "internal"
            assert call.socket.closed == (1011, "internal error")

    run_virtual(main())
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "a bug" in caplog.text
    assert vars(record)["session"] == "sess_1"


@pytest.mark.parametrize(
    ("code", "ended"), [(1000, "client"), (1005, "client"), (1002, "protocol"), (1009, "protocol")]
)
def test_the_close_code_tells_a_broken_peer_from_one_that_left(code: int, ended: str) -> None:
    """uvicorn's parser closes broken peers itself; we only count them."""

    async def main() -> None:
        async with calling() as call:
            call.socket.leave(code)
            assert await call.ended() == ended

    run_virtual(main())


def test_cancelling_a_call_frees_its_session_and_is_not_swallowed() -> None:
    """What the server does to its tasks at the very end."""

    async def main() -> None:
        async with calling() as call:
            call.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call.task
            assert call.engine.snapshot().sessions == 0

    run_virtual(main())


def test_events_are_counted_both_ways() -> None:
    """Type by type, and bytes as they are on the wire."""

    async def main() -> None:
        async with calling() as call:
            text = json.dumps(
                {"type": "session.update", "session": {"type": "realtime", "instructions": "é"}},
                ensure_ascii=False,
            )
            call.socket.say_text(text)
            await call.socket.until("session.updated")
            call.socket.say_text("{")
            await call.socket.until("error")
            rendered = call.metrics.render().decode()
            assert 'metronome_ws_events_total{direction="in",type="session.update"} 1.0' in rendered
            assert 'metronome_ws_events_total{direction="in",type="other"} 1.0' in rendered
            assert (
                'metronome_ws_events_total{direction="out",type="session.updated"} 1.0' in rendered
            )
            assert (
                f'metronome_ws_bytes_total{{direction="in"}} {float(len(text.encode()) + 1)}'
                in rendered
            )
            assert 'metronome_ws_protocol_errors_total{code="invalid_json"} 1.0' in rendered

    run_virtual(main())


def test_an_engine_that_is_not_running_ends_the_call() -> None:
    """The door should have refused; the call says so rather than hang."""

    async def main() -> None:
        async with running(cascade()) as (engine, _, _backend):
            engine.alive = False
            socket = FakeSocket()
            machine = Machine(engine, LoopClock(), Metrics("sim", 0.08), Limits())
            channel = Channel(socket.receive, socket.send, socket)
            connection = Connection("sess_1", _protocol(decides_turns=False), machine, channel)
            assert await connection.run() == "internal"
            assert socket.closed == (1011, "internal error")
            engine.alive = True

    run_virtual(main())
