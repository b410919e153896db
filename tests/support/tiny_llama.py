"""The tiny random Llama of the benchmarks, under the name that tests know it by; and one that tells what it sees."""

from pathlib import Path
from typing import Any

from bench.tiny_model import VOCAB, write_tiny_llama

__all__ = ["CANARIES", "VOCAB", "write_canary", "write_tiny_llama"]

CANARIES = 128  # vocabulary of the canary: one dimension for each token


def write_canary(folder: Path) -> Path:
    """A model whose next logits are above zero for exactly the tokens that it attends to.

    One layer that attends evenly to all it can see (queries and keys are zero), whose values are the tokens themselves.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    build: Any = LlamaForCausalLM  # untyped upstream
    model = build(
        LlamaConfig(
            vocab_size=CANARIES,
            hidden_size=CANARIES,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=4096,
            tie_word_embeddings=False,
        )
    )
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.zero_()
        for matrix in (model.model.embed_tokens, attention.v_proj, attention.o_proj, model.lm_head):
            matrix.weight.copy_(torch.eye(CANARIES))
    model.save_pretrained(folder)
    return folder
