"""What each session attends to, on a GPU: exactly its own tokens, after any editing of block tables."""

from collections.abc import Iterator

import pytest
from support.tiny_llama import write_canary
from vllm_adapter.test_canaries import (
    eyes,
    test_two_sessions_see_themselves_only,
    test_what_others_left_in_the_pool_is_never_seen,
)

from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings

# Imported to be run here, on the fixture below.
__all__ = [
    "eyes",
    "test_two_sessions_see_themselves_only",
    "test_what_others_left_in_the_pool_is_never_seen",
]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module", params=["float16", "bfloat16"])
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmBackend]:
    built = VllmBackend(
        VllmSettings(
            str(write_canary(tmp_path_factory.mktemp("model"))),
            request.param,
            max_model_len=512,
            max_num_seqs=8,
            total_blocks=32,
            kv_cache_gib=0.1,
        )
    )
    yield built
    built.shutdown()
