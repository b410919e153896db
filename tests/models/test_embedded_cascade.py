"""The embedded stack hears a real recording, tick by tick."""

import json
from collections.abc import Sequence

import numpy as np
import pytest
import soundfile as sf
import soxr
from support.embedded import clip, embedded_files

from engine.models.base import (
    InteractionModel,
    SessionSetup,
    Signal,
    SpeechPaused,
    SpeechStarted,
    SpeechStopped,
)
from engine.models.registry import ModelSettings, build_model

pytestmark = [pytest.mark.embedded, pytest.mark.slow]


@pytest.fixture(scope="module")
def model() -> InteractionModel:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("hibari")
    return build_model(ModelSettings(embedded=embedded_files().root))


def call(name: str, rate: int) -> Sequence[bytes]:
    """A recording with a second of silence around it, as ticks of pcm16 at `rate`."""
    samples, own = sf.read(clip(name), dtype="float32")
    silence = np.zeros(rate, np.float32)
    wave = np.concatenate([silence, soxr.resample(samples, own, rate), silence])
    pcm, tick = (wave * 32767).astype("<i2").tobytes(), rate * 160 // 1000 * 2
    return [pcm[at : at + tick] for at in range(0, len(pcm), tick)]


@pytest.mark.parametrize("rate", [24_000, 8_000])
def test_recordings_are_turns_and_are_understood(model: InteractionModel, rate: int) -> None:
    """Two callers at once: each recording is one turn, and its first words are heard."""
    names = ("librivox-0880", "goforward")
    callers = [model.open(SessionSetup(input_rate=rate)) for _ in names]
    signals: list[list[Signal]] = [[] for _ in names]
    for ticks in zip(*(call(name, rate) for name in names), strict=False):
        for found, heard in zip(
            signals, model.hear(list(zip(callers, ticks, strict=True))), strict=True
        ):
            found += heard.signals
    expected = json.loads(clip("clips").with_suffix(".json").read_text())
    for name, caller, found in zip(names, callers, signals, strict=True):
        turns = [type(s) for s in found if not isinstance(s, SpeechPaused)]
        assert turns == [SpeechStarted, SpeechStopped]
        turn = model.utterance(caller, cut=True)
        assert turn is not None
        heard_words = model.transcribe(turn).lower().split()
        assert heard_words[:2] == expected[name]["transcript"].split()[:2]
