"""Noise reduction: noise gets weaker, speech stays, and a machine without it does without."""

import sys

import numpy as np
import pytest
from speech.test_real_parts import recording, word_error_rate
from support.sim_engine import tone

from engine.models.base import SessionSetup
from engine.models.caller_turns import CallerTurns
from engine.speech.denoise import NoiseKind, WebRtcNoiseReducer, noise_reducer
from engine.speech.ports import SPEECH_RATE, Samples


def noise(seconds: float, level: float = 0.05) -> Samples:
    samples = np.random.default_rng(3).normal(0, level, int(seconds * SPEECH_RATE))
    return samples.astype(np.float32)


def level_db(samples: Samples) -> float:
    return float(20 * np.log10(np.sqrt(np.mean(np.square(samples))) + 1e-9))


def reduced(kind: NoiseKind, samples: Samples, piece: int = 2560) -> Samples:
    pytest.importorskip("webrtc_noise_gain")
    reducer = WebRtcNoiseReducer(kind)
    pieces = [reducer.push(samples[at : at + piece]) for at in range(0, len(samples), piece)]
    return np.concatenate(pieces)


@pytest.mark.parametrize(("kind", "gain_db"), [("near_field", -8), ("far_field", -12)])
def test_steady_noise_gets_weaker(kind: NoiseKind, gain_db: float) -> None:
    """After a second of listening; more so across the room."""
    before = noise(4)
    after = reduced(kind, before)
    assert level_db(after[SPEECH_RATE * 2 :]) - level_db(before) < gain_db


def test_no_sound_is_lost_or_made() -> None:
    """However it is split: as much comes out as went in, but for less than a frame of 10 ms."""
    samples = noise(1)
    whole = reduced("near_field", samples)
    assert len(samples) - len(whole) < 160
    split = reduced("near_field", samples, piece=237)
    assert np.array_equal(split, whole[: len(split)])
    assert len(whole) - len(split) < 160
    assert level_db(reduced("far_field", np.zeros(SPEECH_RATE, np.float32))) < -120


def test_a_caller_is_heard_through_it_when_the_session_says_so() -> None:
    """From the next frame on, and no longer than it says so."""
    pytest.importorskip("webrtc_noise_gain")
    pcm = (noise(1) * 32767).astype("<i2").tobytes()
    setups = [
        SessionSetup(input_rate=SPEECH_RATE, noise_reduction=kind) for kind in (None, "far_field")
    ]
    caller = CallerTurns(setups[0], np.zeros(0, np.float32))
    levels = []
    for setup in (setups[0], setups[1], setups[0]):
        caller.configure(setup)
        for _ in range(2):
            heard = caller.frames(pcm)
        levels.append(level_db(heard.reshape(-1)))
    assert levels[1] < levels[0] - 8
    assert abs(levels[2] - levels[0]) < 1


def test_without_the_package_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting is accepted all the same, and the caller heard as he is."""
    monkeypatch.setitem(sys.modules, "webrtc_noise_gain", None)
    assert noise_reducer("near_field") is None
    setup = SessionSetup(input_rate=SPEECH_RATE, noise_reduction="near_field")
    caller = CallerTurns(setup, np.zeros(0, np.float32))
    sound = tone(0.32, SPEECH_RATE)
    assert level_db(caller.frames(sound).reshape(-1)) > -15


@pytest.mark.embedded
@pytest.mark.slow
def test_speech_in_noise_is_still_understood(moonshine: object) -> None:
    """Reduced, a recording in moderate noise has the words it had."""
    samples, transcript = recording("goforward")
    loud = samples + noise(len(samples) / SPEECH_RATE + 1, 0.01)[: len(samples)]
    heard = moonshine.transcribe(reduced("far_field", loud))  # type: ignore[attr-defined]
    assert word_error_rate(transcript, heard) <= 0.15
