"""Writes GGUF files from the specification, independently of the reader, for its tests."""

import io
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

F32, Q4_1, Q8_0 = 0, 3, 8
ALIGNMENT = 32


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(item: object) -> bytes:
    """A metadata value with its type in front."""
    match item:
        case bool():
            return struct.pack("<I?", 7, item)
        case int():
            return struct.pack("<II", 4, item)
        case float():
            return struct.pack("<If", 6, item)
        case str():
            return struct.pack("<I", 8) + string(item)
        case list():
            kind = struct.unpack("<I", value(item[0])[:4])[0]
            return struct.pack("<IIQ", 9, kind, len(item)) + b"".join(
                value(part)[4:] for part in item
            )
    raise AssertionError(f"no GGUF type for {item!r}")


def q8_0(blocks: NDArray[np.int8], scales: list[float]) -> bytes:
    """Rows of 32 signed weights with a scale each."""
    return b"".join(
        np.float16(scale).tobytes() + block.tobytes()
        for block, scale in zip(blocks, scales, strict=True)
    )


def q4_1(blocks: NDArray[np.uint8], scales: list[float], minima: list[float]) -> bytes:
    """Rows of 32 weights of 0..15; byte i packs weight i low and weight 16 + i high."""
    return b"".join(
        np.float16(scale).tobytes()
        + np.float16(minimum).tobytes()
        + bytes(int(block[i]) | int(block[16 + i]) << 4 for i in range(16))
        for block, scale, minimum in zip(blocks, scales, minima, strict=True)
    )


def write_gguf(
    path: Path,
    metadata: Mapping[str, object],
    tensors: Mapping[str, tuple[int, tuple[int, ...], bytes]],
) -> None:
    """`tensors`: name -> (type, numpy shape, packed bytes)."""
    out = io.BytesIO()
    out.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, item in metadata.items():
        out.write(string(key) + value(item))
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        out.write(string(name) + struct.pack("<I", len(shape)))
        out.write(struct.pack(f"<{len(shape)}Q", *reversed(shape)))
        out.write(struct.pack("<IQ", kind, len(data)))
        data += raw + b"\0" * (-len(raw) % ALIGNMENT)
    out.write(b"\0" * (-out.tell() % ALIGNMENT))
    path.write_bytes(out.getvalue() + data)


def llama_metadata() -> dict[str, object]:
    """A Llama of 2 layers, 4 query heads and 2 key heads of 8, with a vocabulary of bytes and digits."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "h", "i", "Ġ", "1", "2", "hi"]
    return {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 64,
        "llama.context_length": 128,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, 1, 1, 1, 1, 1, 1],
        "tokenizer.ggml.merges": ["h i"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
    }


def llama_tensors() -> dict[str, tuple[int, tuple[int, ...], bytes]]:
    """Float tensors of that Llama, each filled with its own running numbers."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (9, 32), "output_norm.weight": (32,)}
    for layer in range(2):
        for part, shape in {
            "attn_norm": (32,), "attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32),
            "attn_output": (32, 32), "ffn_norm": (32,), "ffn_gate": (64, 32), "ffn_up": (64, 32),
            "ffn_down": (32, 64),
        }.items():  # fmt: skip
            shapes[f"blk.{layer}.{part}.weight"] = shape
    return {
        name: (F32, shape, np.arange(np.prod(shape), dtype="<f4").tobytes())
        for name, shape in shapes.items()
    }
