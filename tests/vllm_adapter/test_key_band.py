"""Turning keys in memory made up here: every way of doing it gives the same, and touches nothing else."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.vllm_adapter.key_band import KeyBand, equally_spaced  # noqa: E402  after the skip

LAYERS, BLOCKS, TOKENS, HEADS, DIM = 3, 6, 4, 2, 8
ELEMENTS = 2 * TOKENS * HEADS * DIM  # of a block: keys and values


def layout(kind: str) -> Any:
    """Positions of keys in a block, int64 (tokens, heads, 2, pairs), NeoX style."""
    plain = torch.arange(TOKENS * HEADS * DIM)
    if kind == "transposed":  # head, dimension, token
        index = plain.view(HEADS, DIM, TOKENS).permute(2, 0, 1)
    elif kind == "packed":  # head, pair of dimensions, token, which of the pair
        index = (
            plain.view(HEADS, DIM // 2, TOKENS, 2).permute(2, 0, 1, 3).reshape(TOKENS, HEADS, DIM)
        )
    else:  # no rule at all
        shuffled = torch.randperm(len(plain), generator=torch.Generator().manual_seed(1))
        index = shuffled.view(TOKENS, HEADS, DIM)
    return (index + 5).view(TOKENS, HEADS, 2, DIM // 2)


def memory(dtype: Any) -> list[Any]:
    """The layers' memory in one allocation."""
    whole = torch.rand(LAYERS, BLOCKS, ELEMENTS, generator=torch.Generator().manual_seed(2))
    return list(whole.to(dtype).unbind(0))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("kind", ["transposed", "packed", "irregular"])
def test_keys_are_turned_in_every_layer(kind: str, at_once: bool, dtype: str) -> None:
    """In place, block by block; gathered; or by index where there are no strides."""
    caches = memory(getattr(torch, dtype))
    expected = [cache.clone() for cache in caches]
    index = layout(kind)
    angles = torch.rand(3, TOKENS, DIM // 2, generator=torch.Generator().manual_seed(3))
    cos, sin = angles.cos(), angles.sin()
    blocks = [4, 1, 2]
    for cache in expected:
        for row, block in enumerate(blocks):
            keys = cache[block][index].float()  # tokens, heads, 2, pairs
            c, s = cos[row].unsqueeze(1), sin[row].unsqueeze(1)
            a, b = keys[:, :, 0], keys[:, :, 1]
            cache[block, index[:, :, 0]] = (a * c - b * s).to(cache.dtype)
            cache[block, index[:, :, 1]] = (b * c + a * s).to(cache.dtype)
    band = KeyBand(caches, index, at_once)
    assert band.is_strided == (kind != "irregular")
    band.turn(blocks, (cos, sin))
    for cache, wanted in zip(caches, expected, strict=True):
        torch.testing.assert_close(cache, wanted)


def test_layers_far_apart_are_several_bands() -> None:
    """One view reaches layers at equal distances in one allocation."""
    pool, other = torch.zeros(10, BLOCKS, ELEMENTS), torch.zeros(1, BLOCKS, ELEMENTS)
    layers = [pool[number] for number in (4, 0, 1, 2, 7)] + [other[0]]
    runs = sorted(sorted(run) for run in equally_spaced(layers))
    assert runs == [[0, 4], [1, 2, 3], [5]]
