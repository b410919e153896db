"""Recordings come out as the wire wants them."""

import json
from pathlib import Path

import numpy as np
import pytest

from bench.audio import (
    CHUNK_BYTES,
    CLIPS,
    SILENT_CHUNK,
    chunks,
    clip,
    read_wav,
    speech_end_s,
    write_wav,
)
from bench.scoring import rms_dbfs


@pytest.mark.parametrize("name", sorted(json.loads((CLIPS / "clips.json").read_text())))
def test_every_clip_is_there_with_its_words(name: str) -> None:
    """Each recording has a transcript, is loud enough to hear and is named in the notice."""
    utterance = clip(name)
    assert utterance.human
    assert len(utterance.words.split()) >= 4
    assert 2.0 < utterance.duration_s < 10.0
    assert rms_dbfs(np.frombuffer(utterance.pcm, "<i2")) > -45.0
    assert f"{name}.wav" in (CLIPS / "NOTICE.md").read_text()


def test_chunks_lose_nothing_and_are_all_of_one_size() -> None:
    """The last chunk is filled with silence."""
    pcm = bytes(range(256)) * 10
    pieces = list(chunks(pcm))
    assert {len(piece) for piece in pieces} == {CHUNK_BYTES}
    assert b"".join(pieces)[: len(pcm)] == pcm
    assert not any(b"".join(pieces)[len(pcm) :])


def test_speech_ends_where_the_sound_does() -> None:
    """Trailing silence does not count as speech."""
    loud = np.full(CHUNK_BYTES // 2, 8000, "<i2").tobytes()
    assert speech_end_s(SILENT_CHUNK * 3 + loud * 2 + SILENT_CHUNK * 50) == pytest.approx(0.1)
    assert speech_end_s(SILENT_CHUNK) == 0.0
    assert speech_end_s(b"") == 0.0


def test_a_wav_file_reads_back_as_written(tmp_path: Path) -> None:
    """Writing and reading keep every sample and the rate."""
    samples = np.arange(-500, 500, dtype=np.int16)
    write_wav(tmp_path / "a.wav", samples.tobytes(), 24_000)
    again, rate = read_wav(tmp_path / "a.wav")
    assert rate == 24_000
    assert np.array_equal(samples, again)
