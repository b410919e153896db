"""Sixteen sessions with one header, on a GPU."""

from collections.abc import Iterator

import pytest
from gpu.successor import write_successor
from vllm_adapter.test_header_sharing import test_sixteen_sessions_hold_about_one_copy

from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings

__all__ = ["test_sixteen_sessions_hold_about_one_copy"]  # to be run here, on the fixture below

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
            str(write_successor(tmp_path_factory.mktemp("model"))),
            request.param,
            max_model_len=1536,
            max_num_seqs=20,
            total_blocks=700,
            kv_cache_gib=0.2,
        )
    )
    yield built
    built.shutdown()
