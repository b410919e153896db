"""Where the embedded weights lie on disk."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


def cache_root(environ: Mapping[str, str], home: Path) -> Path:
    """This user's cache folder: `$XDG_CACHE_HOME/metronome`, else `~/.cache/metronome`.

    A relative XDG_CACHE_HOME is ignored, as the XDG base directory specification 0.8 demands.
    """
    configured = environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if os.path.isabs(configured) else home / ".cache"
    return base / "metronome"


def embedded_dir(cache: Path | None = None) -> Path:
    """The folder of the embedded weights below `cache`, or below the user's own cache folder.

    With no argument it reads XDG_CACHE_HOME and HOME: the only place outside the server's
    configuration that looks at the environment, so that a tool finds the weights without one.
    """
    root = cache if cache is not None else cache_root(os.environ, Path("~").expanduser())
    return root / "embedded"


@dataclass(frozen=True, slots=True)
class EmbeddedFiles:
    """Names of the parts inside a fetched folder."""

    root: Path  # what embedded_dir() returned

    @property
    def vad(self) -> Path:
        """Silero VAD, 16 kHz, ONNX."""
        return self.root / "silero_vad_16k.onnx"

    @property
    def transcriber(self) -> Path:
        """The Moonshine folder: encoder_model.ort, decoder_model_merged.ort, tokenizer.bin."""
        return self.root / "moonshine"

    @property
    def llm(self) -> Path:
        """The language model, a folder in Hugging Face layout."""
        return self.root / "llm"

    @property
    def gguf(self) -> Path:
        """The language model as published; it exists only between download and conversion."""
        return self.root / "smollm2.gguf"
