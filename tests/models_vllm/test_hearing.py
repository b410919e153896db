"""Models that hear, in the real engine with random weights: audio goes in while the caller speaks, answers come out."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from support.backend_driver import BackendDriver
from support.sync_stepper import SyncStepper

from bench.tiny_audio import HEARING, spread_weights
from engine.audio_memory import AudioMemory
from engine.context import ContextLimits
from engine.hearing_lane import HearingLane
from engine.kv_policy import KvPolicy
from engine.models.audio_chat import AudioChatMl
from engine.models.audio_format import AudioFormat
from engine.models.base import AudioChunk, ModelSpec, Segment
from engine.models.families import family_of, read_config
from engine.models.registry import ModelSettings, build_model
from engine.speech.mel import StreamingMel
from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings
from engine.vllm_adapter.short_audio import ARCHITECTURE
from engine.work import Sampling, TokenChunk

pytestmark = [pytest.mark.models, pytest.mark.vllm, pytest.mark.slow]

MAX_CONTEXT, BLOCK = 512, 32
TURNS, SECONDS, DECODE = 10, 3, 4  # 40 ticks: each turn is 3 s of listening and one answer
POLICY = KvPolicy("anchored", 128, 64)


@dataclass
class Plant:
    """One engine and what is needed to talk to it."""

    backend: VllmBackend
    chat: AudioChatMl
    audio: AudioFormat
    spec: ModelSpec


@pytest.fixture(scope="module", params=HEARING)
def plant(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Plant]:
    folder: Path = HEARING[request.param](tmp_path_factory.mktemp("model"))
    config = read_config(folder)
    family = family_of(config)
    assert family is not None
    assert family.format is not None
    chat = AudioChatMl(folder)
    settings = VllmSettings(
        str(folder),
        "float32",
        max_model_len=MAX_CONTEXT,
        total_blocks=52,
        kv_cache_gib=0.1,
        load_format="dummy",
    )
    with spread_weights():
        backend = VllmBackend(settings)
    model = build_model(ModelSettings(id=str(folder), vad="sim", stt="none", tts="sim"))
    yield Plant(backend, chat, family.format(config, chat.control), model.spec)
    backend.shutdown()


def second(audio: AudioFormat, seed: int, frames: int = 100) -> AudioChunk:
    """One second, or less, of a chord in bursts as an item, different for every seed."""
    rng = np.random.default_rng(seed)
    time = np.arange(16_400)[:, None] / 16_000
    chord = np.sin(2 * np.pi * rng.uniform(80, 4000, 5) * time).sum(axis=1)
    bursts = np.sin(2 * np.pi * rng.uniform(1, 12) * time[:, 0]) > rng.uniform(-0.5, 0.9)
    mel = StreamingMel(audio.bins)
    mel.push((0.1 * chord * bursts).astype(np.float32))
    return audio.item(mel.take(frames), mel.floor)


@dataclass
class Talk:
    """One scripted call."""

    plant: Plant
    stepper: SyncStepper
    number: int
    answers: list[tuple[int, ...]] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    grown: list[int] = field(default_factory=list)  # tokens, per second listened to

    def __post_init__(self) -> None:
        chat = self.plant.chat
        backend = self.plant.backend
        limits = ContextLimits(POLICY, BLOCK, backend.max_context, backend.can_drop)
        self.memory = AudioMemory(MAX_CONTEXT)
        self.lane = HearingLane(
            f"talk{self.number}", self.stepper, limits, self.memory, self._bridge
        )  # type: ignore[arg-type]
        self.header = chat.header(f"call {self.number}")
        self.lane.open(self.header, 0.0)

    def _bridge(self, tail: object) -> tuple[int, ...]:
        return self.plant.chat.turn_ends if self.answers else ()

    def hear(self, turn: int, tick: int) -> None:
        chunk = second(self.plant.audio, 1000 * self.number + 10 * turn + tick)
        if tick == 0:
            opens = AudioChunk(self.plant.chat.turn_opens, 1)
            self.memory.hear(opens)
            marked = (*opens.token_ids, *self.memory.hear(chunk))
        else:
            marked = self.memory.hear(chunk)
        self.lane.listen(marked, opens=tick == 0, deadline=0.0)

    def answer(self, turn: int) -> None:
        chat = self.plant.chat
        self.memory.hear(AudioChunk(chat.turn_ends, 1))
        self.memory.commit(f"u{turn}")
        segments = [Segment(self.header, "header")]
        for past in range(turn + 1):
            segments.append(Segment((), "message", f"u{past}"))
            if past < turn:
                said = (*chat.cue, *self.answers[past], *chat.turn_ends)
                segments.append(Segment(said, "message", f"a{past}"))
        segments.append(Segment(chat.cue, "cue"))
        plan = self.lane.context.reconcile(segments, DECODE)
        self.taken = []
        self.lane.begin(plan, self._take, decode=DECODE, deadline=0.0, stop=(), sampling=Sampling())

    def _take(self, chunk: TokenChunk, now: float) -> None:
        assert chunk.error is None, chunk.error
        self.taken += chunk.token_ids
        if chunk.finished:
            self.answers.append(tuple(self.taken))
            self.lane.rest()


def converse(plant: Plant, numbers: tuple[int, ...]) -> tuple[list[Talk], SyncStepper]:
    """Run the scripts of these calls side by side, tick by tick."""
    stepper = SyncStepper(plant.backend)
    talks = [Talk(plant, stepper, number) for number in numbers]
    stepper.run()
    for turn in range(TURNS):
        for tick in range(SECONDS):
            before = [len(t.lane.context.tokens) + t.lane.context.lost for t in talks]
            for talk in talks:
                talk.hear(turn, tick)
            stepper.run()
            after = [len(t.lane.context.tokens) + t.lane.context.lost for t in talks]
            for talk, a, b in zip(talks, before, after, strict=True):
                talk.grown.append(b - a)
            check(plant, talks)
        for talk in talks:
            talk.answer(turn)
        stepper.run()
        check(plant, talks)
    return talks, stepper


def check(plant: Plant, talks: list[Talk]) -> None:
    """The mirrors are true, and vLLM keeps no features."""
    backend = plant.backend
    resident = sum(len(t.lane.context.tokens) - 1 for t in talks)
    assert backend.snapshot().resident_tokens == resident
    for session in backend._sessions.values():
        assert backend._core.held_features(session.request_id) == 0


def test_three_calls_of_forty_ticks_are_each_as_if_alone(plant: Plant) -> None:
    """Audio, answers and a window that moves at least twice: each costs what it should, and none hears another."""
    together, stepper = converse(plant, (1, 2, 3))
    audio = plant.audio
    for talk in together:
        assert talk.lane.context.lost > 0
        # A second grows the context by its cost. The token that nobody asked for is replaced, not added; after an
        # answer there is none to replace, but the opening of the turn to add.
        cost, opens = audio.cost(100), len(plant.chat.turn_opens)
        first, later = cost + opens, cost + opens + len(plant.chat.turn_ends) + 1
        assert talk.grown == [first, cost, cost] + [later, cost, cost] * (TURNS - 1)
        # What admission counts with covers the worst of it: the token replaced was an answer's, not this append's.
        assert max(talk.grown) - 1 <= plant.spec.cost().prefill
        assert all(len(answer) <= plant.spec.cost().decode for answer in talk.answers)
        assert len(talk.lane.context.tokens) <= len(talk.header) + POLICY.total_tokens + DECODE + 1
    assert stepper.drops >= 2 * len(together)
    for talk in together:
        stepper.close(talk.lane.id)
    stepper.run()
    assert plant.backend.snapshot().held_blocks == 0
    for number in (1, 2, 3):
        (alone,), own = converse(plant, (number,))
        assert alone.answers == together[number - 1].answers
        own.close(alone.lane.id)
        own.run()
    assert len({tuple(talk.answers) for talk in together}) == 3


def short_and_padded(plant: Plant) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Embeddings of items of two lengths: ours, encoded together, and the stock encoder's, one by one."""
    model, audio = plant.backend._core.model, plant.audio
    device = next(model.parameters()).device
    chunks = [second(audio, 0), second(audio, 1), second(audio, 2, frames=37)]
    items = [chunk.features[0].tensors for chunk in chunks]
    tensors = [
        {name: torch.from_numpy(v[0]).to(device) for name, v in item.items()} for item in items
    ]
    names = tuple(tensors[0])
    pairs = []
    with torch.inference_mode():
        ours = model.embed_multimodal(**{name: [item[name] for item in tensors] for name in names})
        for item, mine in zip(tensors, ours, strict=True):
            features, mask = (item[name] for name in names)
            padded = features[:, -1:].expand(-1, 3000).clone()  # silence
            padded[:, : features.shape[1]] = features
            whole = torch.zeros(3000, dtype=mask.dtype, device=device)
            whole[: len(mask)] = mask
            (stock,) = type(model).embed_multimodal(
                model,
                input_features=padded[None].to(next(model.parameters()).dtype),
                feature_attention_mask=whole[None],
            )
            pairs.append((mine, stock))
    return pairs


