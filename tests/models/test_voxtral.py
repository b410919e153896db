"""What Voxtral realtime is fed, tick by tick, and what its tokens say; no engine."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.tiny_audio import write_voxtral
from engine.models.base import AudioChunk, SessionSetup
from engine.models.families import family_of, read_config, unsupported
from engine.models.registry import ModelSettings, build_model, is_mistral
from engine.models.tekken import Tekken
from engine.models.voxtral import KvSpace, VoxtralRealtime

pytest.importorskip("mistral_common")

PER_TOKEN, BACK, AHEAD = 1280, 840, 40  # samples
PREAMBLE = 39  # tokens: one begins, 32 of silence, 6 of delay
FIRST = 64  # ids before the first byte


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_voxtral(tmp_path_factory.mktemp("voxtral"))


def model(folder: Path, tokens: int = 4096) -> VoxtralRealtime:
    return VoxtralRealtime("v", Tekken(folder), (128, 17), KvSpace(tokens))


def ticks(count: int, rate: int = 16_000) -> list[bytes]:
    """A ramp, so that every sample says where it belongs."""
    ramp = (np.arange(count * rate * 80 // 1000) % 30_000).astype("<i2")
    return [part.tobytes() for part in np.split(ramp, count)]


def fed(model: VoxtralRealtime, count: int, rate: int = 16_000) -> list[AudioChunk | None]:
    state = model.open(SessionSetup(input_rate=rate))
    chunks = []
    for pcm in ticks(count, rate):
        (heard,) = model.hear([(state, pcm)])
        chunks.append(heard.chunk)
        if heard.chunk is not None:
            model.decode(state, (FIRST + len(chunks),))
    return chunks


def audio(chunk: AudioChunk | None) -> Any:
    assert chunk is not None
    (feature,) = chunk.features
    assert (feature.modality, feature.offset) == ("audio", 0)
    assert feature.length == len(chunk.token_ids)
    return feature.tensors["audio_arrays"][0]


def test_the_preamble_ends_with_the_seventh_tick(folder: Path) -> None:
    """Silence, then all that was said, exactly to the end of that tick."""
    chunks = fed(model(folder), 9)
    assert chunks[:6] == [None] * 6
    first = chunks[6]
    assert first is not None
    pad = Tekken(folder).special("[STREAMING_PAD]")
    assert first.token_ids == (Tekken(folder).special("<s>"), *[pad] * 38)
    assert (first.header, first.replaces, first.decode) == (PREAMBLE, None, 1)
    heard = audio(first)
    assert len(heard) == PREAMBLE * PER_TOKEN + AHEAD
    assert not heard[: 32 * PER_TOKEN + AHEAD].any()
    said = np.frombuffer(b"".join(ticks(9)[:7]), "<i2") / np.float32(32768)
    np.testing.assert_array_equal(heard[32 * PER_TOKEN + AHEAD :], said)


def test_then_each_tick_is_the_newest_token_once_more_with_its_sound(folder: Path) -> None:
    """80 ms, and what the encoder looks back and ahead; nothing is left out between two ticks."""
    chunks = fed(model(folder), 12)
    whole = audio(chunks[6])
    for index, chunk in enumerate(chunks[7:], start=7):
        assert chunk is not None
        assert chunk.token_ids == (FIRST + index,)  # what was sampled last
        assert (chunk.header, chunk.replaces) == (0, 1)
        own = audio(chunk)
        assert len(own) == BACK + PER_TOKEN + AHEAD
        np.testing.assert_array_equal(own[: BACK + AHEAD], whole[-(BACK + AHEAD) :])
        whole = np.concatenate([whole, own[BACK + AHEAD :]])
    said = np.frombuffer(b"".join(ticks(12)), "<i2") / np.float32(32768)
    np.testing.assert_array_equal(whole[32 * PER_TOKEN + AHEAD :], said)


@pytest.mark.parametrize("rate", [8_000, 24_000, 48_000])
def test_a_tick_at_any_rate_is_heard_when_it_is_there(folder: Path, rate: int) -> None:
    """Resampling holds nothing back that would make a tick wait for the next."""
    assert [chunk is None for chunk in fed(model(folder), 20, rate)] == [True] * 6 + [False] * 14


def test_where_the_context_ends_another_begins_and_no_sound_is_lost(folder: Path) -> None:
    """The new one hears again what had no words yet."""
    chunks = fed(model(folder, PREAMBLE + 5), 16)
    opened = [index for index, chunk in enumerate(chunks) if chunk is not None and chunk.header]
    assert opened == [6, 11, 16][: len(opened)]
    said = np.frombuffer(b"".join(ticks(16)), "<i2") / np.float32(32768)
    again = audio(chunks[11])
    assert not again[: 32 * PER_TOKEN].any()
    end = 12 * PER_TOKEN  # of what was said up to this tick
    np.testing.assert_array_equal(again[32 * PER_TOKEN + AHEAD :], said[end - 7 * PER_TOKEN : end])


def test_the_context_never_passes_what_it_may_hold(folder: Path) -> None:
    """Counted as a backend does: what is kept, what comes again, what is sampled."""
    limit, context = PREAMBLE + 3, 0
    for chunk in fed(model(folder, limit), 40):
        if chunk is not None:
            kept = 0 if chunk.replaces is None else context - chunk.replaces
            context = kept + len(chunk.token_ids) + chunk.decode
            assert context <= limit


def test_tokens_spell_bytes_and_special_ones_nothing(folder: Path) -> None:
    """Half a character waits for its other half; padding says that no word is being written."""
    scribe = model(folder)
    state = scribe.open(SessionSetup())
    first, second = (FIRST + byte for byte in "é".encode())
    assert scribe.decode(state, (first,)).text == ""
    said = scribe.decode(state, (second,))
    assert (said.text, said.speaking, said.turn_over) == ("é", True, False)
    pad = scribe.decode(state, (Tekken(folder).special("[STREAMING_PAD]"),))
    assert (pad.text, pad.speaking, pad.turn_over) == ("", False, True)
    assert scribe.decode(state, (FIRST + 256,)).text == ""  # beyond the vocabulary


def test_the_folder_says_what_it_is(folder: Path) -> None:
    """Mistral's own format, by its params.json; one that is not causal is refused by name."""
    named = ModelSettings(id=str(folder), vad="sim", stt="none", tick_ms=80)
    family = family_of(read_config(folder))
    assert family is not None
    assert family.name == "Voxtral realtime"
    assert is_mistral(named)
    built = build_model(named)
    assert built.spec.transcribes
    assert built.spec.words_behind_ms == 480
    with pytest.raises(ValueError, match="tick_ms must be 80"):
        build_model(ModelSettings(id=str(folder), vad="sim", stt="none"))


def test_the_offline_model_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    """It would be loaded, and then nobody would know how to feed it."""
    params = json.loads((folder / "params.json").read_text())
    params["multimodal"]["whisper_model_args"]["encoder_args"]["causal"] = False
    (tmp_path / "params.json").write_text(json.dumps(params))
    (tmp_path / "tekken.json").write_text("{}")
    reason = unsupported(read_config(tmp_path), "x")
    assert reason is not None
    assert "VoxtralForConditionalGeneration is not supported" in reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "has no tekken.json"), ("{", "not a streaming"), ("{}", "not a streaming")],
)
def test_a_tokenizer_that_is_none_is_told(tmp_path: Path, content: str | None, reason: str) -> None:
    """With the file that is wrong."""
    if content is not None:
        (tmp_path / "tekken.json").write_text(content)
    with pytest.raises(ValueError, match=reason):
        Tekken(tmp_path)
