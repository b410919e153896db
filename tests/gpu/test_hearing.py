"""A model that hears, on a GPU: tiny and random Qwen2-Audio, its features moved to the device and encoded there.

What three calls answer is not compared with what each answers alone: in half precision that is for the dice. What they
hold, how it grows, and that other audio gives other tokens is compared as on a CPU.
"""

from collections.abc import Iterator

import pytest
import torch
from models_vllm import test_hearing as on_cpu
from models_vllm.test_hearing import (
    MAX_CONTEXT,
    SECONDS,
    Plant,
    converse,
    short_and_padded,
    test_a_call_that_loses_its_place_ends_with_an_error,
    test_audio_past_the_context_is_refused_and_no_one_else_notices,
    test_features_that_do_not_fit_are_refused,
    test_what_was_said_shows_in_the_answer,
)

from bench.tiny_audio import spread_weights, write_qwen2_audio
from engine.models.audio_chat import AudioChatMl
from engine.models.families import family_of, read_config
from engine.models.registry import ModelSettings, build_model
from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings

# Imported to be run here, on the fixture below.
__all__ = [
    "test_a_call_that_loses_its_place_ends_with_an_error",
    "test_audio_past_the_context_is_refused_and_no_one_else_notices",
    "test_features_that_do_not_fit_are_refused",
    "test_what_was_said_shows_in_the_answer",
]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.models,
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
]

TURNS = 5  # of three seconds and an answer: 20 ticks
TOLERANCE = {"float16": 1e-2, "bfloat16": 8e-2}  # of an embedding, in units of the largest


@pytest.fixture(scope="module", params=["float16", "bfloat16"])
def plant(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Plant]:
    folder = write_qwen2_audio(tmp_path_factory.mktemp("model"))
    config = read_config(folder)
    family = family_of(config)
    assert family is not None
    assert family.format is not None
    chat = AudioChatMl(folder)
    settings = VllmSettings(
        str(folder),
        request.param,
        max_model_len=MAX_CONTEXT,
        total_blocks=52,
        kv_cache_gib=0.1,
        load_format="dummy",
    )
    with spread_weights():
        backend = VllmBackend(settings)
    model = build_model(ModelSettings(id=str(folder), vad="sim", stt="none", tts="sim"))
    yield Plant(backend, chat, family.format(config, chat.control), model.spec)
    backend.shutdown()


def test_three_calls_of_twenty_ticks(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each second costs what it should, windows move, features are pruned after every tick, and all is given back."""
    monkeypatch.setattr(on_cpu, "TURNS", TURNS)
    assert plant.backend.can_drop
    talks, stepper = converse(plant, (1, 2, 3))
    cost = plant.audio.cost(100)
    for talk in talks:
        assert len(talk.answers) == TURNS
        assert talk.lane.context.lost > 0
        quiet = [grown for tick, grown in enumerate(talk.grown) if tick % SECONDS]
        assert set(quiet) == {cost}
        stepper.close(talk.lane.id)
    stepper.run()
    assert plant.backend.snapshot().held_blocks == 0


def test_short_audio_is_encoded_as_if_it_were_padded(plant: Plant) -> None:
    """Qwen2-Audio's stock encoder takes 30 s only; ours gives the same for what there is, within rounding."""
    dtype = str(plant.backend._core._runner.dtype).removeprefix("torch.")
    for mine, stock in short_and_padded(plant):
        assert mine.shape == stock.shape
        assert mine.device == stock.device == torch.device(plant.backend._core._runner.device)
        largest = float(stock.float().abs().max())
        assert float((mine.float() - stock.float()).abs().max()) < TOLERANCE[dtype] * largest
