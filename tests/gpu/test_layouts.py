"""Where each attention backend of a GPU keeps its keys, and that they can be moved there."""

import gc
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from support.tiny_llama import write_tiny_llama
from vllm_adapter.recorded_logits import TOLERANCE, compare_drop

from engine.backend import EngineUnavailable
from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
]

VLLMS_CHOICE = "as vLLM picks"
ATTENTION = (VLLMS_CHOICE, "FLASH_ATTN", "TRITON_ATTN", "FLASHINFER", "FLEX_ATTENTION")


@dataclass
class Plant:
    backend: VllmBackend
    dtype: str


@pytest.fixture(scope="module", params=["float16", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=ATTENTION)
def plant(
    request: pytest.FixtureRequest, dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Plant]:
    """One engine per attention backend; one that this card or vLLM does not offer is skipped, with what vLLM says."""
    from vllm.engine import arg_utils

    folder = write_tiny_llama(tmp_path_factory.mktemp("model"), head_dim=64)
    settings = VllmSettings(
        str(folder),
        dtype,  # type: ignore[arg-type]  # one of the literals, from a parameter
        max_model_len=512,
        max_num_seqs=4,
        total_blocks=48,
        kv_cache_gib=0.1,
    )
    reasons: list[str] = []
    log = logging.getLogger("engine.vllm_adapter.window")
    with pytest.MonkeyPatch.context() as patch:
        if request.param != VLLMS_CHOICE:
            forced: Any = partial(arg_utils.EngineArgs, attention_backend=request.param)
            patch.setattr(arg_utils, "EngineArgs", forced)
        patch.setattr(log, "warning", lambda text, *args: reasons.append(text % args))
        try:
            backend = VllmBackend(settings)
        except EngineUnavailable as reason:
            if request.param == VLLMS_CHOICE:
                raise
            pytest.skip(f"{request.param}: {reason}")
    try:
        if not backend.can_drop:
            assert request.param != VLLMS_CHOICE, reasons
            pytest.skip(f"{request.param}: {reasons}")
        yield Plant(backend, dtype)
    finally:
        backend.shutdown()
        gc.collect()


def test_memory_read_where_the_probe_says_holds_what_was_written(plant: Plant) -> None:
    """Keys written by the backend's own operation, read back from raw memory, bit for bit."""
    import torch

    core = plant.backend._core
    worker = core._core.model_executor.driver_worker.worker
    block = core.take_block()
    try:
        for found in worker._metronome_keys._found:
            module, cache = found.layer.module, found.layer.kv_cache
            assert cache.device.type == core._runner.device.type
            shape = core.block_size, module.num_kv_heads, module.head_size
            keys = torch.rand(shape, device=cache.device).to(cache.dtype)
            slots = torch.arange(core.block_size, device=cache.device) + block * core.block_size
            module.impl.do_kv_cache_update(module, keys, keys + 1, cache, slots)
            pairs = torch.stack([found.rotation.first, found.rotation.second])
            assert torch.equal(cache[block].flatten()[found.index], keys[..., pairs])
    finally:
        core.give_block(block)


def test_keys_are_turned_where_they_lie(plant: Plant) -> None:
    """Each band is one strided view: nothing is gathered element by element."""
    worker = plant.backend._core._core.model_executor.driver_worker.worker
    assert all(group.band.is_strided for group in worker._metronome_keys._groups)


def test_a_drop_is_exact(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits are those of a fresh prefill of what is left; with keys left where they were they are far off."""
    moved, unmoved = compare_drop(plant.backend, monkeypatch)
    assert moved < TOLERANCE[plant.dtype]
    assert unmoved > 4 * TOLERANCE["bfloat16"]
