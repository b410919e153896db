"""Voxtral realtime on a GPU, tiny and random: 80 ms and a token per tick, windows of its own, a context that ends.

Its encoder keeps four positions a token in the paged cache, by an attention backend that vLLM derives from the one it
picks: here the GPU's.
"""

from collections.abc import Iterator

import pytest
from models_vllm.test_voxtral import (
    BLOCK,
    MAX_CONTEXT,
    SILENT_TICKS,
    TICKS,
    Plant,
    run,
    test_a_call_outlives_its_context,
    test_features_and_encodings_are_let_go_of,
)

from bench.tiny_audio import spread_weights, write_voxtral
from engine.models.registry import ModelSettings, build_model, is_mistral
from engine.models.voxtral import KvSpace, VoxtralRealtime
from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings

# Imported to be run here, on the fixture below.
__all__ = ["test_a_call_outlives_its_context", "test_features_and_encodings_are_let_go_of"]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.models,
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module", params=["float16", "bfloat16"])
def plant(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Plant]:
    folder = write_voxtral(tmp_path_factory.mktemp("model"))
    named = ModelSettings(
        id=str(folder), vad="sim", stt="none", tick_ms=80, kv_space=KvSpace(MAX_CONTEXT, BLOCK)
    )
    model = build_model(named)
    assert isinstance(model, VoxtralRealtime)
    settings = VllmSettings(
        str(folder),
        request.param,
        max_model_len=MAX_CONTEXT,
        total_blocks=200,
        kv_cache_gib=0.1,
        load_format="dummy",
        mistral=is_mistral(named),
    )
    with spread_weights():
        backend = VllmBackend(settings)
    yield Plant(backend, model)
    backend.shutdown()


def test_three_calls_write_a_token_a_tick(plant: Plant) -> None:
    """Past both windows, each within what is planned for it, and all is given back."""
    calls = run(plant, (1, 2, 3))
    assert all(len(call.written) == TICKS - SILENT_TICKS for call in calls)
    assert len({tuple(call.written) for call in calls}) == 3
