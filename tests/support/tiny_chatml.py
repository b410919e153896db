"""A ChatML tokenizer small enough to build in a test: byte-level, no merges, three control tokens."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.models.detokenizer import _byte_alphabet

# A tools branch as Hermes and Qwen have one, in few words.
TOOL_TEMPLATE = """\
{%- set said = messages[0].content if messages[0].role == "system" else "" %}
{{- "<|im_start|>system\\n" + said }}
{%- if tools %}
    {{- "\\n\\nTools:" }}
    {%- for tool in tools %}{{ "\\n" + (tool | tojson) }}{% endfor %}
    {{- "\\nCall one within <tool_call></tool_call>." }}
{%- endif %}
{{- "<|im_end|>\\n" }}
{%- for message in messages if message.role != "system" %}
    {%- if message.role == "tool" %}
        {%- if loop.previtem is not defined or loop.previtem.role != "tool" %}
            {{- "<|im_start|>user" }}
        {%- endif %}
        {{- "\\n<tool_response>\\n" + message.content + "\\n</tool_response>" }}
        {%- if loop.nextitem is not defined or loop.nextitem.role != "tool" %}
            {{- "<|im_end|>\\n" }}
        {%- endif %}
    {%- else %}
        {{- "<|im_start|>" + message.role + "\\n" + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- "\\n" if message.content or not loop.first }}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- "}\\n</tool_call>" }}
        {%- endfor %}
        {{- "<|im_end|>\\n" }}
    {%- endif %}
{%- endfor %}
"""


def write_tiny_chatml(folder: Path, *, thinks: bool = False, template: str | None = None) -> Path:
    """A model folder with tokenizer.json; skips the test without the tokenizers package."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(_byte_alphabet()))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    if thinks:
        tokenizer.add_tokens(["<think>", "</think>"])
    if template is not None:
        tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"eos_token": {"content": "<|im_end|>"}}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
