"""The private names of vLLM 0.32 on the worker's side; those of the engine's core are in compat.py and compat_kv.py.

static_forward_context             every attention layer of the model, by name
model_runner.kv_cache_config       which of them are addressed by the same block table
Attention.kv_cache, impl.do_kv_cache_update
                                   a layer's KV memory, and the operation that writes into it
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Layer:
    """One attention layer that owns KV memory."""

    name: str
    group: int  # index of the block table it is addressed by
    module: Any  # vllm Attention: num_kv_heads, head_size, impl
    kv_cache: Any  # torch tensor, blocks first
    rope: Any | None  # the rotary embedding beside it, None if there is none


def attention_layers(worker: Any) -> list[Layer]:
    """The attention layers that own KV memory, each once."""
    runner = worker.model_runner
    modules = worker.vllm_config.compilation_config.static_forward_context
    beside = {
        id(child): getattr(parent, "rotary_emb", None)
        for parent in runner.get_model().modules()
        for child in parent.children()
    }
    found: dict[int, Layer] = {}  # by memory address: layers that share a cache are one
    for group, spec in enumerate(runner.kv_cache_config.kv_cache_groups):
        for name in spec.layer_names:
            module = modules[name]
            kv_cache: Any = getattr(module, "kv_cache", None)  # none: a layer of another kind
            address = id(module) if kv_cache is None else kv_cache.data_ptr()
            layer = Layer(name, group, module, kv_cache, beside.get(id(module)))
            found.setdefault(address, layer)
    return list(found.values())
