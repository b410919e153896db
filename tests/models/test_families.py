"""Which interaction models are known, and what is said about the others."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.tiny_audio import HEARING, write_minicpmo
from engine.models.audio_turns import AudioTurns
from engine.models.base import Cost
from engine.models.families import FAMILIES, family_of, unsupported
from engine.models.minicpmo import MAX_WORDS, MiniCpmO
from engine.models.registry import ModelSettings, build_model, llm_location
from engine.vllm_adapter.multimodal import ENCODERS


def settings(folder: Path, **more: object) -> ModelSettings:
    return ModelSettings(id=str(folder), vad="sim", stt="none", tts="sim", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", HEARING)
def test_a_model_that_hears_is_built_from_its_folder(name: str, tmp_path: Path) -> None:
    """The architecture in config.json decides; the spec says what an append may bring."""
    model = build_model(settings(HEARING[name](tmp_path)))
    assert isinstance(model, AudioTurns)
    assert model.spec.hears_audio
    assert not model.spec.decides_turns
    assert model.spec.prefill_per_tick > 15


def test_minicpmo_is_built_from_its_folder_and_hears_whole_seconds(tmp_path: Path) -> None:
    """Another tick is refused rather than overruled."""
    folder = write_minicpmo(tmp_path)
    model = build_model(settings(folder, tick_ms=1000))
    assert isinstance(model, MiniCpmO)
    assert model.spec.cost() == Cost(prefill=12, decode=20)
    assert model.spec.prefill_per_image == 0
    seeing = build_model(settings(folder, tick_ms=1000, image_tokens=256)).spec
    assert seeing.cost(images=1) == Cost(12 + 66 + MAX_WORDS, 20)
    with pytest.raises(ValueError, match="tick_ms must be 1000"):
        build_model(settings(folder))


@pytest.mark.parametrize("name", HEARING)
def test_a_model_sees_where_its_family_does_and_images_are_on(name: str, tmp_path: Path) -> None:
    """What an image costs at most is in the spec; 0 says that none is taken."""
    folder = HEARING[name](tmp_path)
    assert build_model(settings(folder)).spec.prefill_per_image == 0
    seeing = build_model(settings(folder, image_tokens=100)).spec
    assert seeing.prefill_per_image == (0 if "omni" not in name else 110)
    assert seeing.cost(images=2).prefill == seeing.cost().prefill + 2 * seeing.prefill_per_image


def test_an_unknown_model_that_hears_is_refused_with_a_list(tmp_path: Path) -> None:
    """It would answer, deaf, if it were taken for a text model."""
    config = {"architectures": ["NewOmniModel"], "audio_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ValueError, match="NewOmniModel is not supported; models that hear: MiniCPM"
    ):
        build_model(settings(tmp_path))


def test_text_models_are_none_of_this() -> None:
    """They have no audio part."""
    assert family_of({"architectures": ["LlamaForCausalLM"]}) is None
    assert unsupported({"architectures": ["LlamaForCausalLM"]}, "x") is None


def test_every_family_can_be_fed() -> None:
    """What the registry offers, the engine's adapter has fields for."""
    assert {family.architecture for family in FAMILIES} <= set(ENCODERS)


def test_the_synthetic_model_can_run_on_a_real_engine(tmp_path: Path) -> None:
    """Its ticks cost what a language model's tokens cost, or what the simulator says."""
    synthetic = ModelSettings(id="sim-duplex", tick_ms=200, prefill_per_tick=5, decode_per_tick=5)
    spec = build_model(synthetic).spec
    assert (spec.tick_ms, spec.prefill_per_tick, spec.decode_per_tick) == (200, 5, 5)
    assert llm_location(synthetic) is None
    assert llm_location(replace(synthetic, llm=str(tmp_path))) == str(tmp_path)
