"""A part that cannot be built says in one line what to do."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.speech.hibari import HibariVoice
from engine.speech.moonshine import MoonshineTranscriber
from engine.speech.ports import SpeechUnavailable
from engine.speech.silero import SileroVad


@pytest.mark.parametrize(
    ("package", "build"),
    [
        ("onnxruntime", lambda: SileroVad(Path("a.onnx"))),
        ("onnxruntime", lambda: MoonshineTranscriber(Path("folder"))),
        ("hibari", HibariVoice),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str, build: Callable[[], object]
) -> None:
    """Without its package a part says what to install."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SpeechUnavailable, match=r"^[^\n]*pip install[^\n]*$"):
        build()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """Without its weights a part names the file and the command that fetches it."""
    pytest.importorskip("onnxruntime")
    with pytest.raises(SpeechUnavailable, match=r"^\S*vad\.onnx is missing; run: metronome models"):
        SileroVad(tmp_path / "vad.onnx")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """A file that is no model is named, with the command that replaces it."""
    pytest.importorskip("onnxruntime")
    (tmp_path / "vad.onnx").write_bytes(b"not a model at all")
    with pytest.raises(SpeechUnavailable, match=r"vad\.onnx is not a usable model; run"):
        SileroVad(tmp_path / "vad.onnx")
