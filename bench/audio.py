"""Speech as the wire wants it: mono pcm16 at 24 kHz, in 20 ms chunks."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

WIRE_RATE = 24_000  # Hz, the Realtime API's pcm16
CHUNK_MS = 20
CHUNK_BYTES = WIRE_RATE * CHUNK_MS // 1000 * 2
SILENT_CHUNK = bytes(CHUNK_BYTES)

CLIPS = Path(__file__).resolve().parent / "clips"
_VOICED_SHARE = 0.1  # of the loudest 20 ms: quieter chunks at the end are not speech

Samples = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Utterance:
    """Something to say into the microphone."""

    name: str
    pcm: bytes  # mono pcm16 at WIRE_RATE
    words: str  # what is said
    human: bool  # a recording of a person, whose transcript must be right

    @property
    def duration_s(self) -> float:
        return len(self.pcm) / 2 / WIRE_RATE


def at_rate(samples: Samples, source_hz: int, target_hz: int) -> Samples:
    """`samples` resampled, whole clip at once."""
    if source_hz == target_hz:
        return samples
    resampled: Samples = soxr.resample(samples, source_hz, target_hz)
    return resampled


def clip(name: str) -> Utterance:
    """One of the recordings in bench/clips, at the wire's rate."""
    about = json.loads((CLIPS / "clips.json").read_text(encoding="utf-8"))[name]
    samples, rate = read_wav(CLIPS / f"{name}.wav")
    return Utterance(
        name, at_rate(samples, rate, WIRE_RATE).tobytes(), about["transcript"], human=True
    )


def read_wav(path: Path) -> tuple[Samples, int]:
    """Mono pcm16 samples of an audio file, and its rate in Hz; of several channels the first."""
    samples, rate = soundfile.read(path, dtype="int16", always_2d=True)
    return np.ascontiguousarray(samples[:, 0]), int(rate)


def write_wav(path: Path, pcm: bytes, rate: int = WIRE_RATE) -> None:
    """Store mono pcm16 as a WAV file."""
    soundfile.write(path, np.frombuffer(pcm, "<i2"), rate, subtype="PCM_16")


def chunks(pcm: bytes) -> Iterator[bytes]:
    """`pcm` in pieces of exactly 20 ms; the last is filled up with silence."""
    for start in range(0, len(pcm), CHUNK_BYTES):
        yield pcm[start : start + CHUNK_BYTES].ljust(CHUNK_BYTES, b"\0")


def speech_end_s(pcm: bytes) -> float:
    """Seconds into `pcm` at which the last chunk that is not near silence ends; 0.0 if none."""
    levels = [float(np.abs(np.frombuffer(c, "<i2").astype(np.int32)).mean()) for c in chunks(pcm)]
    loudest = max(levels, default=0.0)
    if loudest == 0.0:
        return 0.0
    last = max(i for i, level in enumerate(levels) if level >= loudest * _VOICED_SHARE)
    return (last + 1) * CHUNK_MS / 1000
