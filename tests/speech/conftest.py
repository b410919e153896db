"""The real speech parts, loaded once."""

import pytest
from support.embedded import embedded_files

from engine.speech.hibari import HibariVoice
from engine.speech.moonshine import MoonshineTranscriber
from engine.speech.silero import SileroVad


@pytest.fixture(scope="session")
def silero() -> SileroVad:
    pytest.importorskip("onnxruntime")
    return SileroVad(embedded_files().vad)


@pytest.fixture(scope="session")
def moonshine() -> MoonshineTranscriber:
    pytest.importorskip("onnxruntime")
    return MoonshineTranscriber(embedded_files().transcriber)


@pytest.fixture(scope="session")
def hibari() -> HibariVoice:
    pytest.importorskip("hibari")
    return HibariVoice()
