"""Checkpoints in a folder: which files, what shape, and that they give the model they were written from."""

import json
from pathlib import Path

import pytest
from moshi_adapter.streams import alone, assert_same, noise, tick, tiny
from safetensors.torch import save_file

from engine.backend import EngineUnavailable
from engine.moshi_adapter import weights
from engine.moshi_adapter.backend import MoshiBackend
from engine.moshi_adapter.checkpoint import Checkpoint
from engine.moshi_adapter.settings import TINY_RANDOM, MoshiSettings

MIMI = "tokenizer-e351c8d8-checkpoint125.safetensors"


def write_tiny(folder: Path) -> Path:
    """The tiny random model as a checkpoint, its codec's shape beside it."""
    models = weights.load_models(MoshiSettings(TINY_RANDOM, device="cpu"))
    save_file(models.lm.state_dict(), folder / "model.safetensors")
    save_file(models.encoder.state_dict(), folder / MIMI)
    (folder / "mimi.json").write_text(json.dumps(weights._TINY_MIMI))
    shape = {**weights._TINY_LM, "model_type": "moshi", "mimi_config_name": "mimi.json"}
    (folder / "config.json").write_text(json.dumps(shape))
    return folder


@pytest.mark.models
@pytest.mark.slow
def test_a_folder_gives_the_model_it_was_written_from(tmp_path: Path) -> None:
    """Loaded from files, the tiny model says what it says when it is built on the spot."""
    folder = write_tiny(tmp_path)
    greedy = {"temperature": 0.0, "text_temperature": 0.0}
    loaded = MoshiBackend(
        MoshiSettings(str(folder), slots=1, device="cpu", dtype="float32", **greedy)  # type: ignore[arg-type]
    )
    frames, heard = noise(1, 12), type(alone([]))()
    for pcm in frames:
        heard.take(tick(loaded, {"a": pcm})["a"])
    assert_same(heard, alone(frames))


@pytest.mark.models
@pytest.mark.slow
def test_the_ring_may_be_shortened(tmp_path: Path) -> None:
    """`context_frames` is the length of the ring, in the pool's numbers too; by default it is the model's own."""
    settings = MoshiSettings(TINY_RANDOM, slots=1, device="cpu", context_frames=8)
    assert MoshiBackend(settings).snapshot().block_size == 8
    assert tiny(slots=1).snapshot().block_size == 24


def test_a_folder_without_a_config_has_the_first_releases_shape(tmp_path: Path) -> None:
    """As have checkpoints whose config.json holds no shape, such as PersonaPlex."""
    assert Checkpoint(str(tmp_path)).lm_config is None
    (tmp_path / "config.json").write_text('{"model_type": "personaplex", "version": "7b-v1"}')
    checkpoint = Checkpoint(str(tmp_path))
    assert (checkpoint.lm_config, checkpoint.mimi_config) == (None, None)


def test_a_config_may_rename_files(tmp_path: Path) -> None:
    """Its names beat the usual ones; what is not about the shape is not passed on as such."""
    config = {"dim": 64, "moshi_name": "lm.safetensors", "model_type": "moshi", "lm_gen_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in ("lm.safetensors", MIMI):
        (tmp_path / name).touch()
    checkpoint = Checkpoint(str(tmp_path))
    assert checkpoint.lm_config == {"dim": 64}
    assert checkpoint.file("lm") == tmp_path / "lm.safetensors"
    assert checkpoint.file("mimi") == tmp_path / MIMI


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """One line that says which, and where it was looked for."""
    with pytest.raises(EngineUnavailable, match=rf"{tmp_path} holds no tokenizer_spm_32k_3\.model"):
        Checkpoint(str(tmp_path)).file("tokenizer")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ('{"model_type": "hibiki"}', "is a 'hibiki' model"),
        ('{"lora_name": "lora.safetensors"}', "'lora_name' in config.json is not supported"),
        ('{"conditioners": {"a": 1}}', "'conditioners' in config.json is not supported"),
        ("not json", "config.json is not JSON"),
        ("[]", "config.json holds no object"),
    ],
)
def test_other_models_are_refused(tmp_path: Path, config: str, why: str) -> None:
    """Translation, speech recognition and adapters are not full-duplex models of this kind."""
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(EngineUnavailable, match=why):
        Checkpoint(str(tmp_path))
