"""Simulated hearing and voice: no weights, numpy only, deterministic.

They let the whole server run, and be tested, on a bare machine. Nothing is understood: the transcript says how long
was spoken, and the voice hums one tone per letter, loud and long enough for every check on audible output.
"""

import math
from collections.abc import Sequence

import numpy as np

from engine.speech.loudness import to_pcm16
from engine.speech.ports import SPEECH_RATE, Samples

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_LETTER_MS = 65  # about the pace of speech: 15 letters a second
_PAUSE_MS = 120
_AMPLITUDE = 0.25
_PITCHES = {
    letter: 130.0 * 2 ** (index / 12) for index, letter in enumerate("etaoinshrdlcumwfgypbvkjxqz")
}


class EnergyVad:
    """`VoiceActivity` by loudness alone: −45 dBFS is even odds, 10 dB either way is certain."""

    state_size = 0

    def probabilities(self, frames: Samples, states: Samples) -> tuple[Samples, Samples]:
        power = np.square(frames).mean(axis=1)
        level = 10 * np.log10(np.maximum(power, 1e-12))
        return np.clip((level + 55) / 20, 0.0, 1.0).astype(np.float32), states


class DurationTranscriber:
    """`Transcriber` that reports the length of the audio that is louder than a whisper."""

    def transcribe(self, samples: Samples) -> str:
        window = SPEECH_RATE // 100
        whole = len(samples) // window
        levels = np.square(samples[: whole * window]).reshape(whole, window).mean(axis=1)
        tenths = round(float(np.count_nonzero(levels > 10**-4.5)) / 10)
        if not tenths:
            return ""
        whole_seconds = " ".join(_DIGITS[int(digit)] for digit in str(tenths // 10))
        return f"speech lasting {whole_seconds} point {_DIGITS[tenths % 10]} seconds"


class ToneVoice:
    """`Voice` that hums: one tone per letter, a pause per word, pitch by letter."""

    rate = 24_000
    names: Sequence[str] = ("tone",)

    def speak(self, text: str, voice: str, speed: float) -> bytes:
        words = [[c for c in word.lower() if c.isalnum()] for word in text.split()]
        spoken = [word for word in words if word]
        if not spoken:
            return b""
        pace = min(max(speed, 0.25), 4.0)
        pause = np.zeros(int(self.rate * _PAUSE_MS / 1000 / pace), np.float32)
        letter_samples = int(self.rate * _LETTER_MS / 1000 / pace)
        parts = [self._hum(word, letter_samples) for word in spoken]
        joined = [piece for part in parts for piece in (part, pause)]
        return to_pcm16(np.concatenate(joined[:-1]))

    @staticmethod
    def _hum(word: Sequence[str], letter_samples: int) -> Samples:
        """One word as a tone whose pitch glides from letter to letter, fading in and out."""
        pitches = np.array([_PITCHES.get(letter, 200.0) for letter in word])
        phase = np.cumsum(np.repeat(pitches, letter_samples)) * (2 * math.pi / ToneVoice.rate)
        wave = np.sin(phase) + 0.5 * np.sin(2 * phase) + 0.25 * np.sin(3 * phase)
        edge = np.minimum(np.arange(len(wave)), np.arange(len(wave))[::-1]) / (letter_samples / 4)
        shaped: Samples = (wave * np.minimum(edge, 1.0) * (_AMPLITUDE / 1.75)).astype(np.float32)
        return shaped
