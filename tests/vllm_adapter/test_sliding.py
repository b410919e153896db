"""vLLM's own sliding window: blocks behind it are gone, so rewinding means computing again."""

import logging
from collections.abc import Iterator

import pytest
from support.backend_driver import BackendDriver
from support.tiny_llama import write_tiny_llama

from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings

pytestmark = pytest.mark.vllm

PROMPT = tuple(10 + i * 13 % 900 for i in range(300))


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmBackend]:
    folder = write_tiny_llama(tmp_path_factory.mktemp("model"), layers=2)
    log = logging.getLogger("engine.vllm_adapter.window")
    records: list[logging.LogRecord] = []
    log.addFilter(lambda record: not records.append(record))  # type: ignore[func-returns-value]
    built = VllmBackend(
        VllmSettings(
            str(folder),
            "float32",
            max_model_len=512,
            total_blocks=64,
            kv_cache_gib=0.1,
            sliding_window=64,
        )
    )
    assert "not every layer is plain full attention" in records[0].getMessage()
    yield built
    built.shutdown()


@pytest.fixture
def driver(backend: VllmBackend) -> Iterator[BackendDriver]:
    driver = BackendDriver(backend)
    yield driver
    driver.close_all()
    assert backend.snapshot().held_blocks == 0


def test_drops_are_not_offered(backend: VllmBackend) -> None:
    """The reason is in the log."""
    assert not backend.can_drop


def test_blocks_behind_the_window_are_freed(driver: BackendDriver) -> None:
    """A long session holds about a window's worth of blocks."""
    driver.decode("a", PROMPT, 1)
    driver.decode("a", (), 3)
    assert driver.backend.snapshot().held_blocks <= 4


@pytest.mark.parametrize("keep", [10, 250, 299])
def test_a_rewind_equals_a_fresh_prefill(driver: BackendDriver, keep: int) -> None:
    """The blocks it needs may be gone; the session is computed again from its tokens."""
    driver.decode("a", PROMPT, 4)
    again = driver.decode("a", (7, 8, 9), 4, keep_tokens=keep)
    assert again == driver.decode("b", (*PROMPT[:keep], 7, 8, 9), 4)
    assert driver.backend.snapshot().sessions == 2
