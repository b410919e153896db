"""A ChatML tokenizer small enough to build in a test: byte-level, no merges, three control tokens."""

import json
from pathlib import Path

import pytest

from engine.models.detokenizer import _byte_alphabet


def write_tiny_chatml(folder: Path, *, thinks: bool = False) -> Path:
    """A model folder with tokenizer.json; skips the test without the tokenizers package."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(_byte_alphabet()))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    if thinks:
        tokenizer.add_tokens(["<think>", "</think>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": {"content": "<|im_end|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
