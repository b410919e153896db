"""Waiting at the door of the real server, over real sockets."""

import asyncio
import json

import httpx
import pytest
import websockets
from support.server_process import run_server
from support.wire import enter, last, raw_call
from websockets.exceptions import InvalidStatus

pytestmark = [pytest.mark.socket, pytest.mark.slow]


@pytest.mark.parametrize("kind", ["static", "aimd"])
def test_a_second_caller_gets_the_place_of_the_first(kind: str) -> None:
    """The handshake waits, longer than a request may take to arrive, and then succeeds."""

    async def main() -> None:
        waits = {"admission__wait_s": 20.0, "server__handshake_timeout_s": 0.2}
        async with run_server(engine__max_sessions=1, admission__kind=kind, **waits) as server:
            first = await enter(server.ws)
            second = asyncio.create_task(enter(server.ws))
            async with httpx.AsyncClient(base_url=server.http) as client:
                while (shown := (await client.get("/debug/admission")).json())["waiting"] == 0:
                    assert not second.done()
                assert (shown["active"], shown["eta_s"] >= 1) == (1, True)
                done, _ = await asyncio.wait([second], timeout=0.5)
                assert not done
                await first.close()
                inside = await second
                text = (await client.get("/metrics")).text
                assert 'admission_wait_seconds_count{outcome="admitted"} 1.0' in text
                assert 'metronome_sessions_waiting{model="sim"} 0.0' in text
                assert 'rejections_total{reason="capacity"} 0.0' in text
            await inside.close()
            await server.settled()

    asyncio.run(main())


def test_a_wait_that_is_over_is_a_503_with_position_and_time() -> None:
    """A stock client can read status, headers and body."""

    async def main() -> None:
        async with run_server(engine__max_sessions=1, admission__wait_s=0.3) as server:
            first = await enter(server.ws)
            loop = asyncio.get_running_loop()
            started = loop.time()
            with pytest.raises(InvalidStatus) as refused:
                await websockets.connect(server.ws)
            assert loop.time() - started >= 0.29
            response = refused.value.response
            assert response.status_code == 503
            assert response.headers["X-Metronome-Queue-Position"] == "1"
            told = f"Position in line: 1; a place is expected in {response.headers['Retry-After']}"
            assert told in json.loads(response.body)["error"]["message"]
            await first.close()
            await server.settled()

    asyncio.run(main())


def test_a_caller_who_drops_the_connection_leaves_the_line() -> None:
    """The server hears of it before any handshake is complete."""

    async def main() -> None:
        async with run_server(engine__max_sessions=1, admission__wait_s=20.0) as server:
            first = await enter(server.ws)
            room = server.runtime.parts.door.room
            _, writer = await raw_call(server.port)
            while len(room) == 0:  # noqa: ASYNC110  # another task's state, no event
                await asyncio.sleep(0.005)
            writer.close()
            while len(room):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await first.close()
            await server.settled()

    asyncio.run(main())


def test_a_server_that_drains_answers_those_who_wait() -> None:
    """With 503 and the reason, before its sockets close."""

    async def main() -> None:
        async with run_server(engine__max_sessions=1, admission__wait_s=20.0) as server:
            first = await enter(server.ws)
            second = asyncio.create_task(enter(server.ws))
            while len(server.runtime.parts.door.room) == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            server.runtime.request_exit()
            with pytest.raises(InvalidStatus) as refused:
                await second
            response = refused.value.response
            assert response.status_code == 503
            assert response.headers["X-Metronome-Reason"] == "draining"
            assert (await last(first))[1] == 1012

    asyncio.run(main())
