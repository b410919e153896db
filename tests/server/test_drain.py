"""SIGTERM to a server in a process of its own: replies finish, exit status 0; a second signal ends it at once."""

import asyncio
import signal
from pathlib import Path

import pytest
from support.server_process import run_child
from support.wire import ask, enter, last, until
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidStatus

pytestmark = [pytest.mark.socket, pytest.mark.slow]


def _url(port: int) -> str:
    return f"ws://127.0.0.1:{port}/v1/realtime"


async def _asking(port: int, seen: str) -> ClientConnection:
    """A call whose reply has come as far as event `seen`."""
    socket = await enter(_url(port))
    await socket.send(ask())
    await until(socket, seen)
    return socket


def test_sigterm_during_a_reply_lets_it_finish_and_exits_with_0(tmp_path: Path) -> None:
    """The idle call goes at once with 1012, the other after its response.done; nobody enters any more."""

    async def main() -> None:
        async with run_child(tmp_path, engine__sim__fixed_s=0.05) as child:
            idle = await enter(_url(child.port))
            busy = await _asking(child.port, "response.output_audio.delta")
            child.signal()
            assert (await last(idle))[1] == 1012
            with pytest.raises(InvalidStatus) as refused:
                await enter(_url(child.port))
            assert refused.value.response.status_code == 503
            event, code, _ = await last(busy)
            assert (event["type"], event["response"]["status"], code) == (
                "response.done",
                "completed",
                1012,
            )
            assert await child.ended() == 0

    asyncio.run(main())


def test_a_reply_longer_than_the_grace_is_cut_with_1012(tmp_path: Path) -> None:
    """drain_s is a bound, and the exit is still orderly."""

    async def main() -> None:
        async with run_child(tmp_path, engine__sim__fixed_s=0.1, server__drain_s=0.1) as child:
            socket = await _asking(child.port, "response.created")
            child.signal()
            assert (await last(socket))[1] == 1012
            assert await child.ended() == 0

    asyncio.run(main())


def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    """An operator who insists is not kept waiting for replies."""

    async def main() -> None:
        async with run_child(tmp_path, engine__sim__fixed_s=0.1) as child:
            busy = await _asking(child.port, "response.output_audio.delta")
            child.signal()
            await child.says("draining")
            child.signal()
            assert await child.ended() == -signal.SIGTERM
            assert (await last(busy))[1] == 1006

    asyncio.run(main())
