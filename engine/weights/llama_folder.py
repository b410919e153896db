"""Turn a Llama-family GGUF file into a folder in Hugging Face layout that vLLM loads.

Transformers' own GGUF path keeps the weights packed and drops SmolLM's digit splitting, so the
conversion is done here: names, the attention permutation, the tokenizer, the configuration.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.weights.gguf import GgufError, GgufFile, Value
from engine.weights.safetensors_writer import write_bfloat16

_CONTROL_TOKEN = 3  # of tokenizer.ggml.token_type: 1 normal, 2 unknown, 3 control (llama.h)

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",  # absent when the embeddings are tied
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_llama(source: Path, folder: Path) -> None:
    """Write config, bfloat16 weights and tokenizer of the GGUF file `source` into `folder`.

    Raises:
        GgufError: the file is damaged, not of the Llama family, or its tokenizer is not SmolLM's.
    """
    with GgufFile(source) as gguf:
        fields = _Fields(gguf)
        architecture = fields.text("general.architecture")
        if architecture != "llama":
            raise GgufError(f"{source.name}: architecture {architecture!r}, not llama")
        names = {_hf_name(name): name for name in gguf.tensors}
        shapes = {hf: gguf.tensors[name].shape for hf, name in names.items()}
        write_bfloat16(folder / "model.safetensors", shapes, _tensors(gguf, fields, names))
        _write_config(fields, folder, tied="lm_head.weight" not in names)
        _write_tokenizer(fields, folder)


class _Fields:
    """Typed look-ups in a file's metadata; what is absent or of another type is a GgufError."""

    def __init__(self, gguf: GgufFile) -> None:
        self._gguf = gguf

    def integer(self, key: str) -> int:
        value = self._get(key)
        if isinstance(value, int):
            return value
        raise self._wrong(key, value)

    def number(self, key: str) -> float:
        value = self._get(key)
        if isinstance(value, int | float):
            return float(value)
        raise self._wrong(key, value)

    def text(self, key: str) -> str:
        value = self._get(key)
        if isinstance(value, str):
            return value
        raise self._wrong(key, value)

    def texts(self, key: str) -> list[str]:
        value = self._get(key)
        if isinstance(value, list):
            return [item for item in value if isinstance(item, str)]
        raise self._wrong(key, value)

    def integers(self, key: str) -> list[int]:
        value = self._get(key)
        if isinstance(value, list):
            return [item for item in value if isinstance(item, int)]
        raise self._wrong(key, value)

    def _get(self, key: str) -> Value:
        if key not in self._gguf.metadata:
            raise GgufError(f"{self._gguf.path.name}: metadata lacks {key}")
        return self._gguf.metadata[key]

    def _wrong(self, key: str, value: Value) -> GgufError:
        return GgufError(f"{self._gguf.path.name}: {key} is a {type(value).__name__}")


def _hf_name(name: str) -> str:
    """The Hugging Face name of one GGUF tensor."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"
    raise GgufError(f"tensor {name} is not one of a Llama model")


def _tensors(
    gguf: GgufFile, fields: _Fields, names: dict[str, str]
) -> Iterator[NDArray[np.float32]]:
    """Yield each tensor of `names` (Hugging Face name -> GGUF name), rows reordered for it."""
    heads = {
        "attn_q": fields.integer("llama.attention.head_count"),
        "attn_k": fields.integer("llama.attention.head_count_kv"),
    }
    for name in names.values():
        part = name.split(".")[-2]
        weights = gguf.tensor(name)
        yield unpermute(weights, heads[part]) if part in heads else weights


def unpermute(weights: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undo llama.cpp's row order of a query or key projection of shape [heads * head_dim, columns].

    GGML's rotary embedding pairs rows 2i and 2i+1 of a head, Hugging Face's rows i and
    i + head_dim/2, so llama.cpp's converter interleaves the two halves of each head
    (convert_hf_to_gguf.py, LlamaModel.permute).
    """
    pairs = weights.shape[0] // heads // 2
    return weights.reshape(heads, pairs, 2, -1).swapaxes(1, 2).reshape(weights.shape)


def _special_ids(fields: _Fields) -> dict[str, int]:
    return {
        "bos_token_id": fields.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.integer("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.integer("tokenizer.ggml.padding_token_id"),
    }


def _write_config(fields: _Fields, folder: Path, *, tied: bool) -> None:
    hidden = fields.integer("llama.embedding_length")
    heads = fields.integer("llama.attention.head_count")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": fields.integer("llama.feed_forward_length"),
        "num_hidden_layers": fields.integer("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "rms_norm_eps": fields.number("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": fields.number("llama.rope.freq_base"),
        "max_position_embeddings": fields.integer("llama.context_length"),
        "vocab_size": len(fields.texts("tokenizer.ggml.tokens")),
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        **_special_ids(fields),
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _special_ids(fields))


def _write_tokenizer(fields: _Fields, folder: Path) -> None:
    """Write tokenizer.json and its config: byte-level BPE, every digit a token of its own."""
    kind = fields.text("tokenizer.ggml.pre")
    if kind != "smollm":
        raise GgufError(f"pre-tokenizer {kind!r} is not handled, only smollm")
    tokens = fields.texts("tokenizer.ggml.tokens")
    merges = [
        (left, right)
        for left, _, right in (
            merge.partition(" ") for merge in fields.texts("tokenizer.ggml.merges")
        )
    ]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields.integers("tokenizer.ggml.token_type")
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind_of in zip(tokens, kinds, strict=True)
            if kind_of == _CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    special = _special_ids(fields)
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": fields.integer("llama.context_length"),
            "bos_token": tokens[special["bos_token_id"]],
            "eos_token": tokens[special["eos_token_id"]],
            "pad_token": tokens[special["pad_token_id"]],
            "clean_up_tokenization_spaces": False,
            "chat_template": fields.text("tokenizer.chat_template"),
        },
    )


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
