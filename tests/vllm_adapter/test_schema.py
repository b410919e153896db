"""Tokens held to a JSON schema by vLLM's structured outputs.

The weights are random, so that nothing else can be the cause.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.backend_driver import BackendDriver
from support.tiny_chatml import write_tiny_chatml
from support.tiny_llama import write_tiny_llama

from engine.models.chatml import ChatMl
from engine.models.tools import call_schema
from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings
from engine.work import Append, Sampling, TickBatch, TokenChunk

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

LIGHT = {
    "type": "function",
    "name": "set_light",
    "parameters": {
        "type": "object",
        "properties": {
            "room": {"enum": ["kitchen", "hall"]},
            "on": {"type": "boolean"},
            "level": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["room", "on", "level"],
    },
}
STOP = {"type": "function", "name": "stop"}
PROMPT = tuple(range(40, 80))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_llama(tmp_path_factory.mktemp("model"), layers=2)
    write_tiny_chatml(folder)
    loadable = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(loadable))
    return folder


@pytest.fixture(scope="module")
def backend(folder: Path) -> Iterator[VllmBackend]:
    built = VllmBackend(
        VllmSettings(str(folder), "float32", max_model_len=512, max_num_seqs=4, kv_cache_gib=0.1)
    )
    yield built
    built.shutdown()


def decoded(backend: VllmBackend, *appends: Append) -> dict[str, tuple[list[int], TokenChunk]]:
    """Every session's tokens and its last chunk, run to the end."""
    tokens: dict[str, list[int]] = {append.session_id: [] for append in appends}
    last: dict[str, TokenChunk] = {}
    batch = TickBatch(appends=appends)
    while len(last) < len(appends):
        for chunk in backend.step(batch).chunks:
            tokens[chunk.session_id] += chunk.token_ids
            if chunk.finished:
                last[chunk.session_id] = chunk
        batch = TickBatch()
    backend.step(TickBatch(closes=tuple(tokens)))
    return {name: (found, last[name]) for name, found in tokens.items()}


def append(name: str, chat: ChatMl, schema: str, decode: int = 200, seed: int = 0) -> Append:
    sampling = Sampling(temperature=1.0, seed=seed, schema=schema)
    return Append(name, 1, PROMPT, decode, 0.0, chat.stop_token_ids, sampling)


@pytest.mark.parametrize("tools", [[LIGHT], [STOP, LIGHT]], ids=["one", "any"])
def test_whatever_the_model_it_is_a_call(
    backend: VllmBackend, folder: Path, tools: list[dict[str, Any]]
) -> None:
    """Sampled at random, each is JSON that fits, and ends by itself; an unconstrained neighbour is left alone."""
    chat, schema = ChatMl(folder), call_schema(tools)
    held = [append(f"held-{seed}", chat, schema, seed=seed) for seed in range(3)]
    free = Append("free", 1, PROMPT, 24, 0.0, (), Sampling())
    alone = decoded(backend, free)["free"][0]
    found = decoded(backend, *held, free)
    assert found["free"][0] == alone
    for name in ("held-0", "held-1", "held-2"):
        tokens, last = found[name]
        assert last.stopped
        text = chat.detokenizer().feed(tokens)
        jsonschema.validate(json.loads(text), json.loads(schema))


def test_the_vocabulary_is_read_before_the_first_call(backend: VllmBackend) -> None:
    """A built backend has rehearsed a schema, and holds nothing of it."""
    assert backend._core._core.structured_output_manager.backend is not None
    assert backend.snapshot().sessions == 0
    assert not backend.busy


def test_a_schema_that_is_none_ends_that_session_only(backend: VllmBackend, folder: Path) -> None:
    """The core would die of it, and every session with it."""
    chat = ChatMl(folder)
    broken = append("broken", chat, json.dumps({"type": "nothing"}))
    fine = append("fine", chat, call_schema([STOP]))
    found = decoded(backend, broken, fine)
    assert found["broken"][1].error
    assert found["fine"][1].stopped


def answered(backend: VllmBackend, held: Append) -> tuple[list[int], TokenChunk]:
    """One append run to its end; the session stays."""
    tokens: list[int] = []
    batch = TickBatch(appends=(held,))
    while True:
        for chunk in backend.step(batch).chunks:
            tokens += chunk.token_ids
            if chunk.finished:
                return tokens, chunk
        batch = TickBatch()


def spoken_then_called(backend: VllmBackend, folder: Path) -> tuple[list[int], list[int]]:
    """A session "s" that decodes freely, then a call of LIGHT a few tokens at a time; the tokens of both."""
    chat, schema = ChatMl(folder), call_schema([LIGHT])
    free, _ = answered(backend, Append("s", 1, PROMPT, 6, 0.0, (), Sampling()))
    written: list[int] = []
    sampling = Sampling(temperature=1.0, seed=3, schema=schema)
    feed: tuple[int, ...] = (41, 42)
    for _ in range(100):
        fresh, chunk = answered(
            backend, Append("s", 1, feed, 7, 0.0, chat.stop_token_ids, sampling)
        )
        written, feed = written + fresh, ()
        if chunk.stopped:
            break
    assert len(written) > 7
    jsonschema.validate(json.loads(chat.detokenizer().feed(written)), json.loads(schema))
    return free, written


def test_a_resident_context_is_held_for_as_long_as_is_asked(
    backend: VllmBackend, folder: Path
) -> None:
    """Words, a call in pieces, words again, a call of another tool: one context, each part under its own rule."""
    chat, other = ChatMl(folder), call_schema([STOP])
    free, written = spoken_then_called(backend, folder)
    keep = len(PROMPT) + len(free) + 2 + len(written) - 1
    answered(backend, Append("s", 2, (43,), 6, 0.0, (), Sampling(), keep))
    late, chunk = answered(
        backend, Append("s", 3, (44,), 60, 0.0, chat.stop_token_ids, Sampling(schema=other), keep)
    )
    assert chunk.stopped
    assert json.loads(chat.detokenizer().feed(late)) == {"name": "stop", "arguments": {}}
    backend.step(TickBatch(closes=("s",)))


def test_what_was_held_is_in_the_context_like_anything_else(
    backend: VllmBackend, folder: Path
) -> None:
    """After a call the context decodes as a fresh one of the same tokens does."""
    free, written = spoken_then_called(backend, folder)
    keep = len(PROMPT) + len(free) + 2 + len(written) - 1
    words, _ = answered(backend, Append("s", 2, (43,), 6, 0.0, (), Sampling(), keep))
    tokens = (*PROMPT, *free, 41, 42, *written[:-1], 43)
    fresh_words, _ = answered(backend, Append("u", 1, tokens, 6, 0.0, (), Sampling()))
    assert fresh_words == words
    backend.step(TickBatch(closes=("s", "u")))


def test_a_model_without_tokenizer_cannot_be_held(tmp_path: Path, folder: Path) -> None:
    """Such an append is refused; it does not decode freely."""
    bare = write_tiny_llama(tmp_path, layers=1)
    backend = VllmBackend(
        VllmSettings(str(bare), "float32", max_model_len=128, max_num_seqs=2, kv_cache_gib=0.05)
    )
    driver = BackendDriver(backend)
    try:
        held = append("s", ChatMl(folder), call_schema([STOP]), decode=8)
        (chunk,) = backend.step(TickBatch(appends=(held,))).chunks
        assert chunk.error is not None
        assert "tokenizer" in chunk.error
    finally:
        driver.close_all()
        backend.shutdown()
