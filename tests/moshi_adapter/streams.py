"""Streams of sound through a Moshi backend, and what each must give: the same as alone."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.moshi_adapter.backend import MoshiBackend
from engine.moshi_adapter.settings import TINY_RANDOM, MoshiSettings
from engine.work import Append, Feature, TickBatch, TokenChunk

FRAME = 1920  # samples in 80 ms at 24 kHz
RING = 48  # frames that a prompted model looks back on
PROMPT_STRETCH = 5  # positions of a prompt that a step takes
ROLE = (7, 42, 9, 11, 23)


def tiny(slots: int, buckets: tuple[int, ...] = (1, 2, 4, 8), device: str = "cpu") -> MoshiBackend:
    """A backend over the tiny random model, greedy."""
    return MoshiBackend(
        MoshiSettings(
            TINY_RANDOM,
            slots=slots,
            buckets=buckets,
            device=device,
            temperature=0.0,
            text_temperature=0.0,
        )
    )


def prompted(
    slots: int,
    voices: Path | str = "",
    *,
    ring: int = RING,
    buckets: tuple[int, ...] = (1, 2, 4),
    device: str = "cpu",
) -> MoshiBackend:
    """The same, for calls that may begin with a prompt."""
    return MoshiBackend(
        MoshiSettings(
            TINY_RANDOM,
            slots=slots,
            buckets=buckets,
            device=device,
            context_frames=ring,
            temperature=0.0,
            text_temperature=0.0,
            prompted=True,
            voices=str(voices),
            prompt_frames=PROMPT_STRETCH,
        )
    )


def noise(seed: int, frames: int) -> list[bytes]:
    """Noise of changing loudness, as frames of pcm16."""
    rng = np.random.default_rng(seed)
    loudness = rng.uniform(0.0, 0.3, (frames, 1))
    sound = np.clip(rng.standard_normal((frames, FRAME)) * loudness, -1, 1)
    return [row.tobytes() for row in (sound * 32767).astype("<i2")]


@dataclass
class Heard:
    """What a session gave so far: text tokens, and the sound of each frame."""

    words: list[int] = field(default_factory=list)
    sound: list[bytes] = field(default_factory=list)

    def take(self, chunk: TokenChunk) -> None:
        assert chunk.error is None, chunk.error
        assert chunk.finished
        self.words += chunk.token_ids
        if chunk.pcm:
            self.sound.append(chunk.pcm)

    @property
    def samples(self) -> NDArray[np.int32]:
        return np.frombuffer(b"".join(self.sound), "<i2").astype(np.int32)


def append(session_id: str, pcm: bytes, epoch: int = 0) -> Append:
    return Append(session_id, epoch, (), 1, 0.0, pcm=pcm)


def tick(
    backend: MoshiBackend, frames: dict[str, bytes], closes: tuple[str, ...] = ()
) -> dict[str, TokenChunk]:
    """One step in which every session of `frames` is due."""
    appends = tuple(append(name, pcm) for name, pcm in frames.items())
    result = backend.step(TickBatch(appends, (), closes))
    return {chunk.session_id: chunk for chunk in result.chunks}


def alone(frames: list[bytes]) -> Heard:
    """What the stream gives in a backend of its own."""
    backend, heard = tiny(slots=1), Heard()
    for pcm in frames:
        heard.take(tick(backend, {"alone": pcm})["alone"])
    return heard


def assert_same(one: Heard, other: Heard) -> None:
    """The same words, and the same sound but for the rounding of the last bit."""
    assert one.words == other.words
    assert len(one.samples) == len(other.samples)
    assert np.abs(one.samples - other.samples).max() <= 1


def prompt(session_id: str, role: tuple[int, ...] = ROLE, voice: str | None = "anna") -> Append:
    features = () if voice is None else (Feature("voice", 0, 0, {}, voice),)
    return Append(session_id, 0, role, 1, 0.0, features=features)


def begin(backend: MoshiBackend, order: Append) -> int:
    """Bring a session through its prompt; how many steps that took."""
    batch, steps = TickBatch((order,)), 0
    while True:
        result, steps = backend.step(batch), steps + 1
        for chunk in result.chunks:
            assert (chunk.session_id, chunk.error) == (order.session_id, None)
            return steps
        assert backend.busy
        batch = TickBatch()
