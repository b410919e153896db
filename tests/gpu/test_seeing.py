"""A model that hears and sees, on a GPU: tiny and random Qwen2.5-Omni, images among the audio.

As in test_hearing.py what is said is not compared: what calls hold is, how it grows, and that other pixels give other
tokens.
"""

from collections.abc import Iterator

import pytest
from models_vllm import test_images as on_cpu
from models_vllm.test_images import (
    IMAGE_TOKENS,
    MAX_CONTEXT,
    Plant,
    converse,
    test_what_was_shown_shows_in_the_answer,
)

from bench.tiny_audio import spread_weights, write_qwen2_5_omni
from engine.models.audio_turns import AudioTurns
from engine.models.registry import ModelSettings, build_model
from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings

# Imported to be run here, on the fixture below.
__all__ = ["test_what_was_shown_shows_in_the_answer"]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.models,
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
]

TURNS = 6


@pytest.fixture(scope="module", params=["float16", "bfloat16"])
def plant(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Plant]:
    folder = write_qwen2_5_omni(tmp_path_factory.mktemp("model"))
    named = ModelSettings(
        id=str(folder), vad="sim", stt="none", tts="sim", image_tokens=IMAGE_TOKENS
    )
    model = build_model(named)
    assert isinstance(model, AudioTurns)
    settings = VllmSettings(
        str(folder),
        request.param,
        max_model_len=MAX_CONTEXT,
        total_blocks=70,
        kv_cache_gib=0.1,
        load_format="dummy",
        images=True,
    )
    with spread_weights():
        backend = VllmBackend(settings)
    yield Plant(backend, model)
    backend.shutdown()


def test_three_calls_with_images(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each append costs what it should, windows slide past images, and all is given back."""
    monkeypatch.setattr(on_cpu, "TURNS", TURNS)
    assert plant.backend.can_drop
    talks, stepper = converse(plant, (1, 2, 3))
    for talk in talks:
        assert len(talk.answers) == TURNS
        assert talk.lane.context.lost > 0
        stepper.close(talk.lane.id)
    stepper.run()
    assert plant.backend.snapshot().held_blocks == 0
