"""The labelled utterances, and how a policy is judged on them."""

import numpy as np
import pytest

from bench.turn_samples import TurnSample, samples
from bench.turn_taking import PAUSES_MS, Bench, Outcome
from engine.models.base import TurnDetection
from engine.speech.ports import SPEECH_RATE, Samples
from engine.speech.sim import EnergyVad

MS_BYTES = SPEECH_RATE // 1000 * 2


def test_the_set_is_whole() -> None:
    """Enough of both kinds and of both halves, people among them, and every sample is audible to its end."""
    every = samples()
    assert sum(s.complete for s in every) == 73
    assert sum(not s.complete for s in every) == 62
    assert sum(s.human for s in every) == 11
    assert all(s.held_out for s in every if s.human)
    assert 60 <= sum(s.held_out for s in every if not s.human) <= 64
    for sample in every:
        sound = np.frombuffer(sample.pcm, "<i2").astype(np.float32)
        assert len(sound) > SPEECH_RATE // 3
        assert np.abs(sound[-SPEECH_RATE // 4 :]).max() > 100, sample.words


class _Words:
    """Understands loud speech as something whole, and quiet speech as something broken off."""

    def transcribe(self, samples: Samples) -> str:
        return "Yes, please." if np.abs(samples).max() > 0.5 else "I would like to book a"


def _sample(amplitude: float, *, complete: bool) -> TurnSample:
    hum = amplitude * np.sin(np.arange(SPEECH_RATE) * 0.1)
    pcm = (hum * 32767).astype("<i2").tobytes()
    return TurnSample("", pcm, complete, held_out=True, human=False)


def test_words_end_a_whole_turn_sooner_and_a_broken_off_one_later_than_silence() -> None:
    """Through the code that serves calls, with a transcriber that can tell them apart."""
    whole, broken = _sample(0.8, complete=True), _sample(0.2, complete=False)
    bench = Bench(EnergyVad(), _Words())
    plain = bench.play("silence", TurnDetection(silence_duration_ms=900), [whole, broken])
    words = bench.play("words", TurnDetection(eagerness="auto"), [whole, broken])
    assert plain.decided_ms[whole] == plain.decided_ms[broken]
    assert words.decided_ms[whole] < plain.decided_ms[whole] < words.decided_ms[broken]


@pytest.mark.parametrize(("decided_ms", "share"), [(250, 1.0), (1050, 0.5), (1900, 0.0)])
def test_cut_ins_are_the_pauses_that_last_longer_than_the_policy_waits(
    decided_ms: float, share: float
) -> None:
    """Half of the pauses from 300 to 1800 ms are longer than 1050 ms."""
    broken = _sample(0.2, complete=False)
    assert PAUSES_MS[0] == 300
    assert Outcome("p", {broken: decided_ms}).cut_in_share([broken]) == share
