"""Engines on one card: a new one after another died, and several at once."""

from pathlib import Path

import pytest
from gpu.successor import write_successor
from support.backend_driver import BackendDriver
from vllm_adapter.test_restart import test_a_new_engine_on_a_new_thread_says_what_the_dead_one_said

from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings

__all__ = ["test_a_new_engine_on_a_new_thread_says_what_the_dead_one_said"]  # to be run here

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
]


def test_small_engines_share_a_card(tmp_path: Path) -> None:
    """A pool of a given size starts however much of the card is in use, and none hears another."""
    settings = VllmSettings(
        str(write_successor(tmp_path)), "bfloat16", max_model_len=256, kv_cache_gib=0.05
    )
    backends = [VllmBackend(settings) for _ in range(3)]
    drivers = [BackendDriver(backend) for backend in backends]
    prompts = [tuple(range(20 * k, 20 * k + 70)) for k in range(3)]
    for driver, prompt in zip(drivers, prompts, strict=True):
        driver.decode("a", prompt, 2)
    said = [driver.decode("a", (), 3) for driver in drivers]
    for driver, prompt, after in zip(drivers, prompts, said, strict=True):
        assert driver.decode("b", prompt, 5)[2:] == after
    assert len(set(said)) == 3
    for backend in backends:
        backend.shutdown()
