"""`metronome bench encode`: what a second of caller audio costs on the CPU before any engine sees it, model by model.

Ours: streaming features of the second, as the model's tensors, wrapped for vLLM. Stock: the model's own feature
extractor on the same second, padded to 30 s where its processor does so. One thread each, the real mel widths, no
weights. And, because features are made piece by piece: how far they are from those of the whole clip. And what an image
costs.
"""

import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.audio import CLIPS, read_wav
from bench.report import Figure, Report, at_most, parser, progress
from engine.models import minicpmo, qwen2_audio, qwen_omni, ultravox
from engine.models.audio_format import AudioFormat
from engine.models.image_format import minicpm_images, qwen_images
from engine.speech.mel import QUIET, Features, StreamingMel
from engine.speech.ports import SPEECH_RATE, Samples
from engine.vllm_adapter.multimodal import ENCODERS, FeatureTranslator

SECOND = SPEECH_RATE
REPEAT, QUICK_REPEAT = 200, 30
IMAGE_TOKENS = 256  # of an image, at most
LIMIT_MS = 5.0  # per second of audio and session: half a percent of a core


@dataclass(frozen=True, slots=True)
class Subject:
    """A model as its checkpoint would have it."""

    name: str
    architecture: str
    audio: AudioFormat
    padded: bool  # the stock processor pads to 30 s


def subjects() -> list[Subject]:
    """The models; the ids of control tokens do not matter here."""

    def control(name: str) -> int:
        return 1

    found = [
        ("Qwen2-Audio", qwen2_audio.ARCHITECTURE, qwen2_audio.audio_format, True),
        ("Qwen2.5-Omni", qwen_omni.ARCHITECTURES_2_5[0], qwen_omni.audio_format_2_5, True),
        ("Qwen3-Omni", qwen_omni.ARCHITECTURE_3, qwen_omni.audio_format_3, False),
        ("MiniCPM-o 4.5", minicpmo.ARCHITECTURE, minicpmo.audio_format, True),
        ("Ultravox", ultravox.ARCHITECTURE, ultravox.audio_format, False),
    ]
    return [Subject(n, a, build({}, control), padded) for n, a, build, padded in found]


def speech() -> Samples:
    """float32 at 16 kHz: a recording from bench/clips."""
    samples, rate = read_wav(CLIPS / "librivox-0870.wav")
    assert rate == SPEECH_RATE, rate
    return samples.astype(np.float32) / np.float32(32_768)


def timed(work: Callable[[Samples], object], audio: Samples, repeat: int) -> float:
    """Median milliseconds per second of audio."""
    whole = len(audio) // SECOND
    took = []
    for index in range(repeat + 5):
        second = audio[index % whole * SECOND :][:SECOND]
        started = time.perf_counter()
        work(second)
        took.append(time.perf_counter() - started)
    return 1000 * float(np.median(took[5:]))


class Ours:
    """One session's encoding."""

    def __init__(self, subject: Subject) -> None:
        self._audio = subject.audio
        self._mel = StreamingMel(subject.audio.bins)
        self._translator = FeatureTranslator(ENCODERS[subject.architecture], images=False)

    def features(self, second: Samples) -> object:
        """What runs in the CPU pool."""
        self._mel.push(second)
        return self._audio.item(self._mel.take(self._audio.chunk_frames), self._mel.floor)

    def wrapped(self, second: Samples) -> object:
        """And what the engine thread adds."""
        self._mel.push(second)
        chunk = self._audio.item(self._mel.take(self._audio.chunk_frames), self._mel.floor)
        return self._translator.specs(chunk.features, 0)


def stock(subject: Subject) -> Callable[[Samples], object]:
    """The feature extractor that the model's processor calls."""
    from transformers import WhisperFeatureExtractor

    build: Any = WhisperFeatureExtractor  # untyped upstream
    extractor = build(feature_size=subject.audio.bins)
    padding = "max_length" if subject.padded else "do_not_pad"

    def run(second: Samples) -> object:
        return extractor(
            second, sampling_rate=SPEECH_RATE, padding=padding, return_attention_mask=True
        )

    return run


