"""MiniCPM-o 4.5's unit protocol in the real engine with random weights."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from support.backend_driver import BackendDriver
from support.pictures import picture
from support.sync_stepper import SyncStepper

from bench.tiny_audio import spread_weights, write_minicpmo
from engine.context import ContextLimits
from engine.kv_policy import KvPolicy
from engine.lane import Lane
from engine.models.base import AudioChunk, SessionSetup, TickOutput
from engine.models.families import read_config
from engine.models.minicpmo import (
    FORCED_LISTENS,
    MAX_SHOWN,
    MAX_WORDS,
    MiniCpmO,
    UnitTokens,
    audio_format,
    image_format,
)
from engine.models.picture import PictureError
from engine.speech.sim import ToneVoice
from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings
from engine.work import Sampling, TokenChunk

pytestmark = [pytest.mark.models, pytest.mark.vllm, pytest.mark.slow]

TICKS, BLOCK = 40, 32
POLICY = KvPolicy("anchored", 128, 64)


@dataclass
class Plant:
    backend: VllmBackend
    model: MiniCpmO
    tokens: UnitTokens


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    folder = write_minicpmo(tmp_path_factory.mktemp("model"))
    tokens = UnitTokens(folder)
    audio = audio_format(read_config(folder), tokens.control)
    settings = VllmSettings(
        str(folder),
        "float32",
        max_model_len=512,
        total_blocks=96,
        kv_cache_gib=0.1,
        load_format="dummy",
        trust_remote_code=True,
        images=True,
    )
    with spread_weights():
        backend = VllmBackend(settings)
    images = image_format(read_config(folder), tokens.control)
    yield Plant(backend, MiniCpmO("tiny", tokens, audio, ToneVoice(), images), tokens)
    backend.shutdown()


@dataclass
class Call:
    """One call whose ticks the test drives."""

    plant: Plant
    stepper: SyncStepper
    number: int
    tokens: tuple[int, ...] = ()  # of the tick under way
    ticks: list[tuple[int, ...]] = field(default_factory=list)
    outputs: list[TickOutput] = field(default_factory=list)
    chunks: list[AudioChunk] = field(default_factory=list)

    def __post_init__(self) -> None:
        backend = self.plant.backend
        limits = ContextLimits(POLICY, BLOCK, backend.max_context, backend.can_drop)
        self.lane = Lane(f"call{self.number}", self.stepper, limits)  # type: ignore[arg-type]
        self.state = self.plant.model.open(SessionSetup(instructions=f"call {self.number}"))

    def feed(self, tick: int) -> None:
        if tick % 4 == 2:
            width = 80 + 40 * self.number  # images of several sizes are encoded in one batch
            seen = self.plant.model.see(["look", picture(1000 * self.number + tick, width)])
            self.plant.model.show(self.state, seen)
        rng = np.random.default_rng(1000 * self.number + tick)
        time = np.arange(24_000) / 24_000
        sound = 8000 * np.sin(2 * np.pi * rng.uniform(100, 3000) * time) * (time < rng.uniform())
        (heard,) = self.plant.model.hear([(self.state, sound.astype("<i2").tobytes())])
        chunk = heard.chunk
        assert chunk is not None
        self.chunks.append(chunk)
        drawn = Sampling(rules=chunk.sampling.rules)  # greedy, under the same rules
        self.tokens = ()
        chunk = AudioChunk(
            chunk.token_ids,
            chunk.decode,
            features=chunk.features,
            header=chunk.header,
            stop_token_ids=chunk.stop_token_ids,
            sampling=drawn,
        )
        self.lane.feed(chunk, 0.0, self._take)

    def _take(self, chunk: TokenChunk, now: float) -> None:
        assert chunk.error is None, chunk.error
        self.tokens += chunk.token_ids
        if chunk.finished:
            self.ticks.append(self.tokens)
            self.outputs.append(self.plant.model.decode(self.state, self.tokens))


def run(plant: Plant, numbers: tuple[int, ...]) -> list[Call]:
    stepper = SyncStepper(plant.backend)
    calls = [Call(plant, stepper, number) for number in numbers]
    for tick in range(TICKS):
        before = [_length(call) for call in calls]
        for call in calls:
            call.feed(tick)
        stepper.run()
        for call, length in zip(calls, before, strict=True):
            grown = _length(call) - length
            appended, decoded = len(call.chunks[-1].token_ids), len(call.ticks[-1])
            assert grown == appended + decoded
            shown = sum(f.modality == "image" for f in call.chunks[-1].features)
            cost = plant.model.spec.cost(images=shown)
            assert appended <= cost.prefill + call.chunks[-1].header
            assert decoded <= cost.decode
        resident = sum(len(call.lane.context.tokens) - 1 for call in calls)
        assert plant.backend.snapshot().resident_tokens == resident
        for session in plant.backend._sessions.values():
            assert plant.backend._core.held_features(session.request_id) == 0
    assert stepper.drops >= 2 * len(calls)
    for call in calls:
        stepper.close(call.lane.id)
    stepper.run()
    assert plant.backend.snapshot().held_blocks == 0
    return calls


def _length(call: Call) -> int:
    """Tokens that were ever in its context."""
    return len(call.lane.context.tokens) + call.lane.context.lost


def test_three_calls_of_forty_seconds_are_each_as_if_alone(plant: Plant) -> None:
    """KV grows by what was appended and decoded, the window moves, and what one says does not depend on the others."""
    together = run(plant, (1, 2, 3))
    for call in together:
        (alone,) = run(plant, (call.number,))
        assert alone.ticks == call.ticks
    assert len({tuple(call.ticks) for call in together}) == 3


def test_every_unit_keeps_to_the_protocol(plant: Plant) -> None:
    """It ends with a terminator, never listens within a turn of its own, and writes no token of the input."""
    (call,) = run(plant, (4,))
    tokens, open_turn = plant.tokens, False
    assert all(ticks == (tokens.listen,) for ticks in call.ticks[:FORCED_LISTENS])
    for ticks in call.ticks:
        assert ticks[-1] in tokens.terminators
        assert not set(ticks) & set(tokens.never_written)
        if open_turn:
            assert tokens.listen not in ticks
        open_turn = ticks[0] != tokens.listen and tokens.turn_ends not in ticks
    assert any(output.speaking for output in call.outputs)


def test_a_unit_is_the_end_of_the_last_ten_tokens_of_audio_and_a_header_once(plant: Plant) -> None:
    """As the authors lay it out, without the tokens that vLLM's own processor would put around audio."""
    call = Call(plant, SyncStepper(plant.backend), 5)
    for tick in range(3):
        call.feed(tick)
    tokens = plant.tokens
    first, second, third = call.chunks
    placeholder = tokens.control("<unk>")
    assert first.token_ids == (*tokens.header("call 5"), tokens.unit, *[placeholder] * 10)
    assert first.header == len(tokens.header("call 5"))
    assert second.token_ids == (tokens.unit_ends, tokens.unit, *[placeholder] * 10)
    frames: list[Any] = [c.features[-1].tensors["audio_features"].shape for c in call.chunks]
    assert frames == [(1, 32, 99), (1, 32, 100), (1, 32, 100)]
    image = (tokens.control("<image>"), *[placeholder] * 64, tokens.control("</image>"))
    seen = (*tokens.words("look"), *image)
    assert third.token_ids == (*second.token_ids[:2], *seen, *[placeholder] * 10)
    assert [(f.modality, f.offset, f.length) for f in third.features] == [
        ("image", 2 + len(seen) - 65, 64),
        ("audio", 2 + len(seen), 10),
    ]


