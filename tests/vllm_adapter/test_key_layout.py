"""The layout probe, on memory layouts made up here."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.vllm_adapter.key_layout import Digit, LayoutUnknown, find_strides, probe_layout  # noqa: E402  after the skip

BLOCK, HEADS, DIM = 32, 3, 16
SCRATCH = 2


class _Layer:
    """An attention layer as far as the probe looks at one; it is its own `impl`."""

    num_kv_heads = HEADS
    head_size = DIM

    def __init__(self, arrange: Any) -> None:
        self.impl = self
        self._arrange = arrange

    def do_kv_cache_update(
        self, layer: Any, key: Any, value: Any, kv_cache: Any, slots: Any
    ) -> None:
        block = int(slots[0]) // BLOCK
        kv_cache[block] = self._arrange(key, value).reshape(kv_cache[block].shape).to(kv_cache)


def _token_major(key: Any, value: Any) -> Any:
    return torch.stack([key, value])


def _head_major(key: Any, value: Any) -> Any:
    return torch.cat([key.permute(1, 0, 2), value.permute(1, 0, 2)], 2)


def _paired(key: Any, value: Any) -> Any:
    """Dimensions before tokens, tokens in pairs, values in between: as matrix units like it."""
    packed = [t.view(BLOCK // 2, 2, HEADS, DIM).permute(2, 3, 0, 1) for t in (key, value)]
    return torch.stack(packed, 2)


@pytest.mark.parametrize("arrange", [_token_major, _head_major, _paired])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_key_is_found(arrange: Any, dtype: str) -> None:
    """Reading memory at the probed positions gives the keys back, whatever the layout."""
    cache = torch.rand(4, 2 * BLOCK * HEADS * DIM).to(getattr(torch, dtype))
    before = cache.clone()
    index = probe_layout(_Layer(arrange), cache, SCRATCH, BLOCK)
    assert torch.equal(cache, before)
    keys = torch.rand(BLOCK, HEADS, DIM).to(cache)
    layer = _Layer(arrange)
    layer.do_kv_cache_update(layer, keys, keys + 1, cache, torch.arange(BLOCK))
    assert torch.equal(cache[0].flatten()[index], keys)


def test_lossy_storage_is_refused() -> None:
    """Keys that are not stored one by one cannot be moved; the scratch block is put back all the same."""
    cache = torch.rand(4, 2 * BLOCK * HEADS * DIM)
    before = cache.clone()
    with pytest.raises(LayoutUnknown):
        probe_layout(
            _Layer(
                lambda key, value: torch.stack([key.mean(2, keepdim=True).expand_as(key), value])
            ),
            cache,
            SCRATCH,
            BLOCK,
        )
    assert torch.equal(cache, before)


def test_strides_of_a_transposed_plane() -> None:
    """Token (fastest), dimension, head."""
    index = torch.arange(3 * 16 * 32).view(3, 16, 32).permute(2, 0, 1) + 7
    assert find_strides(index) == (Digit(1, 3, 1, 512), Digit(2, 16, 1, 32), Digit(0, 32, 1, 1))


def test_strides_of_packed_pairs() -> None:
    """Dimensions in pairs within a token, as matrix units like them: an index of two digits."""
    index = torch.arange(32 * 16).view(8, 32, 2).permute(1, 0, 2).reshape(32, 1, 16)
    assert find_strides(index) == (Digit(2, 8, 2, 64), Digit(0, 32, 1, 2), Digit(2, 2, 1, 1))


def test_places_without_a_rule_have_no_strides() -> None:
    """Shuffled, or each axis regular by itself but not together."""
    shuffled = torch.randperm(32, generator=torch.Generator().manual_seed(0)).view(32, 1, 1)
    assert find_strides(shuffled) is None
    index = torch.arange(16).view(4, 1, 4)
    bent = torch.where(index == 15, 99, index)
    assert find_strides(index) is not None
    assert find_strides(bent) is None
