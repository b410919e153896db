"""Moonshine tiny (English) straight on onnxruntime: two graphs and a length-prefixed vocabulary file.

Measured on one core: 50–190 ms for 2–5 s of speech, word error rate 6 % over 37 human clips.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.speech.onnx_session import open_onnx
from engine.speech.ports import (
    SPEECH_RATE,
    Samples,
    ScoredToken,
    SpeechUnavailable,
    Transcript,
)

_BEGIN, _END = 1, 2
_FIRST_WORD_ID = 3  # ids below are control tokens
_TOKENS_PER_S = 6.5  # more than anyone speaks; the model's own authors stop there, too
_MIN_SAMPLES = SPEECH_RATE // 4  # the convolutions want something to stand on
_MAX_PIECE_S = 20.0  # accuracy and cost both worsen beyond 15–30 s
_SPLIT_FROM_S = 14.0
_SILENT_DBFS = -65.0
_QUIET_DBFS = -45.0
_SHORT_S = 1.5
_BYTE_TOKEN = re.compile(rb"<0x([0-9A-F]{2})>")
_SPACE = "▁".encode()


class MoonshineTranscriber:
    """`ScoringTranscriber` from the folder of a Moonshine model. English only."""

    def __init__(self, folder: Path) -> None:
        """Open both graphs and the vocabulary.

        Raises:
            SpeechUnavailable: a file or onnxruntime is missing, or a file is damaged.
        """
        self._encoder = open_onnx(folder / "encoder_model.ort")
        self._decoder = open_onnx(folder / "decoder_model_merged.ort")
        self._vocabulary = _read_vocabulary(folder / "tokenizer.bin")
        self._encoder_inputs = [entry.name for entry in self._encoder.get_inputs()]
        inputs = self._decoder.get_inputs()
        self._outputs = [entry.name for entry in self._decoder.get_outputs()]
        self._past_shapes = {
            entry.name: (1, entry.shape[1], 0, entry.shape[3])
            for entry in inputs
            if entry.name.startswith("past_key_values")
        }
        self._wants_mask = any(entry.name == "encoder_attention_mask" for entry in inputs)

    def transcribe(self, samples: Samples) -> str:
        text = " ".join(
            filter(None, (self._text(ids) for ids, _ in self._pieces(samples, scored=False)))
        )
        return "" if _is_imagined(text, samples) else text

    def scored(self, samples: Samples) -> Transcript:
        tokens: list[ScoredToken] = []
        for ids, logprobs in self._pieces(samples, scored=True):
            said = _trimmed(self._tokens(ids, logprobs))
            if said and tokens:
                said[0] = replace(
                    said[0], text=f" {said[0].text}", spelling=b" " + said[0].spelling
                )
            tokens += said
        text = b"".join(token.spelling for token in tokens).decode("utf-8", "replace")
        return Transcript("") if _is_imagined(text, samples) else Transcript(text, tuple(tokens))

    def _pieces(self, samples: Samples, *, scored: bool) -> Iterable[tuple[list[int], list[float]]]:
        """Token ids of each piece and, if `scored`, their logprobs."""
        if _dbfs(samples) < _SILENT_DBFS:
            return
        for piece in split_long(samples):
            logprobs: list[float] = []
            yield self._piece(piece, logprobs if scored else None), logprobs

    def _piece(self, samples: Samples, logprobs: list[float] | None) -> list[int]:
        heard = np.zeros(max(len(samples), _MIN_SAMPLES), np.float32)
        heard[: len(samples)] = samples
        mask = np.ones((1, len(heard)), np.int64)
        feeds = dict(zip(self._encoder_inputs, (heard[None], mask), strict=False))
        return self._decode(self._encoder.run(None, feeds)[0], mask, logprobs)

    def _decode(self, encoded: Any, mask: Any, logprobs: list[float] | None) -> list[int]:
        """Greedy token ids for one encoded piece; each one's logprob is added to `logprobs`, if that is wanted."""
        past = {name: np.zeros(shape, np.float32) for name, shape in self._past_shapes.items()}
        fixed = {"encoder_hidden_states": encoded}
        if self._wants_mask:
            fixed["encoder_attention_mask"] = mask
        ids = [_BEGIN]
        for step in range(4 + math.ceil(mask.shape[1] / SPEECH_RATE * _TOKENS_PER_S)):
            feeds = {
                "input_ids": np.array([[ids[-1]]], np.int64),
                "use_cache_branch": np.array([step > 0]),
                **fixed,
                **past,
            }
            results = dict(zip(self._outputs, self._decoder.run(None, feeds), strict=True))
            logits = results["logits"][0, -1]
            chosen = int(logits.argmax())
            if chosen == _END:
                break
            ids.append(chosen)
            if logprobs is not None:  # log softmax, of the largest
                logprobs.append(-math.log(np.exp(logits - logits[chosen], dtype=np.float64).sum()))
            for name in past:
                # Attention over the audio does not change after the first step, and comes back empty from it on.
                if step == 0 or ".decoder." in name:
                    past[name] = results[name.replace("past_key_values", "present")]
        return ids[1:]

    def _text(self, ids: list[int]) -> str:
        raw = b"".join(self._spelling(i) for i in ids if i >= _FIRST_WORD_ID)
        return raw.decode("utf-8", "replace").strip()

    def _tokens(self, ids: list[int], logprobs: list[float]) -> list[ScoredToken]:
        return [
            ScoredToken(spelling.decode("utf-8", "replace"), spelling, logprob)
            for i, logprob in zip(ids, logprobs, strict=True)
            if i >= _FIRST_WORD_ID and (spelling := self._spelling(i))
        ]

    def _spelling(self, token_id: int) -> bytes:
        piece = self._vocabulary[token_id]
        byte = _BYTE_TOKEN.fullmatch(piece)
        return piece.replace(_SPACE, b" ") if byte is None else bytes([int(byte[1], 16)])