def test_short_audio_is_encoded_as_if_it_were_padded(plant: Plant) -> None:
    """Qwen2-Audio's stock encoder takes 30 s only; ours gives the same for what there is, alone and beside others."""
    if type(plant.backend._core.model).__name__ != ARCHITECTURE:
        pytest.skip("only Qwen2-Audio pads")
    for mine, stock in short_and_padded(plant):
        assert mine.shape == stock.shape
        torch.testing.assert_close(mine, stock, rtol=1e-4, atol=1e-4)


def test_second_by_second_is_as_all_at_once(plant: Plant) -> None:
    """Features land on their placeholders whether or not something is fed again before them."""
    driver, audio = BackendDriver(plant.backend), plant.audio
    chunks = [second(audio, seed) for seed in range(3)]
    header = plant.chat.header("")
    tokens, features = list(header), []
    for chunk in chunks:
        (feature,) = chunk.features
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
    # The same with the sampled token kept: it is fed again in front of the next chunk.
    sampled = driver.decode("kept", (*header, *chunks[0].token_ids), 2, features=features[:1])
    kept = driver.decode("kept", chunks[1].token_ids, 4, features=chunks[1].features)
    (feature,) = chunks[1].features
    start = len(header) + len(chunks[0].token_ids) + len(sampled)
    again = (features[0], msgspec.structs.replace(feature, offset=feature.offset + start))
    tokens = [*header, *chunks[0].token_ids, *sampled, *chunks[1].token_ids]
    assert kept == driver.decode("again", tokens, 4, features=again)
    driver.close_all()


