"""The abuse list, peers: those that never read, vanish, dawdle at the door, send too much, or come by the hundred."""

import asyncio

import pytest
from support.server_process import DUPLEX, SIM, run_server
from support.wire import append, ask, enter, event, frame, last, raw_call, until

pytestmark = [pytest.mark.socket, pytest.mark.slow]


async def _dropped(reader: asyncio.StreamReader) -> bool:
    """True once the server has ended the connection without an answer."""
    try:
        async with asyncio.timeout(5):
            return await reader.read() == b""
    except ConnectionResetError:
        return True


async def _pour(writer: asyncio.StreamWriter) -> None:
    """Speak for ever."""
    while True:
        writer.write(frame(append()) * 50)
        await writer.drain()


def test_a_client_that_never_reads_is_closed_and_its_memory_freed() -> None:
    """However much the kernel takes at first; a neighbour is not disturbed."""

    async def main() -> None:
        async with run_server({**DUPLEX, "server.outbox_s": 5.0}) as server:
            _, writer = await raw_call(server.port, receive_buffer=4096)
            neighbour = await enter(server.ws)
            with pytest.raises(ConnectionError):
                await _pour(writer)
            await neighbour.send(append())
            await until(neighbour, "response.output_audio.delta")
            await neighbour.close()
            await server.settled()
            rendered = server.runtime.parts.metrics.render().decode()
            assert 'sessions_ended_total{reason="slow_consumer"} 1.0' in rendered
            writer.close()

    asyncio.run(main())


def test_a_client_that_vanishes_in_the_middle_of_a_reply_leaves_nothing() -> None:
    """A reset, not a close: session, lease and KV blocks all come back."""

    async def main() -> None:
        async with run_server({**SIM, "engine.sim.fixed_s": 0.02}) as server:
            socket = await enter(server.ws)
            await socket.send(ask())
            await until(socket, "response.output_audio.delta")
            assert server.held_blocks > 0
            socket.transport.abort()
            await server.settled()

    asyncio.run(main())


@pytest.mark.parametrize("said", [b"", b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\n", b"GET /livez"])
def test_a_half_sent_handshake_is_cut(said: bytes) -> None:
    """Silent sockets and slow headers do not stay."""

    async def main() -> None:
        async with run_server(server__handshake_timeout_s=0.2) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(said)
            assert await _dropped(reader)
            writer.close()

    asyncio.run(main())


def test_a_slow_second_request_on_a_kept_connection_is_cut_too() -> None:
    """The deadline starts again with each request."""

    async def main() -> None:
        async with run_server(server__handshake_timeout_s=0.2) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b"}")
            writer.write(b"GET /livez HTTP/1.1\r\nHost:")
            assert await _dropped(reader)
            writer.close()

    asyncio.run(main())


def test_an_upgraded_connection_has_no_handshake_deadline() -> None:
    """A call may be silent for longer than a handshake may take."""

    async def main() -> None:
        async with run_server(server__handshake_timeout_s=0.1) as server:
            socket = await enter(server.ws)
            # Real time: the deadline is a timer of a real connection.
            await asyncio.sleep(0.3)
            await socket.send(event("input_audio_buffer.clear"))
            await until(socket, "input_audio_buffer.cleared")
            await socket.close()

    asyncio.run(main())


def test_a_message_over_the_limit_is_closed_with_1009() -> None:
    """uvicorn's own answer; the session is gone with the socket."""

    async def main() -> None:
        async with run_server(server__ws_max_bytes=65_536) as server:
            socket = await enter(server.ws)
            await socket.send("x" * 70_000)
            # The reset may overtake the close frame.
            assert (await last(socket))[1] in (1009, 1006)
            await server.settled()
            rendered = server.runtime.parts.metrics.render().decode()
            assert 'sessions_ended_total{reason="protocol"} 1.0' in rendered

    asyncio.run(main())


def test_five_hundred_calls_come_and_go_and_leave_nothing() -> None:
    """Sessions, leases, blocks and tasks are back where they were; each call was answered."""

    async def main() -> None:
        # Twenty-five at once are paced at the door otherwise (tests/admission).
        async with run_server(engine__max_sessions=64, admission__kind="static") as server:
            before = len(asyncio.all_tasks())

            async def come_and_go(number: int) -> None:
                socket = await enter(server.ws)
                if number % 3 == 0:
                    await socket.send(append())
                if number % 5 == 0:
                    await socket.send(ask())
                if number % 7 == 0:
                    socket.transport.abort()
                await socket.close()

            for first in range(0, 500, 25):
                async with asyncio.TaskGroup() as group:
                    for number in range(first, first + 25):
                        group.create_task(come_and_go(number))
            await server.settled()
            rendered = server.runtime.parts.metrics.render().decode()
            assert "metronome_sessions_started_total 500.0" in rendered
            assert 'metronome_sessions_ended_total{reason="client"} 500.0' in rendered
            while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110  # no event tells the end of uvicorn's tasks
                await asyncio.sleep(0.01)

    asyncio.run(main())