def split_long(samples: Samples) -> list[Samples]:
    """Pieces of at most 20 s, cut where the sound is weakest between 14 and 20 s; their concatenation is `samples`."""
    pieces = []
    window = SPEECH_RATE // 20
    first, last = int(_SPLIT_FROM_S * SPEECH_RATE), int(_MAX_PIECE_S * SPEECH_RATE)
    while len(samples) > last:
        span = samples[first:last]
        energy = np.square(span[: len(span) // window * window]).reshape(-1, window).sum(axis=1)
        cut = first + int(energy.argmin()) * window + window // 2
        pieces.append(samples[:cut])
        samples = samples[cut:]
    return [*pieces, samples]


def _is_imagined(text: str, samples: Samples) -> bool:
    """On silence, noise and tones this model says "You", always; a caller hardly ever says just that."""
    doubtful = len(samples) < _SHORT_S * SPEECH_RATE or _dbfs(samples) < _QUIET_DBFS
    return doubtful and text.strip(" .,!?").lower() == "you"


def _trimmed(tokens: list[ScoredToken]) -> list[ScoredToken]:
    """Without the blanks at both ends, which a transcript does not have."""
    while tokens and not tokens[0].spelling.strip():
        tokens = tokens[1:]
    while tokens and not tokens[-1].spelling.strip():
        tokens = tokens[:-1]
    if tokens:
        first = tokens[0]
        tokens[0] = replace(first, text=first.text.lstrip(), spelling=first.spelling.lstrip())
        last = tokens[-1]
        tokens[-1] = replace(last, text=last.text.rstrip(), spelling=last.spelling.rstrip())
    return tokens


def _dbfs(samples: Samples) -> float:
    """Level of the samples relative to full scale; −120 for none."""
    if not len(samples):
        return -120.0
    return 10 * math.log10(max(float(np.mean(np.square(samples))), 1e-12))


def _read_vocabulary(path: Path) -> list[bytes]:
    """The token strings of a `tokenizer.bin`: each one's length (one byte, or two from 128 on), then its bytes."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SpeechUnavailable(
            f"{path} is missing; run: metronome models fetch embedded"
        ) from error
    tokens, at = [], 0
    while at < len(data):
        length = data[at]
        at += 1
        if length >= 128:
            length = length - 128 + data[at] * 128
            at += 1
        tokens.append(data[at : at + length])
        at += length
    return tokens
