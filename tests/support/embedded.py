"""The embedded weights, for tests that need them: skipped with a reason where they are missing."""

from pathlib import Path

import pytest

from engine.weights.paths import EmbeddedFiles, embedded_dir


def embedded_files() -> EmbeddedFiles:
    """Where the weights are; skips the test if they are not."""
    files = EmbeddedFiles(embedded_dir())
    missing = [
        p for p in (files.vad, files.transcriber, files.llm / "tokenizer.json") if not p.exists()
    ]
    if missing:
        pytest.skip(f"{missing[0]} is missing; run: metronome models fetch embedded")
    return files


def clip(name: str) -> Path:
    """A vendored recording of a human voice."""
    return Path(__file__).parents[2] / "bench" / "clips" / f"{name}.wav"
