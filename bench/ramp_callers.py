"""Callers that come when they are told, stream their frames, and come again when they are turned away.

One asyncio protocol per caller on raw sockets, as in `bench/loadgen.py`: frames are masked once, replies are not read;
whether they were in time is the server's to say. What a refusal says, and how long it took, is kept. They can be told
to hush: who is in sends nothing, who is not does not ask, and the server has nothing to do.
"""

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import cast

import pybase64

from bench.wsframe import CLOSE, PING, PONG, TEXT, frames, handshake, masked

_RATE = 24_000  # Hz of the pcm16 on the wire
_EVERYBODY = 1_000_000
_NAP_S = 0.5  # at most so long until somebody who waits for their time to ask again sees that all should hush


@dataclass(slots=True)
class Seen:
    """What all callers saw together."""

    refusals_ms: list[float] = field(default_factory=list)  # from the request to the whole refusal
    reasons: dict[str, int] = field(default_factory=dict)
    unclean: list[str] = field(
        default_factory=list
    )  # neither let in nor properly refused, or lost later
    came: int = 0  # callers who want a call by now
    inside: int = 0


class Callers:
    """The crowd. `grow` adds callers; `hush` silences all, `speak` wakes some of them; `leave` ends all calls."""

    def __init__(self, port: int, path: str, tick_s: float) -> None:
        self.seen = Seen()
        self.tick_s = tick_s
        self.port = port
        self.leaving = False
        self.talking = range(_EVERYBODY)  # in the order in which they were added
        self._waking = asyncio.Event()
        self._waking.set()
        self._size = 0
        self._request = handshake("127.0.0.1", port, path, "")
        samples = int(_RATE * tick_s)
        audio = pybase64.b64encode(bytes(range(256)) * (samples * 2 // 256 + 1))
        audio = pybase64.b64encode(pybase64.b64decode(audio)[: samples * 2])
        event = b'{"type":"input_audio_buffer.append","audio":"' + audio + b'"}'
        self._frame = masked(TEXT, event)
        self._rng = random.Random(1)
        self._tasks: set[asyncio.Task[None]] = set()

    def grow(self, count: int, over_s: float) -> None:
        """So many more callers, spread over the next `over_s` seconds."""
        for number in range(count):
            after_s = over_s * number / max(1, count)
            task = asyncio.ensure_future(self._call(self._size + number, after_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._size += count

    def hush(self) -> None:
        """Nobody sends or asks, until told to speak."""
        self.talking = range(0)
        self._waking.clear()

    def speak(self, first: int = 0, until: int = _EVERYBODY) -> None:
        """Of those who are in these send, by the order in which they were added; the others may ask."""
        self.talking = range(first, until)
        self._waking.set()

    async def woken(self) -> None:
        """Returns at once, or when the silence is over."""
        await self._waking.wait()

    async def leave(self) -> None:
        """Hang up, all of us."""
        self.leaving = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, number: int, after_s: float) -> None:
        """Knock until let in, then talk for ever."""
        await self._rest(after_s)
        self.seen.came += 1
        while True:
            retry_after_s = await self._knock(number)
            if retry_after_s is None:
                return
            await self._rest(retry_after_s * self._rng.uniform(0.5, 1.5))

    async def _rest(self, seconds: float) -> None:
        """Sleep so long, not counting the time in which all hush: they would come back all at once."""
        while seconds > 0:
            await self.woken()
            nap_s = min(_NAP_S, seconds)
            await asyncio.sleep(nap_s)
            seconds -= nap_s
        await self.woken()

    async def _knock(self, number: int) -> float | None:
        """Ask once, and talk if let in. Else: seconds after which to come again."""
        loop = asyncio.get_running_loop()
        call = Call(self._request, self._frame, self, number)
        try:
            await loop.create_connection(lambda: call, "127.0.0.1", self.port)
            retry_after_s = await call.answered
            if retry_after_s is None:
                await call.talk(self._rng.uniform(0, self.tick_s))
        except OSError as error:
            self.seen.unclean.append(repr(error))
            retry_after_s = 1.0
        finally:
            call.hang_up()
        return retry_after_s


class Call(asyncio.Protocol):
    """One handshake, and the call that may follow."""

    def __init__(self, request: bytes, frame: bytes, crowd: Callers, number: int) -> None:
        self._request = request
        self._frame = frame
        self._crowd = crowd
        self._caller = number
        self._transport: asyncio.Transport | None = None  # None until connected
        self._rest = b""
        self._asked_at = 0.0
        self._inside = False
        # None: let in; else seconds after which to come again.
        self.answered: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._asked_at = time.perf_counter()
        self._transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._inside and not self._crowd.leaving:
            self._crowd.seen.unclean.append(f"an admitted call was lost: {exc!r}")
        if self._inside:
            self._crowd.seen.inside -= 1
            self._inside = False
        if not self.answered.done():
            self._crowd.seen.unclean.append("closed before an answer")
            self.answered.set_result(1.0)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        if not self._inside and not self.answered.done():
            head, found, data = data.partition(b"\r\n\r\n")
            if not found:
                self._rest = head
                return
            if not self._met(head.decode("latin-1")):
                return
        stop = 0
        for opcode, start, stop in frames(data):  # the last `stop` is used below
            if opcode == PING and self._transport is not None:
                self._transport.write(masked(PONG, data[start:stop]))
        self._rest = data[stop:]

    def _met(self, head: str) -> bool:
        """The response's head: True if we are in."""
        status, _, rest = head.partition("\r\n")
        seen = self._crowd.seen
        if " 101 " in status:
            self._inside = True
            seen.inside += 1
            self.answered.set_result(None)
            return True
        fields = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in rest.split("\r\n"))
        }
        seen.refusals_ms.append((time.perf_counter() - self._asked_at) * 1000)
        reason = fields.get("x-metronome-reason", "")
        seen.reasons[reason] = seen.reasons.get(reason, 0) + 1
        if " 503 " not in status or not reason or "retry-after" not in fields:
            seen.unclean.append(status)
        self.answered.set_result(float(fields.get("retry-after", 1)))
        if self._transport is not None:
            self._transport.close()
        return False

    async def talk(self, phase_s: float) -> None:
        """A frame per tick, on an absolute grid, but for the ticks in which we are silent."""
        start = time.perf_counter() + phase_s
        number = 0
        while self._inside:
            due = start + number * self._crowd.tick_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            audible = self._caller in self._crowd.talking
            if audible and self._transport is not None and self._inside:
                self._transport.write(self._frame)
            number += 1

    def hang_up(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(masked(CLOSE, (1000).to_bytes(2, "big")))
            self._transport.close()
