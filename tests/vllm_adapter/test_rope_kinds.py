"""A drop through a real engine, for every way of turning keys: logits are those of a fresh prefill of what is left.

One layer, so that a key depends on its token and its position alone, and nothing excuses a difference.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.tiny_rope import ROPES, write_tiny_rope
from vllm_adapter.recorded_logits import TOLERANCE, compare_drop

from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

HALF = ("neox", "gptj")  # kinds that are met in float16 too


@pytest.fixture(scope="module", params=ROPES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_rope(kind, tmp_path_factory.mktemp("model"))


@contextmanager
def engine(model: Path, dtype: str) -> Iterator[VllmBackend]:
    """One at a time: built, used, freed."""
    settings = VllmSettings(
        str(model),
        dtype,  # type: ignore[arg-type]  # one of the literals, from a parameter
        max_model_len=512,
        max_num_seqs=4,
        total_blocks=48,
        kv_cache_gib=0.1,
    )
    backend = VllmBackend(settings)
    try:
        yield backend
    finally:
        backend.shutdown()
        gc.collect()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_drop_is_exact(
    kind: str, model: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within rounding; and the comparison would notice keys that had not been moved."""
    if dtype == "float16" and kind not in HALF:
        pytest.skip("two kinds are enough to meet float16")
    with engine(model, dtype) as backend:
        moved, unmoved = compare_drop(backend, monkeypatch)
    assert moved < TOLERANCE[dtype]
    assert unmoved > 4 * TOLERANCE["bfloat16"]
