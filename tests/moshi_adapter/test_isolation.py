"""Sessions share every step and see nothing of each other: each gives what it gives alone."""

import numpy as np
import pytest
import torch
from moshi.models import LMGen
from moshi.utils.compile import no_compile
from moshi_adapter.streams import FRAME, Heard, alone, assert_same, noise, tick, tiny

from engine.moshi_adapter.settings import TINY_RANDOM, MoshiSettings
from engine.moshi_adapter.weights import load_models

pytestmark = [pytest.mark.models, pytest.mark.slow]
FRAMES = 60  # the tiny ring holds 24


@pytest.fixture(scope="module")
def solo() -> Heard:
    """The stream of seed 1, alone."""
    return alone(noise(1, FRAMES))


def test_the_tiny_model_hears(solo: Heard) -> None:
    """Another sound gives other words and another voice: else the tests below would prove nothing."""
    other = alone(noise(2, FRAMES))
    assert len(set(solo.words)) > 10
    assert other.words != solo.words
    assert np.abs(other.samples - solo.samples).max() > 1000


def test_a_late_joiner_that_skips_ticks_is_as_alone(solo: Heard) -> None:
    """Joining a running batch, pausing every third tick, past the ring's end: as if nobody else were there."""
    backend, heard = tiny(slots=3), Heard()
    stream, crowd = iter(noise(1, FRAMES)), noise(5, 200)
    for k in range(200):
        frames = {"first": crowd[k]}
        if k % 2 == 0:
            frames["third"] = crowd[-k]
        if k >= 4 and k % 3 != 2:
            frames["late"] = next(stream, b"")
            if not frames["late"]:
                break
        chunks = tick(backend, frames)
        if "late" in chunks:
            heard.take(chunks["late"])
    assert_same(heard, solo)


def test_a_reused_slot_remembers_nothing(solo: Heard) -> None:
    """A session in the slot of another that has just left, in the same step, starts from nothing."""
    backend, heard = tiny(slots=2), Heard()
    crowd = noise(6, 40)
    for pcm in crowd:
        tick(backend, {"before": pcm, "beside": pcm})
    closes: tuple[str, ...] = ("before",)
    for pcm in noise(1, FRAMES):
        heard.take(tick(backend, {"after": pcm}, closes)["after"])
        closes = ()
    assert_same(heard, solo)


def test_batch_size_and_row_may_change_under_a_stream(solo: Heard) -> None:
    """While neighbours come and go, the batch grows and shrinks and the stream moves to another row: no difference."""
    backend, heard = tiny(slots=8), Heard()
    crowd, rng = noise(7, FRAMES), np.random.default_rng(7)
    sizes, rows, here = set(), set(), [f"n{i}" for i in range(5)]
    tick(backend, dict.fromkeys(here, crowd[0]))
    for k, pcm in enumerate(noise(1, FRAMES)):
        leaving = tuple(name for name in here if rng.random() < 0.2)
        here = [name for name in here if name not in leaving]
        if rng.random() < 0.6 and len(here) < 7:
            here.append(f"m{k}")
        chunks = tick(backend, {"me": pcm, **dict.fromkeys(here, crowd[k])}, leaving)
        heard.take(chunks["me"])
        sizes.add(backend._table.rows)
        rows.add(backend._table.seats["me"].row)
    assert len(sizes) >= 3
    assert len(rows) >= 2
    assert_same(heard, solo)


def test_a_stream_is_what_moshi_gives_by_itself(solo: Heard) -> None:
    """The same words and voice as moshi's own primitives, used as its server uses them for one caller."""
    settings = MoshiSettings(TINY_RANDOM, device="cpu")
    models = load_models(settings)
    gen, mine = LMGen(models.lm, use_sampling=False), Heard()
    with torch.no_grad(), no_compile():
        for module in (models.encoder, gen, models.decoder):
            module.streaming_forever(1)
        for k, pcm in enumerate(noise(1, FRAMES)):
            sound = np.frombuffer(pcm, "<i2").astype(np.float32).reshape(1, 1, FRAME) / 32768
            codes = models.encoder.encode(torch.from_numpy(sound))
            if k == 0:
                models.encoder.reset_streaming()
            tokens = gen.step(codes)
            if tokens is not None:
                wave = models.decoder.decode(tokens[:, 1:])[0, 0].clamp(-1, 1)
                mine.words.append(int(tokens[0, 0, 0]))
                mine.sound.append((wave.numpy() * 32767).astype("<i2").tobytes())
    assert_same(mine, solo)