def streamed(audio: Samples, bins: int, loudest: float = QUIET) -> Features:
    """Features made second by second."""
    mel = StreamingMel(bins, loudest)
    made = []
    for start in range(0, len(audio), SECOND):
        mel.push(audio[start : start + SECOND])
        made.append(mel.take(mel.ready))
    made.append(mel.finish())
    return np.concatenate(made, axis=1)


def chunked(audio: Samples, bins: int) -> Features:
    """Features of each second as if it were a clip of its own, as the stock extractor gives them."""
    made = []
    for start in range(0, len(audio), SECOND):
        mel = StreamingMel(bins)
        mel.push(audio[start : start + SECOND])
        made.append(mel.finish())
    return np.concatenate(made, axis=1)


def differences(audio: Samples, bins: int) -> list[Figure]:
    """How far features made in pieces are from those of the whole clip. Whisper's features span about 2.0."""
    whole_clip = StreamingMel(bins)
    whole_clip.push(audio)
    whole = whole_clip.finish()
    ways = {
        "streamed, first turn": streamed(audio, bins),
        "streamed, later turns": streamed(audio, bins, whole_clip.loudest),
        "each second by itself": chunked(audio, bins),
    }
    figures = []
    for name, features in ways.items():
        frames = min(features.shape[1], whole.shape[1])
        apart = np.abs(features[:, :frames] - whole[:, :frames])
        figures += [
            Figure(f"{name}: mean difference", round(float(apart.mean()), 5)),
            Figure(f"{name}: largest", round(float(apart.max()), 4)),
            Figure(
                f"{name}: values off by > 0.01", round(100 * float((apart > 0.01).mean()), 2), "%"
            ),
        ]
    return figures


def images(repeat: int) -> list[Figure]:
    """Milliseconds to decode, scale and cut a 720p JPEG, ours and the stock processor's."""
    from PIL import Image
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    small = np.random.default_rng(0).integers(0, 256, (9, 16, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize((1280, 720), Image.Resampling.BICUBIC).save(file, "JPEG")
    data = file.getvalue()
    vision = {"patch_size": 14, "image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)}
    ours = qwen_images(vision, Path(), 0, (0, 0), IMAGE_TOKENS)
    single = minicpm_images(64, 0, (0, 0))
    size = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * IMAGE_TOKENS}
    processor: Any = Qwen2VLImageProcessorPil  # untyped upstream
    theirs = processor(size=size)

    def stock() -> object:
        return theirs(Image.open(io.BytesIO(data)), return_tensors="np")

    ways: dict[str, Callable[[], object]] = {
        "Qwen-Omni": lambda: ours.item(data),
        "MiniCPM-o": lambda: single.item(data),
        "Qwen-Omni, stock processor": stock,
    }
    figures = []
    for name, work in ways.items():
        took = []
        for _ in range(repeat):
            started = time.perf_counter()
            work()
            took.append(time.perf_counter() - started)
        figures.append(Figure(f"image, {name}", round(1000 * float(np.median(took)), 2), "ms"))
    return figures


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; 1 with --check if a target is missed."""
    options = parser("encode", "Audio features per second of speech, one thread.").parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    repeat = QUICK_REPEAT if options.quick else REPEAT
    report = Report("encode", argv)
    audio = speech()
    for subject in subjects():
        progress(subject.name)
        ours, theirs = Ours(subject), stock(subject)
        features = timed(ours.features, audio, repeat)
        wrapped = timed(ours.wrapped, audio, repeat)
        extracted = timed(theirs, audio, repeat)
        how = "padded to 30 s" if subject.padded else "unpadded"
        report.add(
            at_most(f"{subject.name}: features", round(features, 3), "ms", LIMIT_MS),
            Figure(f"{subject.name}: features, wrapped for vLLM", round(wrapped, 3), "ms"),
            Figure(f"{subject.name}: stock extractor, {how}", round(extracted, 3), "ms"),
            Figure(f"{subject.name}: stock / ours", round(extracted / features, 1), "x"),
        )
    report.add(*differences(audio, 128), *images(repeat))
    report.publish(options.json)
    return 1 if options.check and report.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
