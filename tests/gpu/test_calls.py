"""Calls of functions on a GPU: a resident context held to a schema, and let go again, also with captured graphs."""

from collections.abc import Iterator

import pytest
from vllm_adapter import test_schema as schema

from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings

# To be run here, on the fixture below.
folder = schema.folder
test_a_resident_context_is_held = schema.test_a_resident_context_is_held_for_as_long_as_is_asked
test_a_schema_that_is_none = schema.test_a_schema_that_is_none_ends_that_session_only

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # what CUDA's libraries warn of is not known here
]


@pytest.fixture(scope="module", params=[True, False], ids=["eager", "compiled"])
def backend(request: pytest.FixtureRequest, folder: object) -> Iterator[VllmBackend]:
    built = VllmBackend(
        VllmSettings(
            str(folder),
            "bfloat16",
            max_model_len=512,
            max_num_seqs=4,
            kv_cache_gib=0.1,
            enforce_eager=request.param,
        )
    )
    yield built
    built.shutdown()
