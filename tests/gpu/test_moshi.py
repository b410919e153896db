"""Moshi's slots on a GPU, where every batch size has captured graphs. The model is tiny and random."""

import numpy as np
import pytest
import torch
from moshi_adapter.streams import (
    Heard,
    append,
    assert_same,
    begin,
    noise,
    prompt,
    prompted,
    tick,
    tiny,
)

from engine.work import TickBatch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.models,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
]


def test_neighbours_change_nothing() -> None:
    """A stream that joins late and skips ticks gives what it gives with three silent rows beside it."""
    stream, crowd = noise(1, 40), noise(2, 80)
    alone, among = Heard(), Heard()
    backend = tiny(
        4, (), "cuda"
    )  # one batch size: other sizes use other kernels, which round otherwise
    for pcm in stream:
        alone.take(tick(backend, {"me": pcm})["me"])
    tick(backend, {}, closes=("me",))
    tick(backend, {"a": crowd[0], "b": crowd[1]})
    rest = iter(stream)
    for k in range(80):
        if k % 2 == 0:
            chunks = tick(backend, {"a": crowd[k], "me": next(rest)})
            among.take(chunks["me"])
        else:
            tick(backend, {"a": crowd[k], "b": crowd[-k]})
    assert_same(among, alone)


def test_every_batch_size_runs() -> None:
    """Growing to eight rows and shrinking to one, the stream in row 0 goes on sounding."""
    backend, heard = tiny(8, device="cuda"), Heard()
    names: list[str] = []
    for k, pcm in enumerate(noise(3, 32)):
        grows = k < 16
        if grows and k % 2:
            names.append(f"n{k}")
        leaving = () if grows or not names else (names.pop(),)
        chunks = tick(backend, {"me": pcm, **dict.fromkeys(names[:7], pcm)}, leaving)
        heard.take(chunks["me"])
    assert len(heard.sound) == 31
    assert np.abs(heard.samples).max() > 100


def test_a_prompt_beside_others() -> None:
    """It takes its stretches outside the captured graphs; the call is as alone, and its neighbour has every tick."""
    stream, crowd = noise(1, 30), noise(2, 60)
    backend = prompted(4, buckets=(), device="cuda")
    alone, among = Heard(), Heard()
    begin(backend, prompt("me", voice=None))
    for pcm in stream:
        alone.take(tick(backend, {"me": pcm})["me"])
    tick(backend, {"a": crowd[0]}, closes=("me",))
    order, rest, joined = [prompt("me", voice=None)], iter(stream), False
    for pcm in crowd[1:]:
        frames = {"a": pcm, **({"me": next(rest, b"")} if joined else {})}
        live = [append(name, sound) for name, sound in frames.items() if sound]
        result = backend.step(TickBatch((*live, *order)))
        order = []
        chunks = {chunk.session_id: chunk for chunk in result.chunks}
        assert chunks["a"].pcm
        if "me" in chunks and joined:
            among.take(chunks["me"])
        joined = joined or "me" in chunks
    assert_same(among, alone)


def test_another_card_than_the_first() -> None:
    """Graphs are captured on the card that the model is on: a replay of none would give the same frame for ever."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    first, second = tiny(1, device="cuda:0"), tiny(1, device="cuda:1")
    here, there = Heard(), Heard()
    for pcm in noise(4, 20):
        here.take(tick(first, {"me": pcm})["me"])
        there.take(tick(second, {"me": pcm})["me"])
    assert_same(there, here)
