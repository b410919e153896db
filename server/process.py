"""The `metronome serve` command: one process, one event loop, one exit status."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable

from server import logs
from server.config import Config
from server.health import Phase
from server.listening import CannotListen, bound_socket
from server.runtime import build

_log = logging.getLogger(__name__)
# What a person who started the server must see at any log level.
_announce = logging.getLogger("metronome")


def serve(config: Config, read: Callable[[], Config] | None = None) -> int:
    """Run the server in this process until a signal ends it; the exit status.

    `read`: the configuration as it is now, for SIGHUP.
    """
    logs.set_up(config.log.level, config.log.format)
    _announce.setLevel(logging.INFO)
    try:
        sock = bound_socket(config.server)
    except CannotListen as error:
        _log.error("%s", error)
        return 1
    from server.loop import FineLoop  # no wheel for Windows

    with asyncio.Runner(loop_factory=FineLoop) as runner:
        status, is_hung = runner.run(_serve(config, read, sock))
    if is_hung:  # the interpreter would wait for that thread for ever
        logging.shutdown()
        os._exit(status)
    return status


async def _serve(
    config: Config, read: Callable[[], Config] | None, sock: socket.socket
) -> tuple[int, bool]:
    """The exit status, and whether a thread was left behind that may never end."""
    reload: list[Callable[[], None]] = []
    if hasattr(signal, "SIGHUP"):  # while starting it does nothing: the file has just been read
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGHUP, lambda: [again() for again in reload]
        )
    runtime = await build(config, read)
    reload.append(runtime.parts.reload)
    await runtime.serve(sock)
    parts = runtime.parts
    return (1 if parts.health.phase is Phase.DEAD else 0), parts.engine.is_hung
