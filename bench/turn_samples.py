"""Utterances labelled for turn taking: each whole, and most of them broken off in the middle as well.

`clips/turns.json` says where in `clips/turns.ogg` (the embedded voice) and in the human recordings they lie. Of those
the embedded voice speaks, every other one was looked at when the judgement was written ("tuning"); the rest and the
recordings of people were kept for the measurement ("held-out").
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import soundfile

from bench.audio import CLIPS, at_rate, clip, read_wav
from engine.speech.ports import SPEECH_RATE


@dataclass(frozen=True, slots=True)
class TurnSample:
    """Somebody stops speaking: for good, or in the middle of a sentence."""

    words: str
    pcm: bytes  # mono pcm16 at SPEECH_RATE, ending where speech does
    complete: bool
    held_out: bool
    human: bool


def samples() -> list[TurnSample]:
    """The whole set."""
    about = json.loads((CLIPS / "turns.json").read_text(encoding="utf-8"))
    return [*_spoken(about["spoken"]), *_human(about["human"])]


def _spoken(entries: list[dict[str, Any]]) -> Iterator[TurnSample]:
    spoken, rate = soundfile.read(CLIPS / "turns.ogg", dtype="int16")
    assert rate == SPEECH_RATE, rate
    for entry in entries:
        held_out = entry["split"] == "held-out"
        start = entry["start_ms"]
        yield TurnSample(
            entry["words"], _cut(spoken, start, entry["stop_ms"]), True, held_out, human=False
        )
        if "cut_ms" in entry:
            pcm = _cut(spoken, start, entry["cut_ms"])
            yield TurnSample(entry["cut_words"], pcm, False, held_out, human=False)


def _human(entries: list[dict[str, Any]]) -> Iterator[TurnSample]:
    for entry in entries:
        recorded, rate = read_wav(CLIPS / f"{entry['clip']}.wav")
        heard = at_rate(recorded, rate, SPEECH_RATE)
        whole = _cut(heard, 0, entry["stop_ms"])
        yield TurnSample(clip(entry["clip"]).words, whole, True, held_out=True, human=True)
        for cut in entry["cuts"]:
            pcm = _cut(heard, 0, cut["cut_ms"])
            yield TurnSample(cut["cut_words"], pcm, False, held_out=True, human=True)


def _cut(audio: np.ndarray[Any, np.dtype[np.int16]], start_ms: int, stop_ms: int) -> bytes:
    per_ms = SPEECH_RATE // 1000
    return audio[start_ms * per_ms : stop_ms * per_ms].tobytes()
