"""Drops and rewinds against fresh prefills, on a GPU: logits on forced tokens, within the rounding of a half float."""

from collections.abc import Iterator

import pytest
from support.tiny_llama import write_tiny_llama
from vllm_adapter.recorded_logits import TOLERANCE
from vllm_adapter.test_exactness import (
    driver,
    test_a_drop_equals_a_fresh_prefill,
    test_a_rewind_after_a_drop,
    test_a_rewind_equals_a_fresh_prefill,
    test_drops_of_several_sessions_in_one_step,
    test_repeated_drops_stay_exact,
    test_shared_blocks_are_copied_before_they_move,
    test_the_drop_mattered,
    test_unaligned_drops_are_rounded_inward,
)

from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings

# Imported to be run here, on the fixture below.
__all__ = [
    "driver",
    "test_a_drop_equals_a_fresh_prefill",
    "test_a_rewind_after_a_drop",
    "test_a_rewind_equals_a_fresh_prefill",
    "test_drops_of_several_sessions_in_one_step",
    "test_repeated_drops_stay_exact",
    "test_shared_blocks_are_copied_before_they_move",
    "test_the_drop_mattered",
    "test_unaligned_drops_are_rounded_inward",
]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module", params=["float16", "bfloat16"])
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[VllmBackend, float]]:
    """Not in float32: there vLLM falls back to an attention kernel that computes in TF32."""
    dtype = request.param
    folder = write_tiny_llama(tmp_path_factory.mktemp("model"), layers=1)
    backend = VllmBackend(
        VllmSettings(str(folder), dtype, max_model_len=1024, total_blocks=96, kv_cache_gib=0.1)
    )
    yield backend, TOLERANCE[dtype]
    backend.shutdown()
