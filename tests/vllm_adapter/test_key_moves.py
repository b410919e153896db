"""Whose keys can be moved: several kinds of layers, layers that do not turn, quantised memory, every worker."""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.tiny_llama import write_tiny_llama
from support.tiny_rope import write_tiny_cohere2, write_tiny_gemma
from vllm_adapter.recorded_logits import TOLERANCE, Logits, compare_drop, spread

from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@contextmanager
def engine(model: Path) -> Iterator[VllmBackend]:
    """One at a time: built, used, freed."""
    settings = VllmSettings(
        str(model), "float32", max_model_len=512, max_num_seqs=4, total_blocks=48, kv_cache_gib=0.1
    )
    backend = VllmBackend(settings)
    try:
        yield backend
    finally:
        backend.shutdown()
        gc.collect()


@pytest.mark.parametrize("attends", [0, 1], ids=["sliding layer", "full layer"])
def test_sliding_and_full_layers_are_cut_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attends: int
) -> None:
    """They share one block table, each turns its keys in its own way, and a drop is exact in both."""
    with engine(write_tiny_gemma(tmp_path, attends)) as backend:
        assert backend.can_drop
        moved, unmoved = compare_drop(backend, monkeypatch)
    assert moved < TOLERANCE["float32"]
    assert unmoved > 100 * TOLERANCE["float32"]


def test_a_layer_that_does_not_turn_its_keys_is_found_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has a rotary embedding like its neighbours; only the rehearsal shows that it is passed over."""
    caplog.set_level(logging.WARNING, "engine.vllm_adapter.window")
    with engine(write_tiny_cohere2(tmp_path)) as backend:
        assert not backend.can_drop
    assert "not where a move put them" in caplog.text


def test_quantised_keys_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 8 bits every move would cost precision; the engine runs, and long sessions are re-prefilled."""
    from vllm.engine import arg_utils

    caplog.set_level(logging.WARNING, "engine.vllm_adapter.window")
    quantised: Any = partial(arg_utils.EngineArgs, kv_cache_dtype="fp8")
    monkeypatch.setattr(arg_utils, "EngineArgs", quantised)
    with engine(write_tiny_llama(tmp_path)) as backend:
        assert not backend.can_drop
        assert Logits(backend, monkeypatch).decode("a", spread(100, 1), 3)
    assert "keeps its keys quantised" in caplog.text


def test_every_worker_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move goes out by vLLM's collective call; if one worker cannot follow, nobody moves."""
    from engine.vllm_adapter.compat import VllmCore
    from engine.vllm_adapter.window import KeyShift

    with engine(write_tiny_llama(tmp_path)) as backend:
        core = backend._core
        ask = VllmCore.on_workers
        monkeypatch.setattr(
            VllmCore,
            "on_workers",
            lambda self, method, *args: [*ask(self, method, *args), "the second GPU cannot"],
        )
        assert KeyShift.create(core) is None
        assert core.free_blocks == core.total_blocks
