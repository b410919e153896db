"""Streaming mel features against the extractor that Whisper-fed models come with."""

import numpy as np
import pytest

from engine.speech.mel import StreamingMel, mel_filters

RATE = 16_000


def voice(seconds: float, seed: int = 0) -> np.ndarray:
    """Noise whose loudness comes and goes, with a tone in it; the loudest sound comes first."""
    rng = np.random.default_rng(seed)
    time = np.arange(int(seconds * RATE)) / RATE
    swell = 0.02 + 0.3 * np.abs(np.sin(2 * np.pi * 1.3 * time)) / (1 + time)
    sound = swell * rng.standard_normal(len(time)) + 0.2 * np.sin(2 * np.pi * 300 * time) * swell
    return sound.astype(np.float32)


def stock(samples: np.ndarray, bins: int = 128) -> np.ndarray:
    """float32[bins, frames], as the models' own extractor makes it, unpadded."""
    whisper = pytest.importorskip("transformers.models.whisper.feature_extraction_whisper")
    extractor = whisper.WhisperFeatureExtractor(feature_size=bins)
    made: np.ndarray = extractor(
        samples, sampling_rate=RATE, padding=False, return_tensors="np"
    ).input_features[0]
    return made


def streamed(
    samples: np.ndarray, piece: int, bins: int = 128, loudest: float = -10.0
) -> np.ndarray:
    mel = StreamingMel(bins, loudest)
    made = []
    for start in range(0, len(samples), piece):
        mel.push(samples[start : start + piece])
        made.append(mel.take(mel.ready))
    made.append(mel.finish())
    return np.concatenate(made, axis=1)


@pytest.mark.parametrize("bins", [80, 128])
def test_filters_are_whispers(bins: int) -> None:
    """The same triangles."""
    audio_utils = pytest.importorskip("transformers.audio_utils")
    theirs = audio_utils.mel_filter_bank(201, bins, 0.0, 8000.0, RATE, "slaney", "slaney")
    np.testing.assert_allclose(mel_filters(bins), theirs, atol=1e-6)


@pytest.mark.parametrize("piece", [160, 999, 16_000, 48_000])
def test_pieces_give_what_the_whole_clip_gives(piece: int) -> None:
    """However the audio is cut, once the loudest value is known."""
    samples = voice(2.0)
    whole = stock(samples)
    known = StreamingMel(128)
    known.push(samples)
    np.testing.assert_allclose(streamed(samples, piece, loudest=known.loudest), whole, atol=2e-4)


def test_only_what_comes_before_the_loudest_sound_differs() -> None:
    """A running maximum can only be lower than the clip's: early quiet frames reach further down."""
    samples = np.concatenate([voice(1.0) * 0.01, voice(1.0)])
    whole, parts = stock(samples), streamed(samples, 1600)
    assert parts.shape == whole.shape
    assert np.abs(parts[:, :80] - whole[:, :80]).max() > 0.1
    np.testing.assert_allclose(parts[:, 110:], whole[:, 110:], atol=2e-4)


def test_a_take_leaves_the_rest() -> None:
    """Chunks of exactly so many frames, as encoders want them."""
    mel = StreamingMel(80)
    mel.push(voice(1.5))
    assert mel.take(100).shape == (80, 100)
    assert mel.ready == 49  # the last frame waits for what follows
    assert mel.finish().shape == (80, 50)


@pytest.mark.parametrize("samples", [0, 1, 100, 200, 201, 350])
def test_a_turn_shorter_than_a_window_gives_few_frames_or_none(samples: int) -> None:
    """And never breaks."""
    mel = StreamingMel(80)
    mel.push(np.full(samples, 0.1, np.float32))
    assert mel.finish().shape[1] <= 2


def test_silence_is_the_floor() -> None:
    """What padding would be."""
    mel = StreamingMel(80)
    mel.push(voice(1.0))
    mel.push(np.zeros(RATE, np.float32))
    assert mel.take(200)[:, 150].max() == pytest.approx(mel.floor)
