"""The embedded voice and transcriber, as the callers of a benchmark use them."""

from collections.abc import Iterable

import numpy as np
import soxr

from bench.audio import WIRE_RATE, Utterance
from engine.speech.hibari import HibariVoice
from engine.speech.moonshine import MoonshineTranscriber
from engine.speech.ports import SPEECH_RATE, Transcriber
from engine.weights import EmbeddedFiles, embedded_dir


def questions(texts: Iterable[str]) -> list[Utterance]:
    """`texts`, said by the embedded voice.

    Raises:
        SpeechUnavailable: the voice's package is missing; the message says what to do.
    """
    voice = HibariVoice()
    assert voice.rate == WIRE_RATE, voice.rate
    return [
        Utterance(f"question-{number}", voice.speak(text, voice.names[0], 1.0), text, human=False)
        for number, text in enumerate(texts, 1)
    ]


def transcriber() -> Transcriber:
    """The embedded transcriber.

    Raises:
        SpeechUnavailable: weights or packages are missing; the message says what to do.
    """
    return MoonshineTranscriber(EmbeddedFiles(embedded_dir()).transcriber)


def listen_again(ears: Transcriber, pcm: bytes) -> str:
    """What is said in `pcm`, mono pcm16 at WIRE_RATE."""
    samples = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
    return ears.transcribe(soxr.resample(samples, WIRE_RATE, SPEECH_RATE))
