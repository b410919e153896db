"""Resampling, loudness and the simulated parts: numbers in, numbers out."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.speech.loudness import amplify, to_pcm16, trim_silence
from engine.speech.moonshine import split_long
from engine.speech.resample import Resampler
from engine.speech.sim import DurationTranscriber, EnergyVad, ToneVoice


def tone(hz: float, seconds: float, rate: int, level: float = 0.5) -> np.ndarray:
    return (level * np.sin(2 * np.pi * hz * np.arange(int(seconds * rate)) / rate)).astype("f4")


def level_db(samples: np.ndarray) -> float:
    return 10 * math.log10(float(np.mean(samples**2)) + 1e-12)


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 48_000])
def test_a_tick_is_five_frames_at_once(rate: int) -> None:
    """160 ms in is 160 ms out, from the first tick on: nothing is held back."""
    resampler = Resampler(rate, 16_000)
    assert [len(resampler.push(bytes(rate * 160 // 1000 * 2))) for _ in range(4)] == [2560] * 4


@pytest.mark.parametrize(("rate", "hz"), [(24_000, 1000), (24_000, 6000), (8_000, 1000)])
def test_speech_passes_unchanged(rate: int, hz: int) -> None:
    """A tone within the voice band keeps its level to half a decibel, without hum or hiss beside it."""
    out = Resampler(rate, 16_000).push(to_pcm16(tone(hz, 0.5, rate)))[2000:6000]
    assert abs(level_db(out) - level_db(tone(hz, 0.5, rate))) < 0.5
    spectrum = np.abs(np.fft.rfft(out * np.hanning(len(out))))
    peak = round(hz * len(out) / 16_000)
    beside = np.concatenate([spectrum[: peak - 8], spectrum[peak + 9 :]])
    assert 20 * math.log10(beside.max() / spectrum[peak]) < -45


def test_what_cannot_be_represented_is_removed() -> None:
    """A tone above 8 kHz does not fold back into the voice band."""
    out = Resampler(24_000, 16_000).push(to_pcm16(tone(10_000, 0.5, 24_000)))
    assert level_db(out[1000:]) < level_db(tone(10_000, 0.5, 24_000)) - 50


@settings(deadline=None)
@given(st.lists(st.integers(0, 300), max_size=12))
def test_resampling_does_not_depend_on_the_split(sizes: list[int]) -> None:
    """Any way of cutting the stream gives the same samples."""
    pcm = to_pcm16(np.random.default_rng(0).uniform(-0.5, 0.5, sum(sizes)).astype("f4"))
    pieces, at = Resampler(24_000, 16_000), 0
    out = []
    for size in sizes:
        out.append(pieces.push(pcm[at : at + 2 * size]))
        at += 2 * size
    whole = Resampler(24_000, 16_000).push(pcm)
    assert np.allclose(np.concatenate([*out, whole[:0]]), whole, atol=1e-6)


def test_silence_is_trimmed_around_sound() -> None:
    """40 ms are kept before the sound and 80 ms after it."""
    quiet = np.zeros(12_000, np.float32)
    kept = trim_silence(np.concatenate([quiet, tone(400, 0.5, 24_000), quiet]), 24_000)
    assert len(kept) == pytest.approx((0.5 + 0.040 + 0.080) * 24_000, abs=240)


def test_pure_silence_trims_to_nothing() -> None:
    """There is nothing to play where there is no sound."""
    assert len(trim_silence(np.zeros(5000, np.float32), 24_000)) == 0
    assert len(trim_silence(np.zeros(3, np.float32), 24_000)) == 0


def test_amplified_speech_never_clips() -> None:
    """Quiet sound gains 6 dB; loud sound is bent under full scale and keeps its order."""
    quiet, loud = tone(400, 0.1, 24_000, 0.05), np.linspace(-1, 1, 201, dtype=np.float32)
    assert level_db(amplify(quiet, 6.0)) - level_db(quiet) == pytest.approx(6.0, abs=0.01)
    bent = amplify(loud, 6.0)
    assert np.abs(bent).max() < 1.0
    assert (np.diff(bent[30:171]) > 0).all()  # up to 3 dB past full scale


def test_long_audio_is_split_where_it_is_quiet() -> None:
    """Pieces are at most 20 s, cut in the silence, and joined they are the audio."""
    sound = tone(300, 45.0, 16_000)
    sound[16 * 16_000 : int(16.3 * 16_000)] = 0
    pieces = split_long(sound)
    assert np.array_equal(np.concatenate(pieces), sound)
    assert max(map(len, pieces)) <= 20 * 16_000
    assert 16 * 16_000 <= len(pieces[0]) <= 16.3 * 16_000


def test_the_energy_detector_hears_a_tone() -> None:
    """A tone is speech, silence is not, each session by itself."""
    frames = np.stack([tone(300, 0.032, 16_000), np.zeros(512, np.float32)])
    spoken, _ = EnergyVad().probabilities(frames, np.zeros((2, 0), np.float32))
    assert spoken[0] > 0.95
    assert spoken[1] == 0


def test_the_simulated_transcript_tells_the_duration() -> None:
    """It counts sound, not silence, and says nothing where there is none."""
    quiet = np.zeros(8000, np.float32)
    heard = DurationTranscriber().transcribe(np.concatenate([quiet, tone(300, 1.2, 16_000)]))
    assert heard == "speech lasting one point two seconds"
    assert DurationTranscriber().transcribe(quiet) == ""


def test_the_simulated_voice_is_audible_and_paced() -> None:
    """Its length follows the text and the speed, its level is that of speech, and it repeats."""
    voice = ToneVoice()
    short, long = voice.speak("Hi.", "", 1.0), voice.speak("A longer answer, this one.", "", 1.0)
    assert len(long) > 4 * len(short)
    assert len(voice.speak("Hi.", "", 2.0)) == pytest.approx(len(short) / 2, abs=4)
    samples = np.frombuffer(long, "<i2") / 32768
    assert -30 < level_db(samples) < -10
    assert voice.speak("Hi.", "", 1.0) == short
    assert voice.speak(" … ", "", 1.0) == b""
