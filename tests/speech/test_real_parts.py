"""The embedded speech parts on real and synthetic speech."""

import json
import math
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import soundfile as sf
from support.embedded import clip

from engine.speech.hibari import HibariVoice
from engine.speech.moonshine import MoonshineTranscriber
from engine.speech.ports import Transcript
from engine.speech.resample import Resampler
from engine.speech.silero import SileroVad

pytestmark = [pytest.mark.embedded, pytest.mark.slow]

_CLIPS = ("librivox-0870", "librivox-0880", "goforward")
_SPELLINGS = {"mr": "mister", "10": "ten"}


def words(text: str) -> list[str]:
    bare = re.sub(r"[^a-z0-9' ]", " ", text.lower().replace("-", " "))
    return [_SPELLINGS.get(word, word) for word in bare.split()]


def word_error_rate(said: str, heard: str) -> float:
    reference, row = words(said), list(range(len(words(heard)) + 1))
    for i, expected in enumerate(reference, 1):
        above, row[0] = row[0], i
        for j, got in enumerate(words(heard), 1):
            above, row[j] = row[j], min(above + (expected != got), row[j] + 1, row[j - 1] + 1)
    return row[-1] / len(reference)


def recording(name: str) -> tuple[np.ndarray, str]:
    samples, rate = sf.read(clip(name), dtype="float32")
    assert rate == 16_000
    return samples, json.loads(clip("clips").with_suffix(".json").read_text())[name]["transcript"]


@pytest.mark.parametrize("name", _CLIPS)
def test_human_speech_is_understood(moonshine: MoonshineTranscriber, name: str) -> None:
    """At most 15 % of the words of a human recording are wrong."""
    samples, transcript = recording(name)
    assert word_error_rate(transcript, moonshine.transcribe(samples)) <= 0.15


def test_a_transcriber_serves_several_threads(moonshine: MoonshineTranscriber) -> None:
    """Sessions that transcribe at the same time get what each would get alone."""
    clips = [recording(name)[0] for name in _CLIPS[1:]] * 2
    alone = [moonshine.transcribe(samples) for samples in clips]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(moonshine.transcribe, clips)) == alone


@pytest.mark.parametrize("level", [0.0, 0.001, 0.05])
def test_noise_is_not_speech(moonshine: MoonshineTranscriber, level: float) -> None:
    """Silence and noise give no words, although the model itself says "You"."""
    noise = np.random.default_rng(1).normal(0, level, 16_000).astype(np.float32)
    assert moonshine.transcribe(noise) == ""


def test_long_speech_is_transcribed_in_pieces(moonshine: MoonshineTranscriber) -> None:
    """28 s of speech, beyond what the model takes at once, still comes out whole."""
    samples, transcript = recording("librivox-0870")
    heard = moonshine.transcribe(np.concatenate([samples] * 4))
    assert word_error_rate(" ".join([transcript] * 4), heard) <= 0.15


@pytest.mark.parametrize("text", ["The capital of France is Paris.", "Yes.", "I have two dogs."])
def test_the_voice_is_understood(
    hibari: HibariVoice, moonshine: MoonshineTranscriber, text: str
) -> None:
    """What the voice says is heard word for word."""
    heard = moonshine.transcribe(Resampler(24_000, 16_000).push(hibari.speak(text, "alloy", 1.0)))
    assert words(heard) == words(text)


def test_the_voice_is_trimmed_and_loud(hibari: HibariVoice) -> None:
    """Speech starts within 60 ms and ends within 100 ms, louder than −25 dBFS, never clipping."""
    pcm = hibari.speak("Hello, how are you today?", "heart", 1.0)
    samples = np.frombuffer(pcm, "<i2") / 32768
    loud = np.flatnonzero(np.abs(samples) > 0.02)
    assert loud[0] <= 0.060 * 24_000
    assert len(samples) - loud[-1] <= 0.160 * 24_000
    assert 20 * math.log10(np.sqrt(np.mean(samples**2))) > -25
    assert np.abs(samples).max() < 0.999


def test_the_voice_keeps_pace(hibari: HibariVoice) -> None:
    """Speed changes how long a sentence takes."""
    slow, plain, fast = (len(hibari.speak("I am here now.", "", s)) for s in (0.7, 1.0, 1.5))
    assert slow > 1.2 * plain > 1.2 * 1.2 * fast


@pytest.mark.parametrize("text", ["", "  ", "...", "*"])
def test_nothing_to_say_is_nothing(hibari: HibariVoice, text: str) -> None:
    """Text without a letter or digit makes no sound."""
    assert hibari.speak(text, "heart", 1.0) == b""


def test_batched_voice_activity_is_exact(silero: SileroVad) -> None:
    """A batch of sessions gets the probabilities and states that each would get alone."""
    samples, _ = recording("librivox-0880")
    frames = samples[: 30 * 3 * 512].reshape(3, 30, 512)
    together, states = [], np.zeros((3, silero.state_size), np.float32)
    for index in range(30):
        spoken, states = silero.probabilities(frames[:, index], states)
        together.append(spoken)
    for session in range(3):
        state = np.zeros((1, silero.state_size), np.float32)
        for index in range(30):
            spoken, state = silero.probabilities(frames[session, index][None], state)
            assert abs(float(spoken[0] - together[index][session])) < 1e-4
    assert max(float(p.max()) for p in together) > 0.9


def test_silence_is_not_voice_activity(silero: SileroVad) -> None:
    """A quiet line stays far below any threshold."""
    state = np.zeros((1, silero.state_size), np.float32)
    for _ in range(20):
        spoken, state = silero.probabilities(np.zeros((1, 512), np.float32), state)
        assert spoken[0] < 0.2


def test_every_token_of_a_transcript_has_its_probability(moonshine: MoonshineTranscriber) -> None:
    """The scored words are the words, spelled by their tokens; noise makes them less sure."""
    samples, _ = recording("librivox-0880")
    scored = moonshine.scored(samples)
    assert scored.text == moonshine.transcribe(samples) != ""
    assert "".join(token.text for token in scored.tokens) == scored.text
    assert b"".join(token.spelling for token in scored.tokens) == scored.text.encode()
    assert all(-20 < token.logprob <= 0 for token in scored.tokens)
    noise = np.random.default_rng(0).normal(0, 0.05, len(samples)).astype(np.float32)
    assert _certainty(moonshine, samples + noise) < _certainty(moonshine, samples) < 0


def _certainty(moonshine: MoonshineTranscriber, samples: np.ndarray) -> float:
    return float(np.mean([token.logprob for token in moonshine.scored(samples).tokens]))


def test_long_audio_and_silence_are_scored_as_they_are_transcribed(
    moonshine: MoonshineTranscriber,
) -> None:
    """Pieces are joined alike; where nothing was said there are no tokens."""
    samples, _ = recording("librivox-0880")
    long = np.concatenate([samples] * 4)
    assert moonshine.scored(long).text == moonshine.transcribe(long)
    assert moonshine.scored(np.zeros(16_000, np.float32)) == Transcript("")
