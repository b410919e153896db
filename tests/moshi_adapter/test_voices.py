"""Which voices a deployment has: the files of a folder."""

from pathlib import Path

import pytest
from support.sim_engine import Recorder

from engine.backend import EngineUnavailable
from engine.clock import LoopClock
from engine.moshi_adapter.voices import voice_files
from server.assembly import build_engine
from server.config import ConfigError, load_config
from server.warmup import Muted


def test_voices_are_named_after_their_files(tmp_path: Path) -> None:
    """In order; what is no voice is passed over. No folder: no voices."""
    for name in ("NATM1.pt", "NATF0.pt", "anna.wav", "README.txt"):
        (tmp_path / name).touch()
    assert list(voice_files(str(tmp_path))) == ["NATF0", "NATM1", "anna"]
    assert voice_files("") == {}


def test_a_folder_that_is_of_no_use_is_named(tmp_path: Path) -> None:
    """Missing, empty, or ambiguous."""
    with pytest.raises(EngineUnavailable, match="no such folder: nowhere"):
        voice_files("nowhere")
    with pytest.raises(EngineUnavailable, match=r"holds no \.pt or \.wav file"):
        voice_files(str(tmp_path))
    (tmp_path / "a.pt").touch()
    (tmp_path / "a.wav").touch()
    with pytest.raises(EngineUnavailable, match="has two files for a"):
        voice_files(str(tmp_path))


async def test_the_default_voice_must_be_one_of_them(tmp_path: Path) -> None:
    """A mistake in the configuration, told before anything is loaded."""
    (tmp_path / "NATF0.pt").touch()
    overrides = {
        "model.id": "moshi-tiny-random",
        "model.tick_ms": 80,
        "engine.moshi.device": "cpu",
        "engine.moshi.prompted": True,
        "engine.moshi.voices": str(tmp_path),
    }
    with pytest.raises(ConfigError, match=r"model\.voice: must be one of NATF0"):
        build_engine(load_config(None, overrides), LoopClock(), Muted(Recorder()))
    with pytest.raises(ConfigError, match="voices: has no use without prompted"):
        load_config(None, {**overrides, "engine.moshi.prompted": False})
