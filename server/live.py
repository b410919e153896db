"""The clock of a Live session: its machine is asked for 200 ms of audio every 200 ms, silence included."""

from engine.clock import Clock
from protocol.live.connection import LiveConnection
from protocol.live.playout import GRID_MS
from server.connection import Connection

_GRID_S = GRID_MS / 1000


async def play(live: LiveConnection, connection: Connection, clock: Clock) -> None:
    """Beat until cancelled, on an absolute grid: what a busy moment delays is caught up with."""
    due = clock.now()
    while True:
        due += _GRID_S
        await clock.sleep_until(due)
        live.beat()
        connection.flush(_GRID_S)