def test_images_wait_for_a_unit_each(plant: Plant) -> None:
    """So that a unit costs what it may; past the bound the oldest is not seen."""
    call = Call(plant, SyncStepper(plant.backend), 6)
    shown = [plant.model.see([picture(seed)]) for seed in range(MAX_SHOWN + 1)]
    for seen in shown:
        plant.model.show(call.state, seen)
    silence = bytes(48_000)
    for wanted in (*shown[1:], None):
        (heard,) = plant.model.hear([(call.state, silence)])
        assert heard.chunk is not None
        images = [f.tensors for f in heard.chunk.features if f.modality == "image"]
        assert images == ([] if wanted is None else [wanted.features[0].tensors])


def test_what_does_not_fit_a_unit_is_refused(plant: Plant) -> None:
    """Two images, or a long text beside one."""
    for content in ([picture(1), picture(2)], ["x" * (MAX_WORDS + 1), picture(1)], ["words"]):
        with pytest.raises(PictureError):
            plant.model.see(content)


def test_what_was_shown_shows_in_what_it_says(plant: Plant) -> None:
    """Same placeholders, other pixels, other tokens."""
    driver = BackendDriver(plant.backend)
    said = []
    for seed in (1, 2, 3, 4, 5, 6, 1):
        seen = plant.model.see([picture(seed)])
        name = f"s{len(said)}"
        said.append(driver.decode(name, seen.token_ids, 3, features=seen.features))
    assert said[0] == said[-1]
    assert len(set(said)) > 1
    driver.close_all()


def test_an_answer_that_is_asked_for_begins_with_the_next_unit(plant: Plant) -> None:
    """It is made to speak, once; in the units of a call in which it may not speak yet, it listens first."""
    call = Call(plant, SyncStepper(plant.backend), 6)
    plant.model.begin(call.state)
    for tick in range(FORCED_LISTENS + 2):
        call.feed(tick)
        call.stepper.run()
    tokens = plant.tokens
    assert call.ticks[FORCED_LISTENS - 1] == (tokens.listen,)
    assert call.ticks[FORCED_LISTENS][0] == tokens.speaks
    assert not call.state.asked
    call.stepper.close(call.lane.id)
    call.stepper.run()
