"""Mistral's tekken.json, as far as a transcriber needs it: what tokens spell, and how audio is cut.

Ids count the special tokens first; then come the byte sequences of the vocabulary, by rank.
"""

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_RATE = 16_000  # Hz, of every model there is


@dataclass(frozen=True, slots=True)
class StreamingAudio:
    """How a causal model wants its audio, in samples at 16 kHz."""

    per_token: int  # one token's worth
    look_back: int  # before it, that its features also see
    look_ahead: int
    left_pad: int  # tokens of silence in front of the caller's first sound
    delay: int  # tokens by which the words are behind the sound


class Tekken:
    """One tokenizer. Spells tokens like `engine.models.detokenizer.TokenBytes`."""

    def __init__(self, folder: Path) -> None:
        """Read `tekken.json` in `folder`.

        Raises:
            ValueError: there is none, or it is none of a streaming transcriber's.
        """
        path = folder / "tekken.json"
        try:
            content = json.loads(path.read_text("utf-8"))
            config, self.audio = content["config"], _streaming(content["audio"])
            self._specials: int = config["default_num_special_tokens"]
            words = config["default_vocab_size"] - self._specials
            self._spelled = [base64.b64decode(t["token_bytes"]) for t in content["vocab"][:words]]
            self._named = {t["token_str"]: int(t["rank"]) for t in content["special_tokens"]}
        except FileNotFoundError as error:
            raise ValueError(f"{folder} has no tekken.json") from error
        except (ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"{path} is not a streaming transcriber's: {reason}") from error

    def __getitem__(self, token: int) -> bytes:
        """The bytes of a token; none for special tokens and for ids that are only padding."""
        index = token - self._specials
        return self._spelled[index] if 0 <= index < len(self._spelled) else b""

    def special(self, name: str) -> int:
        """The id of a special token.

        Raises:
            ValueError: there is none of that name.
        """
        if name not in self._named:
            raise ValueError(f"its tokenizer has no {name}")
        return self._named[name]


def _streaming(audio: dict[str, Any]) -> StreamingAudio:
    if audio["sampling_rate"] != _RATE:
        raise ValueError(f"audio at {audio['sampling_rate']} Hz, not {_RATE}")
    per_token = round(_RATE / audio["frame_rate"])
    per_ms = _RATE // 1000
    return StreamingAudio(
        per_token,
        round(audio["streaming_look_back_ms"] * per_ms),
        round(audio["streaming_look_ahead_ms"] * per_ms),
        audio["streaming_n_left_pad_tokens"],
        round(audio["transcription_delay_ms"] * per_ms) // per_token,
    )
