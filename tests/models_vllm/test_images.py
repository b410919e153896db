"""Images among seconds of audio, in the real engine with random weights."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.backend_driver import BackendDriver
from support.pictures import picture
from support.sync_stepper import SyncStepper

from bench.tiny_audio import HEARING, spread_weights
from engine.audio_memory import AudioMemory
from engine.context import ContextLimits
from engine.hearing_lane import HearingLane
from engine.kv_policy import KvPolicy
from engine.models.audio_turns import AudioTurns
from engine.models.base import AudioChunk, Segment
from engine.models.registry import ModelSettings, build_model
from engine.speech.mel import StreamingMel
from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings
from engine.work import Drop, Sampling, TokenChunk

pytestmark = [pytest.mark.models, pytest.mark.vllm, pytest.mark.slow]

MAX_CONTEXT, BLOCK, IMAGE_TOKENS = 640, 32, 24
TURNS, DECODE = 8, 4
POLICY = KvPolicy("anchored", 192, 64)


@dataclass
class Plant:
    """One engine, and the model that feeds it."""

    backend: VllmBackend
    model: AudioTurns

    @property
    def encoder_cache(self) -> dict[str, object]:
        """Encodings that the worker keeps, by key."""
        found: dict[str, object] = self.backend._core._runner.encoder_cache
        return found


@pytest.fixture(scope="module", params=["qwen2.5-omni", "qwen3-omni"])
def plant(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Plant]:
    folder: Path = HEARING[request.param](tmp_path_factory.mktemp("model"))
    settings = VllmSettings(
        str(folder),
        "float32",
        max_model_len=MAX_CONTEXT,
        total_blocks=70,
        kv_cache_gib=0.1,
        load_format="dummy",
        images=True,
    )
    named = ModelSettings(
        id=str(folder), vad="sim", stt="none", tts="sim", image_tokens=IMAGE_TOKENS
    )
    model = build_model(named)
    assert isinstance(model, AudioTurns)
    with spread_weights():
        backend = VllmBackend(settings)
    yield Plant(backend, model)
    backend.shutdown()


def second(plant: Plant, seed: int) -> AudioChunk:
    """One second of a chord as an item."""
    rng = np.random.default_rng(seed)
    time = np.arange(16_400)[:, None] / 16_000
    chord = np.sin(2 * np.pi * rng.uniform(80, 4000, 5) * time).sum(axis=1)
    audio = plant.model._audio
    mel = StreamingMel(audio.bins)
    mel.push((0.1 * chord).astype(np.float32))
    return audio.item(mel.take(100), mel.floor)


@dataclass
class Talk:
    """One scripted call: images between turns and within them."""

    plant: Plant
    stepper: SyncStepper
    number: int
    answers: list[tuple[int, ...]] = field(default_factory=list)
    items: list[str] = field(default_factory=list)  # of the conversation, in order
    taken: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        backend = self.plant.backend
        limits = ContextLimits(POLICY, BLOCK, backend.max_context, backend.can_drop)
        self.memory = AudioMemory(MAX_CONTEXT)
        self.lane = HearingLane(
            f"talk{self.number}", self.stepper, limits, self.memory, self.plant.model.bridge
        )  # type: ignore[arg-type]
        self.header = self.plant.model._parts.chat.header(f"call {self.number}")
        self.lane.open(self.header, 0.0)

    def show(self, item_id: str, seed: int) -> int:
        """Tokens that it is to add to the context."""
        # Of a size of its own: images of several sizes are encoded in one batch.
        content = self.plant.model.see(["look:", picture(seed, 80 + 40 * self.number)])
        within = bool(self.memory.turn)
        marked = self.memory.show(item_id, content, self.plant.model.turn_around)
        if within:
            self.lane.listen(marked, opens=False, deadline=0.0)
        else:
            self.lane.show(marked, 0.0)
        self.items.append(item_id)
        return len(marked)

    def hear(self, tick: int, seed: int) -> int:
        chunk = second(self.plant, seed)
        if tick == 0:
            opens = AudioChunk(self.plant.model.turn_around[0], 1)
            marked = (*self.memory.hear(opens), *self.memory.hear(chunk))
        else:
            marked = self.memory.hear(chunk)
        self.lane.listen(marked, opens=tick == 0, deadline=0.0)
        return len(marked)

    def answer(self, turn: int) -> None:
        ends = self.plant.model.turn_around[1]
        chat = self.plant.model._parts.chat
        self.memory.hear(AudioChunk(ends, 1))
        self.memory.commit(f"u{turn}")
        self.items.append(f"u{turn}")
        segments = [Segment(self.header, "header")]
        for item_id in self.items:
            said: tuple[int, ...] = ()
            if item_id[0] == "a":
                said = (*chat.cue, *self.answers[int(item_id[1:])], *ends)
            segments.append(Segment(said, "message", item_id))
        segments.append(Segment(chat.cue, "cue"))
        plan = self.lane.context.reconcile(segments, DECODE)
        # What was heard and seen is there already: only the turn's end and the cue are fed.
        assert len(plan.token_ids) == len(ends) + len(chat.cue)
        self.items.append(f"a{turn}")
        self.taken = []
        self.lane.begin(plan, self._take, decode=DECODE, deadline=0.0, stop=(), sampling=Sampling())

    def _take(self, chunk: TokenChunk, now: float) -> None:
        assert chunk.error is None, chunk.error
        self.taken += chunk.token_ids
        if chunk.finished:
            self.answers.append(tuple(self.taken))
            self.lane.rest()

    @property
    def length(self) -> int:
        """Tokens that were ever in its context, less the one nobody asked for."""
        context = self.lane.context
        return len(context.tokens) - self.lane._surplus + context.lost


def converse(plant: Plant, numbers: tuple[int, ...]) -> tuple[list[Talk], SyncStepper]:
    """Each turn: an image before it (every other turn), a second, an image within it, a second, an answer."""
    stepper = SyncStepper(plant.backend)
    talks = [Talk(plant, stepper, number) for number in numbers]
    stepper.run()
    for turn in range(TURNS):
        bridge = len(plant.model.turn_around[1]) if turn else 0
        for step in range(4):
            before = [talk.length for talk in talks]
            grown = []
            for talk in talks:
                seed = 1000 * talk.number + 10 * turn + step
                if step == 0 and turn % 2 == 0:
                    grown.append(talk.show(f"before{turn}", seed) + bridge)
                elif step == 0:
                    grown.append(0)
                elif step == 2:
                    grown.append(talk.show(f"within{turn}", seed))
                else:
                    joint = bridge if step == 1 and turn % 2 else 0
                    grown.append(talk.hear(step // 2, seed) + joint)
            stepper.run()
            assert [t.length - b for t, b in zip(talks, before, strict=True)] == grown
            assert max(grown) <= plant.model.spec.cost(images=1).prefill
            check(plant, talks)
        for talk in talks:
            talk.answer(turn)
        stepper.run()
        check(plant, talks)
    return talks, stepper


def check(plant: Plant, talks: list[Talk]) -> None:
    """The mirrors are true, and vLLM keeps neither features nor encodings."""
    backend = plant.backend
    resident = sum(len(t.lane.context.tokens) - 1 for t in talks)
    assert backend.snapshot().resident_tokens == resident
    for session in backend._sessions.values():
        assert backend._core.held_features(session.request_id) == 0
    manager = backend._core._scheduler.encoder_cache_manager
    assert not any(manager.request_cached_ids.values())
    assert manager.num_freeable_slots == manager.cache_size


def test_three_calls_with_images_are_each_as_if_alone(plant: Plant) -> None:
    """The window slides past images; KV grows by what was shown, and the answers are those of the call alone."""
    together, stepper = converse(plant, (1, 2, 3))
    assert stepper.drops >= 2 * len(together)
    for talk in together:
        assert talk.lane.context.lost > 0
        stepper.close(talk.lane.id)
    stepper.run()
    assert plant.backend.snapshot().held_blocks == 0
    for number in (1, 2, 3):
        (alone,), own = converse(plant, (number,))
        assert alone.answers == together[number - 1].answers
        own.close(alone.lane.id)
        own.run()
    assert len({tuple(talk.answers) for talk in together}) == 3


def test_what_was_shown_shows_in_the_answer(plant: Plant) -> None:
    """Same placeholders, other pixels, other tokens."""
    driver = BackendDriver(plant.backend)
    seen = []
    for seed in range(6):
        content = plant.model.see([picture(seed)])
        seen.append(driver.decode(f"s{seed}", content.token_ids, 3, features=content.features))
    again = plant.model.see([picture(0)])
    assert driver.decode("again", again.token_ids, 3, features=again.features) == seen[0]
    assert len(set(seen)) > 1
    driver.close_all()


def test_bit_by_bit_is_as_all_at_once(plant: Plant) -> None:
    """Audio, image, audio in appends of their own: features and positions are those of one prompt."""
    driver, model = BackendDriver(plant.backend), plant.model
    header = model._parts.chat.header("")
    chunks = [second(plant, 1), model.see(["see", picture(2), "and"]), second(plant, 3)]
    tokens, features = list(header), []
    for chunk in chunks:
        for feature in chunk.features:
            features.append(msgspec.structs.replace(feature, offset=feature.offset + len(tokens)))
        tokens += chunk.token_ids
    whole = driver.decode("whole", tokens, 6, features=tuple(features))
    driver.decode("parts", header, 1)
    fed = len(header)
    for chunk in chunks[:2]:
        driver.decode("parts", chunk.token_ids, 1, features=chunk.features, keep_tokens=fed)
        fed += len(chunk.token_ids)
    last = chunks[2]
    parts = driver.decode("parts", last.token_ids, 6, features=last.features, keep_tokens=fed)
    assert parts == whole
    driver.close_all()


def keys(plant: Plant, session_id: str, start: int, stop: int) -> np.ndarray:  # type: ignore[type-arg]
    """Layer 0's keys of the blocks of [start, stop)."""
    from engine.vllm_adapter.compat_worker import attention_layers

    core = plant.backend._core
    worker = core._core.model_executor.driver_worker.worker
    (blocks,) = core.blocks(plant.backend._sessions[session_id].request_id, start, stop)
    layer = attention_layers(worker)[0]
    assert layer.kv_cache.shape[0] > max(blocks)
    found: np.ndarray = layer.kv_cache[blocks].float().numpy()  # type: ignore[type-arg]
    return found


