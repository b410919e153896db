"""The real server for tests: in this process on a free port, or as a child process. Always the simulated engine."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server.config import load_config
from server.listening import bound_socket
from server.runtime import Runtime, build

SIM: dict[str, Any] = {
    "server.port": 0,
    "model.id": "sim",
    "engine.max_sessions": 8,
    "engine.lead_s": 60.0,  # a reply is given at once, not at the pace of its playback
    "engine.sim.fixed_s": 0.0,
    "engine.sim.session_s": 0.0,
    "engine.sim.token_s": 0.0,
    "engine.sim.resident_s": 0.0,
    "log.level": "info",
}
DUPLEX: dict[str, Any] = {
    **SIM,
    "model.id": "sim-duplex",
    "model.tick_ms": 20,
    "model.decode_per_tick": 1,
}


@dataclass(frozen=True, slots=True)
class Running:
    """A server under test."""

    port: int
    runtime: Runtime
    scheme: str = ""  # "s" with TLS

    @property
    def http(self) -> str:
        return f"http{self.scheme}://127.0.0.1:{self.port}"

    @property
    def ws(self) -> str:
        return f"ws{self.scheme}://127.0.0.1:{self.port}/v1/realtime"

    @property
    def held_blocks(self) -> int:
        """KV blocks that anybody holds."""
        kv = self.runtime.parts.engine.snapshot().kv
        assert kv is not None
        return kv.held_blocks

    async def settled(self) -> None:
        """Return once no session, lease or KV block is held."""
        parts = self.runtime.parts
        while parts.engine.snapshot().sessions or parts.admission.active or self.held_blocks:  # noqa: ASYNC110  # three owners, no common event
            await asyncio.sleep(0.005)


@asynccontextmanager
async def run_server(
    overrides: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[Running]:
    """Run the server in this process until the block is left; it is warm when the block is entered.

    `more` maps keys to values with `__` for the dots: `run_server(server__drain_s=1.0)`.
    """
    dotted = {key.replace("__", "."): value for key, value in more.items()}
    config = load_config(None, {**(SIM if overrides is None else overrides), **dotted})
    runtime = await build(config)
    sock = bound_socket(config.server)
    port = sock.getsockname()[1]
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        serving = group.create_task(runtime.serve(sock))
        await runtime.warm.wait()
        try:
            yield Running(port, runtime, "s" if config.server.ssl_certfile else "")
        finally:
            runtime.request_exit()
            await serving


@dataclass(slots=True)
class Child:
    """A `metronome serve` process."""

    process: asyncio.subprocess.Process
    port: int
    lines: list[str] = field(default_factory=list)  # of its log, so far
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    async def keep(self, stream: asyncio.StreamReader) -> None:
        """Read its log to the end."""
        async for line in stream:
            self.lines.append(line.decode())
            self._more.set()

    async def says(self, words: str) -> None:
        """Return once `words` are in its log."""
        while not any(words in line for line in self.lines):
            self._more.clear()
            await self._more.wait()

    async def ended(self) -> int:
        """Its exit status."""
        return await self.process.wait()


@asynccontextmanager
async def run_child(folder: Path, **more: Any) -> AsyncIterator[Child]:
    """Run `metronome serve` with a configuration written to `folder`; ready when the block is entered."""
    config = folder / "child.toml"
    config.write_text(_toml({**SIM, **{k.replace("__", "."): v for k, v in more.items()}}))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "server.cli", "serve", "--config", str(config)),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    child = Child(process, 0)
    try:
        while "is listening on" not in (line := (await process.stderr.readline()).decode()):
            assert line, f"the server ended: {child.lines}"
            child.lines.append(line)
        child.port = int(line.split("/v1/realtime")[0].rsplit(":", 1)[1])
        reading = asyncio.create_task(child.keep(process.stderr))
        yield child
        await process.wait()
        await reading
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _toml(dotted: dict[str, Any]) -> str:
    """TOML with dotted keys, which need no tables."""
    text = {bool: lambda v: str(v).lower(), str: lambda v: f'"{v}"'}
    return "".join(
        f"{key} = {text.get(type(value), str)(value)}\n" for key, value in dotted.items()
    )
