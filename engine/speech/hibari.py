"""The hibari voice: 24 kHz English speech at about 80 times real time on one core.

The package emits some 300 ms of silence before and 450 ms after each call and is quiet (RMS 0.044), so both are put
right here: a caller hears the answer a quarter of a second sooner and clauses join without gaps. Pace is changed by
the model itself, so pitch stays. Only the voice in the package is used; its other voices would be downloaded.
"""

from collections.abc import Sequence
from typing import Any

from engine.speech.loudness import amplify, to_pcm16, trim_silence
from engine.speech.ports import SpeechUnavailable

_GAIN_DB = 6.0
_SLOWEST, _FASTEST = 0.5, 2.0  # what the model was made for


class HibariVoice:
    """`Voice` from the hibari-tts package."""

    rate = 24_000
    names: Sequence[str] = ("heart",)

    def __init__(self) -> None:
        """Load the voice and say something once: the first call reads its dictionaries.

        Raises:
            SpeechUnavailable: the package is missing.
        """
        try:
            from hibari import Hibari
        except ImportError as error:
            raise SpeechUnavailable(
                "the embedded voice needs hibari-tts; pip install 'metronome-realtime[embedded]'"
            ) from error
        self._model: Any = Hibari(voice=self.names[0], threads=1)
        self._model("Ready.", seed=0)

    def speak(self, text: str, voice: str, speed: float) -> bytes:
        if not any(character.isalnum() for character in text):
            return b""
        pace = min(max(speed, _SLOWEST), _FASTEST)
        samples = self._model(
            text, speed=pace, seed=0
        )  # seeded: the same clause always sounds the same
        return to_pcm16(amplify(trim_silence(samples, self.rate), _GAIN_DB))
