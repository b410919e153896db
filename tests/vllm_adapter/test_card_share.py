"""How much of a card must be free before an engine starts on it."""

import pytest

from engine.vllm_adapter.compat import _HARDLY_ANY, _share_of_the_card
from engine.vllm_adapter.settings import VllmSettings


@pytest.mark.parametrize(("pool_gib", "share"), [(0.0, 0.8), (1.0, _HARDLY_ANY)])
def test_a_pool_of_a_given_size_asks_for_no_share(pool_gib: float, share: float) -> None:
    """vLLM would refuse to start a pool of 1 GiB on a card that is a fifth full; without a size the share is it."""
    settings = VllmSettings("owner/name", kv_cache_gib=pool_gib, gpu_memory_utilization=0.8)
    assert _share_of_the_card(settings) == share