def test_what_was_said_shows_in_the_answer(plant: Plant) -> None:
    """Same placeholders, other audio, other tokens: among a few seconds of noise, not all sound alike."""
    driver = BackendDriver(plant.backend)
    heard = []
    for seed in range(6):
        chunk = second(plant.audio, seed)
        heard.append(driver.decode(f"s{seed}", chunk.token_ids, 3, features=chunk.features))
    again = second(plant.audio, 0)
    assert driver.decode("again", again.token_ids, 3, features=again.features) == heard[0]
    assert len(set(heard)) > 1
    driver.close_all()


def test_audio_past_the_context_is_refused_and_no_one_else_notices(plant: Plant) -> None:
    """Before it reaches vLLM, which would not survive it."""
    driver, audio = BackendDriver(plant.backend), plant.audio
    chunk = second(audio, 0)
    held = 0
    while held + len(chunk.token_ids) + 1 <= plant.backend.max_context:
        driver.decode("long", chunk.token_ids, 1, features=chunk.features)
        driver.decode("other", chunk.token_ids, 1, features=chunk.features, keep_tokens=0)
        held += len(chunk.token_ids) + 1
    refused = driver.run(driver.append("long", chunk.token_ids, 1, features=chunk.features))["long"]
    assert refused.error is not None
    assert "would pass" in refused.error
    assert driver.decode("other", (1, 2, 3), 2)
    driver.close_all()


def test_a_call_that_loses_its_place_ends_with_an_error(plant: Plant) -> None:
    """vLLM takes the KV of one when the pool runs out, and what it heard is not kept: nobody waits for it in vain."""
    driver, audio = BackendDriver(plant.backend), plant.audio
    chunk = second(audio, 0)
    quota = MAX_CONTEXT - len(chunk.token_ids) - 1
    appends = [
        driver.append(f"s{i}", chunk.token_ids, quota, features=chunk.features) for i in range(4)
    ]
    ended = driver.run(*appends)
    errors = [chunk.error for chunk in ended.values() if chunk.error is not None]
    assert errors == ["the engine gave this session up"]
    assert sum(len(chunk.token_ids) == quota for chunk in ended.values()) == 3
    driver.close_all()
    assert plant.backend.snapshot().held_blocks == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"modality": "video"}, "takes no video"),
        ({"offset": 10_000}, "beyond the append"),
        ({"length": 9_000}, "an item of 9000"),
    ],
)
def test_features_that_do_not_fit_are_refused(
    plant: Plant, change: dict[str, object], reason: str
) -> None:
    """One session ends with an error; nothing raises."""
    driver = BackendDriver(plant.backend)
    chunk = second(plant.audio, 0)
    wrong = msgspec.structs.replace(chunk.features[0], **change)
    error = driver.run(driver.append("a", chunk.token_ids, 1, features=(wrong,)))["a"].error
    assert error is not None
    assert reason in error
