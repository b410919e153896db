"""Voxtral realtime in the real engine with random weights: one token for every 80 ms, for as long as the call lasts."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from support.sync_stepper import SyncStepper

from bench.tiny_audio import VOXTRAL_WINDOWS, spread_weights, write_voxtral
from engine.context import ContextLimits
from engine.kv_policy import KvPolicy
from engine.lane import FrameLane
from engine.models.base import AudioChunk, SessionSetup, TickOutput
from engine.models.registry import ModelSettings, build_model, is_mistral
from engine.models.voxtral import KvSpace, VoxtralRealtime
from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings
from engine.work import TokenChunk

pytestmark = [pytest.mark.models, pytest.mark.vllm, pytest.mark.slow]

MAX_CONTEXT, BLOCK = 320, 32
TICKS = 60
PREAMBLE, SILENT_TICKS = 39, 6  # tokens; ticks of a call that write nothing yet
RATE = 24_000


@dataclass
class Plant:
    backend: VllmBackend
    model: VoxtralRealtime


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    folder = write_voxtral(tmp_path_factory.mktemp("model"))
    named = ModelSettings(
        id=str(folder), vad="sim", stt="none", tick_ms=80, kv_space=KvSpace(MAX_CONTEXT, BLOCK)
    )
    model = build_model(named)
    assert isinstance(model, VoxtralRealtime)
    settings = VllmSettings(
        str(folder),
        "float32",
        max_model_len=MAX_CONTEXT,
        total_blocks=200,
        kv_cache_gib=0.1,
        load_format="dummy",
        mistral=is_mistral(named),
    )
    with spread_weights():
        backend = VllmBackend(settings)
    yield Plant(backend, model)
    backend.shutdown()


@dataclass
class Call:
    """One call whose ticks the test drives."""

    plant: Plant
    stepper: SyncStepper
    number: int
    written: list[int] = field(default_factory=list)
    outputs: list[TickOutput] = field(default_factory=list)
    chunks: list[AudioChunk] = field(default_factory=list)

    def __post_init__(self) -> None:
        backend = self.plant.backend
        limits = ContextLimits(KvPolicy("unbounded"), BLOCK, backend.max_context, False)
        self.lane = FrameLane(f"call{self.number}", self.stepper, limits)  # type: ignore[arg-type]
        self.state = self.plant.model.open(SessionSetup())
        time = np.arange(RATE * 80) / RATE
        rng = np.random.default_rng(self.number)
        wobble = 1 + 0.3 * np.sin(time * rng.uniform(1, 4))
        sound = 9000 * np.sin(2 * np.pi * rng.uniform(100, 900) * time * wobble)
        self.sound = sound.astype("<i2")

    def feed(self, tick: int) -> None:
        size = RATE * 80 // 1000
        pcm = self.sound[tick * size : (tick + 1) * size].tobytes()
        (heard,) = self.plant.model.hear([(self.state, pcm)])
        if heard.chunk is not None:
            self.chunks.append(heard.chunk)
            self.lane.feed(heard.chunk, 0.0, self._take)

    def _take(self, chunk: TokenChunk, now: float) -> None:
        assert chunk.error is None, chunk.error
        self.written += chunk.token_ids
        if chunk.finished:
            self.outputs.append(self.plant.model.decode(self.state, chunk.token_ids))


def run(plant: Plant, numbers: tuple[int, ...], ticks: int = TICKS) -> list[Call]:
    stepper = SyncStepper(plant.backend)
    calls = [Call(plant, stepper, number) for number in numbers]
    cost = plant.model.spec.cost()
    for tick in range(ticks):
        before = [call.lane.context.length for call in calls]
        for call in calls:
            call.feed(tick)
        stepper.run()
        for call, length in zip(calls, before, strict=True):
            if tick >= SILENT_TICKS:
                check(call, call.lane.context.length - length, cost.tokens)
        held = plant.backend.snapshot().held_blocks
        assert held <= len(calls) * plant.model.spec.blocks_per_session
        resident = sum(call.lane.context.length - 1 for call in calls if call.chunks)
        assert plant.backend.snapshot().resident_tokens == resident
    for call in calls:
        stepper.close(call.lane.id)
    stepper.run()
    assert plant.backend.snapshot().held_blocks == 0
    return calls


def check(call: Call, grown: int, cost: int) -> None:
    """What a tick added: the token that came again was there before, so one."""
    chunk = call.chunks[-1]
    if chunk.header:
        assert call.lane.context.length == chunk.header + 1 == PREAMBLE + 1
    else:
        assert grown == len(chunk.token_ids) + 1 - chunk.replaces == 1 <= cost


def test_three_calls_are_each_as_if_alone(plant: Plant) -> None:
    """Side by side, past both windows, every token is the one that the call writes alone."""
    together = run(plant, (1, 2, 3))
    assert all(len(call.written) == TICKS - SILENT_TICKS for call in together)
    for call in together:
        (alone,) = run(plant, (call.number,))
        assert alone.written == call.written
    assert len({tuple(call.written) for call in together}) == 3


def test_a_call_that_begins_later_changes_nothing(plant: Plant) -> None:
    """Its preamble is encoded in the same batch as the single ticks of others."""
    stepper = SyncStepper(plant.backend)
    early, late = Call(plant, stepper, 6), Call(plant, stepper, 7)
    for tick in range(TICKS):
        early.feed(tick)
        if tick >= 10:
            late.feed(tick - 10)
        stepper.run()
    for call in (early, late):
        stepper.close(call.lane.id)
    stepper.run()
    for call in (early, late):
        (alone,) = run(plant, (call.number,))
        assert alone.written[: len(call.written)] == call.written


def test_features_and_encodings_are_let_go_of(plant: Plant) -> None:
    """However long a call is, vLLM keeps those of the newest tick at most."""
    stepper = SyncStepper(plant.backend)
    call = Call(plant, stepper, 4)
    for tick in range(TICKS):
        call.feed(tick)
        stepper.run()
        for session in plant.backend._sessions.values():
            assert plant.backend._core.held_features(session.request_id) <= 1
    manager = plant.backend._core._scheduler.encoder_cache_manager
    assert sum(len(held) for held in manager.request_cached_ids.values()) <= 1
    stepper.close(call.lane.id)
    stepper.run()
    assert manager.num_freeable_slots == manager.cache_size


def test_a_call_outlives_its_context(plant: Plant) -> None:
    """Where the context ends another begins, with the audio whose words were to come; KV stays what a call may hold."""
    (call,) = run(plant, (5,), ticks=2 * MAX_CONTEXT)
    opened = [index for index, chunk in enumerate(call.chunks) if chunk.header]
    assert opened == [0, MAX_CONTEXT - PREAMBLE, 2 * (MAX_CONTEXT - PREAMBLE)]
    again = call.chunks[opened[1]].features[0].tensors["audio_arrays"][0]
    before = call.chunks[opened[1] - 1].features[0].tensors["audio_arrays"][0]
    model = plant.model
    per_token, ahead = model._audio.per_token, model._audio.look_ahead
    assert not again[: model._audio.left_pad * per_token].any()
    # The tick before the last of the preamble is the newest that the old context heard.
    np.testing.assert_array_equal(
        again[-2 * per_token - ahead : -per_token], before[-per_token - ahead :]
    )


def test_windows_bound_what_a_call_holds(plant: Plant) -> None:
    """Of the decoder and, four frames to a token, of the encoder; each a table of its own."""
    decoder, encoder = VOXTRAL_WINDOWS[0], VOXTRAL_WINDOWS[1] // 4 + 1
    blocks = sum(-(-(window + PREAMBLE) // BLOCK) + 1 for window in (decoder, encoder))
    assert plant.model.spec.blocks_per_session == blocks
    assert blocks < 2 * MAX_CONTEXT // BLOCK
