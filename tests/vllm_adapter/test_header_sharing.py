"""Sessions with the same instructions hold them once, whatever becomes of the sessions."""

from collections.abc import Iterator

import pytest
from support.backend_driver import BackendDriver
from support.tiny_llama import write_tiny_llama
from vllm_adapter.recorded_logits import spread
from vllm_adapter.resident_kv import check_integrity

from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings
from engine.work import Drop

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

BLOCK = 32
SESSIONS = [f"session {number}" for number in range(16)]
HEADER = spread(1000, 1)
SHARED = len(HEADER) // BLOCK  # whole blocks of it
OWN = 200  # tokens of each session behind the header


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmBackend]:
    folder = write_tiny_llama(tmp_path_factory.mktemp("model"), layers=1)
    built = VllmBackend(
        VllmSettings(
            str(folder),
            "float32",
            max_model_len=1536,
            max_num_seqs=20,
            total_blocks=700,
            kv_cache_gib=0.2,
        )
    )
    yield built
    built.shutdown()


def behind(tokens: int) -> int:
    """Blocks of one session behind the shared ones."""
    return -(-(tokens - SHARED * BLOCK) // BLOCK)


def test_sixteen_sessions_hold_about_one_copy(backend: VllmBackend) -> None:
    """When they came in, after all were cut back, and after all were rewound; closing frees everything."""
    driver = BackendDriver(backend)

    def held() -> int:
        check_integrity(backend)
        return backend.snapshot().held_blocks

    for number, name in enumerate(SESSIONS):
        driver.decode(name, [*HEADER, *spread(OWN, number + 2)])
    length = len(HEADER) + OWN
    assert held() == SHARED + 16 * behind(length)
    start = (SHARED + 1) * BLOCK  # the header's last part is not a whole block: it stays too
    driver.step(drops=tuple(Drop(name, start, start + 3 * BLOCK) for name in SESSIONS))
    length -= 3 * BLOCK
    assert held() == SHARED + 16 * behind(length)
    for number, name in enumerate(SESSIONS):
        driver.decode(name, spread(40, number + 20), keep_tokens=len(HEADER) + 10)
    length = len(HEADER) + 10 + 40
    assert held() == SHARED + 16 * behind(length)
    newcomer = driver.decode("newcomer", [*HEADER, 5], 2)
    assert held() == SHARED + 16 * behind(length) + behind(len(HEADER) + 2)
    driver.close_all()
    assert held() == 0
    assert driver.decode("again", [*HEADER, 5], 2) == newcomer
    driver.close_all()
