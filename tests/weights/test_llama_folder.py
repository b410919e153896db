"""Converting a small Llama from GGUF into a folder in Hugging Face layout."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open
from tokenizers import Tokenizer
from weights.gguf_writer import F32, llama_metadata, llama_tensors, write_gguf

from engine.weights.gguf import GgufError
from engine.weights.llama_folder import convert_llama, unpermute


def permuted(weights: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """What llama.cpp's converter does to a projection: row i and i + half of a head become neighbours."""
    size = weights.shape[0] // heads
    rows = [
        head * size + half * size // 2 + pair
        for head in range(heads)
        for pair in range(size // 2)
        for half in range(2)
    ]
    return weights[rows]


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_unpermute_undoes_the_interleaving_of_rotary_halves(heads: int) -> None:
    """Checked against a row-by-row permutation."""
    weights = np.arange(16 * 3, dtype=np.float32).reshape(16, 3)
    np.testing.assert_array_equal(unpermute(permuted(weights, heads), heads), weights)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The small Llama, converted."""
    source, out = tmp_path / "tiny.gguf", tmp_path / "llm"
    write_gguf(source, llama_metadata(), llama_tensors())
    out.mkdir()
    convert_llama(source, out)
    return out


def test_every_tensor_gets_its_hugging_face_name(folder: Path) -> None:
    """Embeddings, final norm and nine tensors a layer; tied embeddings need no lm_head."""
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        names = set(file.keys())
    assert len(names) == 2 + 2 * 9
    assert {"model.embed_tokens.weight", "model.norm.weight"} < names
    assert "model.layers.1.self_attn.q_proj.weight" in names
    assert "model.layers.0.mlp.down_proj.weight" in names


def test_the_config_describes_the_model(folder: Path) -> None:
    """Sizes come from the metadata, the head size from their quotient."""
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["hidden_size"], config["head_dim"]) == (32, 8)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 2)
    assert config["vocab_size"] == 9
    assert config["tie_word_embeddings"] is True
    assert config["eos_token_id"] == 2


def test_an_output_tensor_unties_the_embeddings(tmp_path: Path) -> None:
    """With output.weight present there is an lm_head and no tying."""
    source = tmp_path / "tiny.gguf"
    output = (F32, (9, 32), np.zeros(9 * 32, "<f4").tobytes())
    write_gguf(source, llama_metadata(), {**llama_tensors(), "output.weight": output})
    convert_llama(source, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is False


def test_the_tokenizer_merges_splits_digits_and_keeps_control_tokens_whole(folder: Path) -> None:
    """Byte-level BPE, each digit a token of its own, chat markers never split."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>hi 12").tokens == ["<|im_start|>", "hi", "Ġ", "1", "2"]
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert config["chat_template"] == "{{ messages }}"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"general.architecture": "bert"}, "architecture 'bert'"),
        ({"tokenizer.ggml.pre": "gpt-2"}, "pre-tokenizer 'gpt-2'"),
        ({"llama.block_count": "two"}, "llama.block_count is a str"),
        ({"tokenizer.ggml.tokens": 4}, "tokens is a int"),
    ],
)
def test_metadata_of_another_model_is_refused(
    tmp_path: Path, changes: dict[str, object], complaint: str
) -> None:
    """What the converter would get wrong, it does not convert."""
    source = tmp_path / "tiny.gguf"
    write_gguf(source, {**llama_metadata(), **changes}, llama_tensors())
    with pytest.raises(GgufError, match=complaint):
        convert_llama(source, tmp_path)


def test_missing_metadata_is_named(tmp_path: Path) -> None:
    """The key that is not there is in the message."""
    metadata = llama_metadata()
    del metadata["llama.rope.freq_base"]
    write_gguf(tmp_path / "tiny.gguf", metadata, llama_tensors())
    with pytest.raises(GgufError, match=r"lacks llama\.rope\.freq_base"):
        convert_llama(tmp_path / "tiny.gguf", tmp_path)


def test_a_tensor_of_no_llama_is_refused(tmp_path: Path) -> None:
    """An unknown tensor would silently be left out of the model."""
    tensors = {**llama_tensors(), "blk.0.ssm_in.weight": (F32, (1,), b"\0" * 4)}
    write_gguf(tmp_path / "tiny.gguf", llama_metadata(), tensors)
    with pytest.raises(GgufError, match="ssm_in"):
        convert_llama(tmp_path / "tiny.gguf", tmp_path)