@pytest.mark.parametrize("start", [BLOCK, 2 * BLOCK])
def test_a_drop_before_an_image_leaves_it_as_if_it_were_fed_afresh(
    plant: Plant, start: int
) -> None:
    """All three axes move alike, so the first layer's keys are those of the shorter prompt."""
    driver, model = BackendDriver(plant.backend), plant.model
    rng = np.random.default_rng(0)
    text = [int(t) for t in rng.integers(10, 200, 5 * BLOCK)]
    seen = model.see([picture(5, 200, 90)])
    (feature,) = seen.features
    dropped = slice(start, start + BLOCK)
    tokens = [*text, *seen.token_ids, *text[: 2 * BLOCK]]
    at = msgspec.structs.replace(feature, offset=feature.offset + len(text))
    driver.decode("long", tokens, 1, features=(at,))
    driver.run(drops=(Drop("long", dropped.start, dropped.stop),))
    short = [*text[: dropped.start], *text[dropped.stop :], *seen.token_ids, *text[: 2 * BLOCK]]
    at = msgspec.structs.replace(feature, offset=feature.offset + len(text) - BLOCK)
    driver.decode("short", short, 1, features=(at,))
    end = len(short) // BLOCK * BLOCK
    np.testing.assert_allclose(keys(plant, "long", 0, end), keys(plant, "short", 0, end), atol=1e-4)
    driver.close_all()
