"""A new vLLM in the process of one that died: what `engine.on_death = "restart"` relies on."""

import asyncio
from pathlib import Path

import pytest
from support.tiny_llama import write_tiny_llama

from engine.backend import EngineDead
from engine.executor import ThreadExecutor
from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings
from engine.work import Append, TickBatch

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

PROMPT = tuple(range(20, 90))


async def _decode(executor: ThreadExecutor) -> list[int]:
    tokens: list[int] = []
    batch = TickBatch((Append("a", 0, PROMPT, 6, 0.0),))
    while True:
        result = await executor.step(batch)
        tokens += [token for chunk in result.chunks for token in chunk.token_ids]
        if any(chunk.finished for chunk in result.chunks):
            return tokens
        batch = TickBatch()


def test_a_new_engine_on_a_new_thread_says_what_the_dead_one_said(tmp_path: Path) -> None:
    """After an error in a step, which leaves vLLM's own state undefined."""
    folder = write_tiny_llama(tmp_path, layers=1)
    settings = VllmSettings(str(folder), "float32", max_model_len=256, kv_cache_gib=0.05)

    async def main() -> None:
        executor = ThreadExecutor(lambda: VllmBackend(settings))
        empty = await executor.start()
        said = await _decode(executor)

        def fail() -> None:
            raise RuntimeError("lost the device")

        executor._backend._core._core.step = fail  # type: ignore[union-attr,attr-defined]
        with pytest.raises(EngineDead, match="lost the device"):
            await _decode(executor)
        await executor.shutdown()
        assert await executor.start() == empty
        assert await _decode(executor) == said
        await executor.shutdown()

    asyncio.run(main())
