"""A Llama that says after each token its successor, in any precision.

On a GPU float16 and bfloat16 are what counts, and there the order of sums, which differs from one batch size to the
next, turns one greedy choice of a random model in a hundred into another. Here the next token leads by four fifths of
its score. It looks at nothing but the token before, so what was attended to is for test_exactness and test_canaries.
"""

from pathlib import Path
from typing import Any

VOCAB = 1024


def write_successor(folder: Path) -> Path:
    """Write config.json and model.safetensors into `folder`: one layer, heads of 64, which every backend takes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    build: Any = LlamaForCausalLM  # untyped upstream
    model = build(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=256,
            intermediate_size=256,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            max_position_embeddings=4096,
            tie_word_embeddings=False,
        )
    )
    layer = model.model.layers[0]
    with torch.no_grad():
        embeddings = model.model.embed_tokens.weight.normal_()
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        # One cycle through the whole vocabulary (Hull and Dobell), so that no token comes twice within a test.
        successors = (5 * torch.arange(VOCAB) + 7) % VOCAB
        model.lm_head.weight[successors] = embeddings
    model.save_pretrained(folder)
    return folder
