"""Many callers in one process: sends audio frames, counts the audio that comes back, times both.

Run in a process and on a core of its own (`python -m bench.loadgen …`); prints one JSON object.
Frames are masked once, before the clock starts; of a reply only the header is parsed, and the first
100 bytes are searched for the event's type. Only each caller's first reply is read in full.

Two modes. `closed`: every caller sends its next frame when the last was answered; what counts is
the server's CPU time per frame. `paced`: every caller sends one frame per period, its phase spread
over the period, whatever the server does; what counts is the share of replies within the period.
"""

import argparse
import asyncio
import gc
import json
import os
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import cast

import pybase64
import uvloop

from bench.scoring import percentile
from bench.wsframe import CLOSE, PING, PONG, TEXT, frames, handshake, masked

_DELTA = b"output_audio.delta"
_TYPE_WITHIN = 100  # bytes of an event in which its type is looked for
_CONNECTING = 50  # handshakes at a time
_SETTLE_CHECKS = 300  # of 10 ms each, for the last replies to arrive


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of process `pid` so far, in nanosecond steps (Linux)."""
    return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of that process


@dataclass(slots=True)
class Result:
    """What one run saw. Times in seconds where not named otherwise."""

    sent: int = 0
    received: int = 0
    measured: int = 0  # replies within the measured interval
    on_time: int = 0  # of `timed`: within one period after the frame was due
    timed: int = 0
    wall_s: float = 0.0
    server_cpu_s: float = 0.0
    own_cpu_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    lag_ms: float = 0.0  # mean delay of our own sending behind its schedule
    problems: list[str] = field(default_factory=list)

    @property
    def server_us(self) -> float:
        """Server CPU per answered frame, microseconds."""
        return self.server_cpu_s / self.measured * 1e6 if self.measured else float("inf")

    @property
    def on_time_share(self) -> float:
        return self.on_time / self.timed if self.timed else 0.0


class Caller(asyncio.Protocol):
    """One connection: opening handshake, greeting, then frames."""

    def __init__(self, request: bytes, frame: bytes, frame_b64: bytes, run: "Run") -> None:
        self._request = request
        self._frame = frame
        self._frame_b64 = frame_b64
        self._run = run
        self._transport: asyncio.Transport | None = None  # None until connected
        self._rest = b""  # bytes of a frame that has not arrived in full
        self._upgraded = False
        self._checked = False  # the first reply was read in full
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.due: deque[float] = deque()  # instants of the frames not answered yet
        self.on_reply: Callable[[Caller], None] = lambda caller: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the methods of asyncio.Transport without being one.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"connection lost: {exc}" if exc else "connection closed by the server")

    def _fail(self, problem: str) -> None:
        if not self._run.ending:
            self._run.result.problems.append(problem)
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(problem))

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        if not self._upgraded:
            head, found, data = data.partition(b"\r\n\r\n")
            if not found:
                self._rest = head
                return
            if b" 101 " not in head.split(b"\r\n", 1)[0]:
                self._fail(head.split(b"\r\n", 1)[0].decode("latin-1"))
                return
            self._upgraded = True
        stop = 0
        for opcode, start, stop in frames(data):  # the last `stop` is used below
            if opcode == TEXT and data.find(_DELTA, start, min(stop, start + _TYPE_WITHIN)) >= 0:
                self._replied(data, start, stop)
            else:
                self._other(opcode, data[start:stop])
        self._rest = data[stop:]

    def _replied(self, data: bytes, start: int, stop: int) -> None:
        if not self._checked:
            self._checked = True
            delta = json.loads(data[start:stop])["delta"].encode("ascii")
            if len(delta) != len(self._frame_b64):
                self._fail(
                    f"a reply holds {len(delta)} bytes of base64, not {len(self._frame_b64)}"
                )
        self._run.result.received += 1
        self.on_reply(self)

    def _other(self, opcode: int, payload: bytes) -> None:
        if opcode == PING and self._transport is not None:
            self._transport.write(masked(PONG, payload))
        elif opcode == CLOSE:
            self._fail(f"closed: {payload[:80]!r}")
        elif b'"type":"error"' in payload[:_TYPE_WITHIN]:
            self._fail(payload[:300].decode("utf-8", "replace"))
        elif not self.ready.done():
            self.ready.set_result(None)  # whatever comes first is the greeting

    def send(self, due: float) -> None:
        """Send the next frame, which was due at `due`."""
        assert self._transport is not None
        self.due.append(due)
        self._run.result.sent += 1
        self._transport.write(self._frame)

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.write(masked(CLOSE, (1000).to_bytes(2, "big")))
            self._transport.close()


class Run:
    """One measurement: connect everyone, send, count, hang up."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.result = Result()
        self.ending = False  # hanging up: what callers see from here on is no problem
        self._sending = True
        self.callers: list[Caller] = []
        self._latencies = array("d")
        self._lags = array("d")
        self._measuring = False

    async def __call__(self) -> Result:
        await self._connect()
        gc.collect()
        gc.disable()
        if self.options.mode == "closed":
            await self._closed()
        else:
            await self._paced()
        await self._settle()
        self.ending = True
        for caller in self.callers:
            caller.hang_up()
        if self._latencies:
            self.result.p50_ms = percentile(self._latencies, 0.5) * 1000
            self.result.p99_ms = percentile(self._latencies, 0.99) * 1000
        if self._lags:
            self.result.lag_ms = sum(self._lags) / len(self._lags) * 1000
        return self.result

    async def _connect(self) -> None:
        options = self.options
        request = handshake("127.0.0.1", options.port, options.path, options.key)
        samples = 24_000 * options.frame_ms // 1000
        audio = pybase64.b64encode(bytes(range(256)) * (samples * 2 // 256 + 1))
        audio = pybase64.b64encode(pybase64.b64decode(audio)[: samples * 2])
        event = b'{"type":"input_audio_buffer.append","audio":"' + audio + b'"}'
        frame = masked(TEXT, event)
        for start in range(0, options.sessions, _CONNECTING):
            batch = [
                Caller(request, frame, audio, self)
                for _ in range(min(_CONNECTING, options.sessions - start))
            ]
            await asyncio.wait_for(asyncio.gather(*map(self._dial, batch)), 20)
            self.callers += batch

    async def _dial(self, caller: Caller) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: caller, "127.0.0.1", self.options.port)
        await caller.ready

    async def _measure(self) -> None:
        """Let the warm-up pass, then count replies and CPU time over the measured interval."""
        await asyncio.sleep(self.options.warmup)
        result, pid = self.result, self.options.server_pid
        before = result.received, cpu_seconds(pid), time.process_time(), time.perf_counter()
        self._measuring = True
        await asyncio.sleep(self.options.seconds)
        self._measuring = False
        result.measured = result.received - before[0]
        result.server_cpu_s = cpu_seconds(pid) - before[1]
        result.own_cpu_s = time.process_time() - before[2]
        result.wall_s = time.perf_counter() - before[3]

    async def _closed(self) -> None:
        now = time.perf_counter

        def again(caller: Caller) -> None:
            caller.due.popleft()
            if self._sending:
                caller.send(now())

        for caller in self.callers:
            caller.on_reply = again
            caller.send(now())
        await self._measure()
        self._sending = False

    async def _paced(self) -> None:
        for caller in self.callers:
            caller.on_reply = self._timed
        sender = asyncio.ensure_future(self._send_paced())
        await self._measure()
        self._sending = False
        await sender

    def _timed(self, caller: Caller) -> None:
        latency = time.perf_counter() - caller.due.popleft()
        if self._measuring:
            self._latencies.append(latency)
            self.result.timed += 1
            self.result.on_time += latency <= self.options.frame_ms / 1000

    async def _send_paced(self) -> None:
        callers, period = self.callers, self.options.frame_ms / 1000
        step = period / len(callers)  # phases spread evenly: callers do not know of each other
        origin, k = time.perf_counter(), 0
        while self._sending:
            now = time.perf_counter()
            while (due := origin + k * step) <= now:
                callers[k % len(callers)].send(due)
                self._lags.append(now - due)
                k += 1
            await asyncio.sleep(max(0.001, due - now))

    async def _settle(self) -> None:
        for _ in range(_SETTLE_CHECKS):
            if self.result.sent == self.result.received:
                return
            await asyncio.sleep(0.01)
        counts = f"{self.result.sent} frames sent, {self.result.received} answered"
        self.result.problems.append(counts)


def main() -> None:
    """Run one measurement and print it."""
    parser = argparse.ArgumentParser(description="Load generator of the front-end benchmark.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", default="/v1/realtime?model=sim-duplex")
    parser.add_argument("--key", default="")
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--frame-ms", type=int, default=20)
    parser.add_argument("--mode", choices=("closed", "paced"), default="closed")
    parser.add_argument("--warmup", type=float, default=0.5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--server-pid", type=int, required=True)
    parser.add_argument("--core", type=int, help="the one core to run on")
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    run = Run(options)
    try:
        result = uvloop.run(run())
    except (OSError, TimeoutError) as error:
        result = run.result
        result.problems.insert(0, f"could not connect everyone: {error!r}")
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
