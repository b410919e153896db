"""The small text files of a model on the Hugging Face hub; the engine fetches the weights itself."""

import re
from pathlib import Path

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_TEXT_FILES = [
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "config.json",
    "params.json",  # of Mistral's own format, with its tokenizer
    "tekken.json",
]


def is_hub_id(name: str) -> bool:
    """True if `name` has the form "owner/model"."""
    return _HUB_ID.fullmatch(name) is not None


def fetch_text_files(hub_id: str) -> Path:
    """A local folder with the tokenizer and the configurations of `hub_id`.

    Raises:
        ValueError: the hub or the model cannot be reached, or the client package is missing.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ValueError(
            f"{hub_id}: huggingface_hub is missing; pip install huggingface-hub"
        ) from error
    try:
        return Path(snapshot_download(hub_id, allow_patterns=_TEXT_FILES))
    except (OSError, ValueError, RuntimeError) as error:  # the client's errors derive from these
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{hub_id} cannot be fetched from the hub: {reason}") from error
