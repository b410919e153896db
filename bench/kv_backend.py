"""The production backend with a stopwatch in its model, and eyes on what the model computes.

Torch's own forward hooks, on the model that vLLM runs in this process: nothing of the engine is replaced.
"""

import logging
import time
from typing import Any

from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings
from server.logs import set_up


def quiet() -> None:
    """Let nothing but errors of the engine stand between a benchmark's own lines."""
    set_up("error")
    logging.captureWarnings(True)


class MeteredBackend(VllmBackend):
    """Also knows how long the model itself computed; the rest of a step is the host's work."""

    def __init__(self, settings: VllmSettings) -> None:
        super().__init__(settings)
        self.model_cpu_s = 0.0  # CPU time of this thread inside the model's forward pass, ever
        self._entered = 0.0
        model = self._core.model
        model.register_forward_pre_hook(self._enter)
        model.register_forward_hook(self._leave)

    def _enter(self, module: Any, inputs: Any) -> None:
        self._entered = time.thread_time()

    def _leave(self, module: Any, inputs: Any, output: Any) -> None:
        self.model_cpu_s += time.thread_time() - self._entered
