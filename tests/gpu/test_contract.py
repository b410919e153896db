"""The contract of every backend, on a GPU: in both half precisions, and with captured graphs."""

from collections.abc import Iterator

import pytest
from contract import test_backend_contract as contract
from gpu.successor import write_successor

from engine.backend import Backend
from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings

# To be run here, on the fixture below, in this order: the last one shuts it down.
TestAppend = contract.TestAppend
TestIsolation = contract.TestIsolation
TestStop = contract.TestStop
TestRewind = contract.TestRewind
TestDrop = contract.TestDrop
TestClose = contract.TestClose
TestRefusal = contract.TestRefusal
TestLifecycle = contract.TestLifecycle
driver = contract.driver

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # what CUDA's libraries warn of is not known here
]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("float16", True), id="float16"),
        pytest.param(("bfloat16", True), id="bfloat16"),
        pytest.param(("bfloat16", False), id="bfloat16 compiled"),
    ],
)
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Backend]:
    dtype, eager = request.param
    built = VllmBackend(
        VllmSettings(
            str(write_successor(tmp_path_factory.mktemp("model"))),
            dtype,
            max_model_len=contract.MAX_CONTEXT,
            max_num_seqs=8,
            total_blocks=128,
            kv_cache_gib=0.4,
            enforce_eager=eager,
        )
    )
    assert built.can_drop
    yield built
    built.shutdown()
