"""Incremental detokenizing that is exact to the byte: tokens are bytes, and only whole characters come out."""

import codecs
import json
from collections.abc import Sequence
from typing import Any, Protocol


class Spelling(Protocol):
    """What tokens are, as bytes; none for control tokens."""

    def __getitem__(self, token: int) -> bytes: ...


class TokenBytes:
    """What every token of one vocabulary spells, as bytes.

    Knows the two families in use: byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM), whose tokens are
    written in an alphabet of 256 printable characters, and SentencePiece with byte fallback
    (Llama 2, Mistral, Gemma), whose tokens are text with "▁" for a space and <0xNN> for a byte.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Read the vocabulary of a `tokenizers.Tokenizer`.

        Raises:
            ValueError: the vocabulary belongs to neither family.
        """
        decoder = json.dumps(json.loads(tokenizer.to_str())["decoder"])
        byte_level = "ByteLevel" in decoder
        if not byte_level and "ByteFallback" not in decoder:
            raise ValueError("its tokenizer is neither byte-level BPE nor SentencePiece")
        alphabet = _byte_alphabet()
        self._bytes: dict[int, bytes] = {}
        added = tokenizer.get_added_tokens_decoder()
        for piece, token in tokenizer.get_vocab(with_added_tokens=True).items():
            if token in added:
                spelled = b"" if added[token].special else piece.encode()
            elif byte_level:
                spelled = b"".join(alphabet.get(character, b"") for character in piece)
            elif piece.startswith("<0x") and len(piece) == 6:
                spelled = bytes([int(piece[3:5], 16)])
            else:
                spelled = piece.replace("▁", " ").encode()
            self._bytes[token] = spelled

    def __getitem__(self, token: int) -> bytes:
        """The bytes of a token; none for control tokens and for ids that are only padding."""
        return self._bytes.get(token, b"")


class IncrementalDetokenizer:
    """The text of one answer as it is written."""

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        # Bytes of an unfinished character wait inside; what can never become one turns into U+FFFD.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text these tokens complete, possibly none."""
        return self._decoder.decode(b"".join(self._spelling[token] for token in token_ids))


def _byte_alphabet() -> dict[str, bytes]:
    """Character to byte in byte-level BPE: printable Latin-1 is itself, the rest counts up from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): bytes([byte]) for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return alphabet | {chr(0x100 + index): bytes([byte]) for index, byte in enumerate(others)}
