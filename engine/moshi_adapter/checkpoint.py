"""The files of a Moshi checkpoint, in a folder or on the hub. Imports neither torch nor moshi.

    config.json                                  shape of the language model, names of the other files; may be missing
    model.safetensors                            the language model
    tokenizer-e351c8d8-checkpoint125.safetensors Mimi, the codec
    tokenizer_spm_32k_3.model                    the words

These are the names of Kyutai's first release; a config.json may give others. A config.json
without a shape (NVIDIA's PersonaPlex) means the shape of that release: 7B, eight codebooks spoken and eight heard.
"""

import json
from pathlib import Path
from typing import Any, Literal

from engine.backend import EngineUnavailable

Part = Literal["lm", "mimi", "tokenizer"]

_PARTS: dict[Part, tuple[str, str]] = {  # key in config.json, and the name without one
    "lm": ("moshi_name", "model.safetensors"),
    "mimi": ("mimi_name", "tokenizer-e351c8d8-checkpoint125.safetensors"),
    "tokenizer": ("tokenizer_name", "tokenizer_spm_32k_3.model"),
}
_DUPLEX_TYPES = ("moshi", "personaplex")
# Keys of config.json that are not about the language model's shape.
_OTHER_KEYS = frozenset(
    {"model_type", "version", "lm_gen_config", "tts_config", "stt_config", "model_id"}
    | {"moshi_name", "mimi_name", "mimi_config_name", "tokenizer_name"}
)
_UNSUPPORTED = ("lora_name", "conditioners", "fuser")


class Checkpoint:
    """One checkpoint, by the name of its folder or its hub id."""

    def __init__(self, location: str) -> None:
        """Read its config.json.

        Raises:
            EngineUnavailable: there is no such checkpoint, or it is none of a full-duplex model.
        """
        self.location = location
        self._folder = Path(location).expanduser()
        self._config = self._read_config()
        kind = self._config.get("model_type", "moshi")
        if kind not in _DUPLEX_TYPES:
            raise EngineUnavailable(f"{location} is a {kind!r} model, not one of {_DUPLEX_TYPES}")
        found = [key for key in _UNSUPPORTED if self._config.get(key)]
        if found:
            raise EngineUnavailable(f"{location}: {found[0]!r} in config.json is not supported")

    @property
    def lm_config(self) -> dict[str, Any] | None:
        """Keyword arguments of the language model; None: those of the first release."""
        shape = {key: value for key, value in self._config.items() if key not in _OTHER_KEYS}
        return shape if "dim" in shape else None

    @property
    def mimi_config(self) -> dict[str, Any] | None:
        """Shape of the codec; None: that of the first release."""
        name = self._config.get("mimi_config_name")
        return None if name is None else self._read(name)

    def file(self, part: Part) -> Path:
        """A local path of one file, fetched if it is on the hub.

        Raises:
            EngineUnavailable: it is not there.
        """
        key, usual = _PARTS[part]
        return self._find(self._config.get(key, usual))

    def _read_config(self) -> dict[str, Any]:
        if self._folder.is_dir() and not (self._folder / "config.json").exists():
            return {}
        return self._read("config.json")

    def _read(self, name: str) -> dict[str, Any]:
        try:
            table = json.loads(self._find(name).read_text(encoding="utf-8"))
        except ValueError as error:
            raise EngineUnavailable(f"{self.location}: {name} is not JSON") from error
        if not isinstance(table, dict):
            raise EngineUnavailable(f"{self.location}: {name} holds no object")
        return table

    def _find(self, name: str) -> Path:
        if self._folder.is_dir():
            path = self._folder / name
            if not path.exists():
                raise EngineUnavailable(f"{self._folder} holds no {name}")
            return path
        try:
            from huggingface_hub import hf_hub_download
        except ImportError as error:
            raise EngineUnavailable(
                f"{self.location}: huggingface_hub is missing; pip install huggingface-hub"
            ) from error
        try:
            return Path(hf_hub_download(self.location, name))
        # The client's errors derive from these.
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise EngineUnavailable(
                f"{self.location}: {name} cannot be fetched from the hub: {reason}"
            ) from error
