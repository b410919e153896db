"""A tiny random Llama on disk: enough of a model to run vLLM without a hub, in benchmarks and tests.

It has no tokenizer (its users speak in token ids). Its weights are spread wide so that a wrong key shows in the next
token, yet logits stay within about ±2, where one step of a bfloat16 is 0.008.
"""

from pathlib import Path
from typing import Any

VOCAB = 1024


def write_tiny_llama(folder: Path, layers: int = 1, **config: Any) -> Path:
    """Write config.json and model.safetensors into `folder`; `config` replaces fields of LlamaConfig."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,  # the smallest that vLLM's CPU attention takes
        "vocab_size": VOCAB,
        "max_position_embeddings": 65_536,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(1)
    build: Any = LlamaForCausalLM  # untyped upstream
    model = build(LlamaConfig(**{**shape, **config}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
        model.lm_head.weight.div_(2)
    model.save_pretrained(folder)
    return folder
