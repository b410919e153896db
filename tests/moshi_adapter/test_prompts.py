"""Calls that begin with a role and a voice: as PersonaPlex lays them out, and nobody else notices."""

import wave
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from moshi.models import LMGen
from moshi.utils.compile import no_compile
from moshi_adapter.streams import (
    FRAME,
    PROMPT_STRETCH,
    RING,
    ROLE,
    Heard,
    append,
    assert_same,
    begin,
    noise,
    prompt,
    prompted,
    tick,
)
from moshi_adapter.streams import alone as plain_alone

from engine.backend import EngineUnavailable
from engine.moshi_adapter.backend import MoshiBackend
from engine.moshi_adapter.prompts import FREE, PAUSE_FRAMES, Prompt, VoicePrompt
from engine.moshi_adapter.settings import TINY_RANDOM, MoshiSettings
from engine.moshi_adapter.weights import load_models
from engine.work import Append, TickBatch, TokenChunk

pytestmark = [pytest.mark.models, pytest.mark.slow]
FRAMES = 60
VOICE_FRAMES = 7


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recordings, "anna" and "ben"; "saved" is anna as NVIDIA's code would have saved her."""
    folder = tmp_path_factory.mktemp("voices")
    for seed, name in enumerate(("anna", "ben"), 20):
        with wave.open(str(folder / f"{name}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(24_000)
            file.writeframes(b"".join(noise(seed, VOICE_FRAMES)))
    save_voice(prompted(1, folder), "anna", folder / "saved.pt")
    return folder


def save_voice(backend: MoshiBackend, name: str, path: Path) -> None:
    """The embeddings of all positions but the last, and a ring of tokens up to one past it."""
    prompting = backend._prompting
    assert prompting is not None
    codes = prompting._voices[name].codes
    assert codes is not None
    lm = backend._lockstep.lm
    tokens = prompting._prompts.of((), VoicePrompt(codes)).tokens
    frames = codes.shape[1]
    cache = torch.full((1, lm.num_codebooks, 4), FREE)
    for position in (frames - 1, frames):
        cache[0, :, position % 4] = tokens[:, position]
    inputs = tokens[None, :, : frames - 1]
    with torch.no_grad():
        summed = lm.text_emb(inputs[:, 0])
        for k, emb in enumerate(lm.emb):
            summed = summed + emb(inputs[:, k + 1])
    torch.save({"embeddings": summed[0, :, None, None], "cache": cache}, path)


def alone(voices: Path, order: Append, frames: list[bytes]) -> Heard:
    """What a prompted stream gives in a backend of its own."""
    backend, heard = prompted(1, voices), Heard()
    begin(backend, order)
    for pcm in frames:
        heard.take(tick(backend, {order.session_id: pcm})[order.session_id])
    return heard


@pytest.fixture(scope="module")
def solo(voices: Path) -> Heard:
    return alone(voices, prompt("me"), noise(1, FRAMES))


def test_role_and_voice_change_what_is_said(voices: Path, solo: Heard) -> None:
    """Each by itself; and the first frame is answered already, because the clock runs."""
    for order in (prompt("me", voice="ben"), prompt("me", (7, 42, 9)), prompt("me", voice=None)):
        other = alone(voices, order, noise(1, 12))
        assert np.abs(other.samples - solo.samples[: len(other.samples)]).max() > 100
    assert len(solo.words) == FRAMES
    assert len(solo.sound) == FRAMES


def test_a_call_without_a_prompt_is_as_ever(voices: Path) -> None:
    """Prompts are an offer: the deployment's other calls begin with their first frame."""
    backend, heard = prompted(2, voices, ring=24), Heard()
    for pcm in noise(1, FRAMES):
        heard.take(tick(backend, {"me": pcm})["me"])
    assert_same(heard, plain_alone(noise(1, FRAMES)))


def test_it_is_what_one_step_per_frame_gives(voices: Path, solo: Heard) -> None:
    """moshi's own generator, its tokens overwritten frame by frame as NVIDIA's does, says and sounds the same."""
    prompting, mine = prompted(1, voices)._prompting, Heard()
    assert prompting is not None
    codes = prompting._voices["anna"].codes
    assert codes is not None
    silence, tone = prompting._prompts._spoken, prompting._prompts._heard
    pause = [(3, silence)] * PAUSE_FRAMES
    voice = [(3, codes[:, k]) for k in range(VOICE_FRAMES)]
    script = [*voice, *pause, *((token, silence) for token in ROLE), *pause]
    models = load_models(MoshiSettings(TINY_RANDOM, device="cpu", context_frames=RING))
    encoder, lm, decoder = models.encoder, models.lm, models.decoder
    gen = LMGen(lm, use_sampling=False)
    with torch.no_grad(), no_compile():
        for module in (encoder, gen, decoder):
            module.streaming_forever(1)
        state = gen._streaming_state
        assert state is not None
        ring = state.cache.shape[2]
        for at in range(len(script) + 1):
            for k in range(lm.dep_q + 1):
                source = at - lm.delays[k]
                if 0 <= source < len(script):
                    text, spoken = script[source]
                    state.cache[0, k, at % ring] = text if k == 0 else spoken[k - 1]
            if at < len(script):
                gen.step(tone[None, :, None])
        for pcm in noise(1, FRAMES):
            sound = np.frombuffer(pcm, "<i2").astype(np.float32).reshape(1, 1, FRAME) / 32768
            tokens = gen.step(encoder.encode(torch.from_numpy(sound)))
            assert tokens is not None
            samples = decoder.decode(tokens[:, 1:])[0, 0].clamp(-1, 1)
            mine.words.append(int(tokens[0, 0, 0]))
            mine.sound.append((samples.numpy() * 32767).astype("<i2").tobytes())
    assert_same(mine, solo)


def test_a_saved_voice_is_the_recording_it_was_saved_from(voices: Path, solo: Heard) -> None:
    """Embeddings and their ring of tokens, in the file format of NVIDIA's code."""
    assert_same(alone(voices, prompt("me", voice="saved"), noise(1, FRAMES)), solo)


def test_a_prompt_is_taken_a_stretch_at_a_time(voices: Path) -> None:
    """No step takes more than `prompt_frames` of one prompt, however many wait; the oldest goes first."""
    backend = prompted(2, voices)
    total = VOICE_FRAMES + PAUSE_FRAMES + len(ROLE) + PAUSE_FRAMES
    assert begin(backend, prompt("a")) == -(-total // PROMPT_STRETCH)
    backend.step(TickBatch(closes=("a",)))
    chunks: list[TokenChunk] = []
    steps, batch, resident = 0, TickBatch((prompt("b"), prompt("c"))), [0]
    while len(chunks) < 2:
        result = backend.step(batch)
        chunks += result.chunks
        resident.append(result.kv.resident_tokens)
        steps, batch = steps + 1, TickBatch()
    # Each step moves something: a long prompt does not look like an engine that hangs.
    grown = [after - before for before, after in pairwise(resident)]
    assert min(grown) > 0
    assert max(grown) == PROMPT_STRETCH
    assert [chunk.session_id for chunk in chunks] == ["b", "c"]
    assert steps == 2 * -(-total // PROMPT_STRETCH)
    assert not backend.busy


def test_neighbours_have_every_tick_and_hear_nothing_of_it(voices: Path, solo: Heard) -> None:
    """Two prompted calls join one after the other beside one that goes on: each is as alone, each frame is answered.

    The neighbour's ring has been full for long when the first joins.
    """
    backend = prompted(4, voices)
    crowd, plain = noise(5, 3 * FRAMES), Heard()
    reference = MoshiBackend(
        MoshiSettings(
            TINY_RANDOM,
            slots=1,
            device="cpu",
            context_frames=RING,
            temperature=0.0,
            text_temperature=0.0,
        )
    )
    beside = Heard()
    for pcm in crowd[: FRAMES + 5]:
        chunks = tick(backend, {"plain": pcm, "other": pcm})
        plain.take(chunks["plain"])
        beside.take(tick(reference, {"plain": pcm})["plain"])
    joiners = {"one": Heard(), "two": Heard()}
    streams = {name: iter(noise(1, FRAMES)) for name in joiners}
    ready: set[str] = set()
    orders = {FRAMES + 5: prompt("one"), FRAMES + 7: prompt("two")}
    for k in range(FRAMES + 5, len(crowd)):
        frames = {"plain": crowd[k], **{n: next(streams[n], b"") for n in sorted(ready)}}
        appends = [append(name, pcm) for name, pcm in frames.items() if pcm]
        if k in orders:
            appends.append(orders[k])
        chunks = {c.session_id: c for c in backend.step(TickBatch(tuple(appends))).chunks}
        plain.take(chunks["plain"])
        beside.take(tick(reference, {"plain": crowd[k]})["plain"])
        for name, heard in joiners.items():
            if name in chunks and name in ready:
                heard.take(chunks[name])
            elif name in chunks:
                ready.add(name)
    assert_same(plain, beside)
    for heard in joiners.values():
        assert_same(heard, solo)


def test_a_call_that_leaves_in_its_prompt_leaves_nothing(voices: Path, solo: Heard) -> None:
    """Its slot is free at once, and the next call in it is as alone; a move to another row in mid-prompt, too."""
    backend, heard = prompted(3, voices), Heard()
    backend.step(TickBatch((prompt("gone", voice="ben"), append("x", noise(3, 1)[0]))))
    backend.step(TickBatch((prompt("me"),), closes=("gone",)))
    result = backend.step(TickBatch(closes=("x",)))
    assert result.kv.free_blocks == 2
    while backend.busy:
        result = backend.step(TickBatch())
    assert [c.session_id for c in result.chunks] == ["me"]
    for pcm in noise(1, FRAMES):
        heard.take(tick(backend, {"me": pcm})["me"])
    assert_same(heard, solo)


@pytest.mark.parametrize(
    ("orders", "error"),
    [
        ([prompt("a", tuple(range(4, 40)))], "the instructions have 36 tokens; at most 29 fit"),
        ([prompt("a", voice="carl")], "there is no voice 'carl'"),
        ([append("a", noise(1, 1)[0]), prompt("a")], "a prompt comes first"),
        ([prompt("a"), append("a", noise(1, 1)[0])], "an append is still under way"),
    ],
)
def test_what_is_no_prompt_ends_that_session_alone(
    voices: Path, orders: list[Append], error: str
) -> None:
    """The others go on; the slot is free again."""
    backend = prompted(2, voices)
    begin(backend, prompt("b"))
    for order in orders:
        result = backend.step(TickBatch((order,)))
    (chunk,) = [c for c in result.chunks if c.error]
    assert (chunk.session_id, chunk.error) == ("a", error)
    assert result.kv.sessions == 1
    assert tick(backend, {"b": noise(1, 1)[0]})["b"].pcm


def test_without_prompts_a_role_is_refused() -> None:
    """A model that was not trained with them."""
    backend = MoshiBackend(MoshiSettings(TINY_RANDOM, slots=1, device="cpu"))
    (chunk,) = backend.step(TickBatch((prompt("a", voice=None),))).chunks
    assert chunk.error == "this model takes sound, not tokens"


def test_a_ring_without_room_is_refused(voices: Path) -> None:
    """When the engine starts, not when the first call comes."""
    with pytest.raises(EngineUnavailable, match="leave no room for a role in 16 frames"):
        prompted(1, voices, ring=16)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.pt", b"nothing", "is no voice of this model"),
        ("a.wav", b"nothing", "is no recording"),
        ("a.txt", b"nothing", r"holds no \.pt or \.wav file"),
    ],
)
def test_a_file_that_is_no_voice_is_named(
    tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    """One line that says which."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(EngineUnavailable, match=why):
        prompted(1, tmp_path)


def test_a_prompt_has_its_positions() -> None:
    """Start tokens first, each stream delayed, and the next position open where the model draws."""
    prompting = prompted(1)._prompting
    assert prompting is not None
    laid: Prompt = prompting._prompts.of((7, 8), None)
    assert laid.frames == 2 * PAUSE_FRAMES + 2
    text = laid.tokens[0].tolist()
    assert text[1:] == [3] * (PAUSE_FRAMES - 1) + [7, 8] + [3] * PAUSE_FRAMES + [FREE]
    spoken, heard = prompting._prompts._spoken, prompting._prompts._heard
    assert laid.tokens[1, 1:-1].unique().tolist() == [int(spoken[0])]
    assert laid.tokens[2, 2:].unique().tolist() == [int(spoken[1])]  # delayed: known beyond the end
    assert laid.tokens[-1, 2:].unique().tolist() == [int(heard[-1])]
