"""A model that knows tools chooses to call: the whole engine on vLLM in this process.

The weights are random, so the choice is steered where a model makes it, in the logits: the processor of the adapter's
token rules makes the mark, or the end of the turn, the likeliest token. What is written in a call is the model's own,
held to the schema.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.sim_engine import Caller, Recorder
from support.tiny_chatml import TOOL_TEMPLATE, write_tiny_chatml
from support.tiny_llama import VOCAB, write_tiny_llama

from engine.clock import LoopClock
from engine.engine import Engine
from engine.executor import ThreadExecutor
from engine.kv_policy import KvPolicy
from engine.listener import CallPart, Usage
from engine.models.base import Message, ModelSpec, SessionSetup
from engine.models.cascade import Cascade, CascadeParts
from engine.models.chatml import ChatMl, Persona
from engine.models.tools import call_schema, call_text
from engine.pool import Pools
from engine.response import ResponseRequest
from engine.settings import EngineSettings
from engine.speech.sim import DurationTranscriber, EnergyVad, ToneVoice
from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings
from engine.work import Sampling, TokenRules

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

LIGHT = {
    "type": "function",
    "name": "set_light",
    "description": "Turn a light on or off.",
    "parameters": {
        "type": "object",
        "properties": {"room": {"enum": ["kitchen", "hall"]}, "on": {"type": "boolean"}},
        "required": ["room", "on"],
    },
}
STOP = {"type": "function", "name": "stop"}
SCHEMAS = {"set_light": LIGHT["parameters"], "stop": {"type": "object", "maxProperties": 0}}
ASKED = Message("user", "Light, please.", "u1")


class Steered(Cascade):
    """A model whose next choices are known: one entry of `choices` for each part of an answer."""

    choices: list[TokenRules | str]  # a string: the schema of what it writes

    def sampling(self) -> Sampling:
        choice = self.choices.pop(0)
        if isinstance(choice, str):
            return Sampling(temperature=1.0, seed=5, schema=choice)
        return Sampling(temperature=1.0, seed=5, rules=choice)


class Deck:
    """What a model may be steered to."""

    def __init__(self, chat: ChatMl) -> None:
        mark = (chat.call_mark and chat.call_mark.token) or 0
        letters = tuple(chat._text("abcdefgh "))
        silent = tuple(i for i in range(VOCAB) if i not in letters)
        self.words_then_call = TokenRules(forbid=silent, last=mark)
        self.call = TokenRules(first=mark)
        self.ends = TokenRules(first=chat.stop_token_ids[0])
        self.words = TokenRules(forbid=silent, last=chat.stop_token_ids[0])
        self.bare = call_schema([STOP])  # a call in the middle of nowhere


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_llama(tmp_path_factory.mktemp("model"), layers=2)
    write_tiny_chatml(folder, template=TOOL_TEMPLATE)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def backend(folder: Path) -> Any:
    settings = VllmSettings(
        str(folder), "float32", max_model_len=2048, max_num_seqs=4, kv_cache_gib=0.2
    )
    built = VllmBackend(settings)
    yield built
    built.shutdown()


class _Kept:
    """A backend that outlives the engines of the tests."""

    def __init__(self, backend: VllmBackend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def shutdown(self) -> None: ...


def asking(response_id: str, *more: Message, **options: Any) -> ResponseRequest:
    options = {"tools": (LIGHT, STOP), "audio": False, **options}
    return ResponseRequest(response_id, "Be kind.", (ASKED, *more), **options)


def converse(
    backend: VllmBackend,
    folder: Path,
    choices: str,
    *requests: ResponseRequest,
    cancels: str = "",
) -> tuple[Caller, Steered]:
    """Answer the requests one after the other, in one call, with a model that makes these choices.

    The request named by `cancels` is cancelled as soon as it calls.
    """
    chat = ChatMl(folder, Persona("You are a house."))
    deck = Deck(chat)
    spec = ModelSpec("tiny", 160, 24_000, 24_000, 6, False, stop_token_ids=chat.stop_token_ids)
    model = Steered(spec, CascadeParts(EnergyVad(), DurationTranscriber(), chat, ToneVoice()))
    model.choices = [getattr(deck, name) for name in choices.split()]
    caller = Caller()

    async def talk() -> None:
        executor = ThreadExecutor(lambda: _Kept(backend))  # type: ignore[arg-type,return-value]
        engine = Engine(
            model,
            executor,
            LoopClock(),
            Recorder(),
            EngineSettings(stall_limit_s=60.0),
            KvPolicy("unbounded"),
            Pools.inline(),
        )
        await engine.start()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(engine.run())
            await asyncio.sleep(0)
            session = engine.open("s", SessionSetup(), caller)
            for request in requests:
                session.respond(request)
                if request.response_id == cancels:
                    await caller.until("call", cancels)
                    session.cancel(cancels)
                else:
                    await caller.until("ended", request.response_id)
            engine.close("s")
            await asyncio.sleep(0.05)
            engine.request_stop()
            await running
        await engine.stop()

    asyncio.run(asyncio.wait_for(talk(), 120))
    return caller, model


def calls_of(caller: Caller, response_id: str) -> list[tuple[str, Any]]:
    """Every call of an answer, valid for its tool; each streamed in more than one piece."""
    parts: dict[int, list[CallPart]] = {}
    for fact in caller.facts:
        if fact[:2] == ("call", response_id):
            assert isinstance(fact[2], CallPart)
            parts.setdefault(fact[2].index, []).append(fact[2])
    found = []
    for pieces in parts.values():
        assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        arguments = json.loads("".join(piece.arguments for piece in pieces))
        jsonschema.validate(arguments, SCHEMAS[pieces[0].name])
        found.append((pieces[0].name, arguments))
    return found


def ending(caller: Caller, response_id: str) -> tuple[object, Usage]:
    fact = caller.ended(response_id)
    assert fact is not None
    assert isinstance(fact[3], Usage)
    return fact[2], fact[3]


def test_words_and_then_a_call(backend: VllmBackend, folder: Path) -> None:
    """The words stay words; the call follows them, fits its tool, and the mark is told to nobody."""
    caller, model = converse(backend, folder, "words_then_call ends", asking("r1"))
    assert 0 < len(caller.text["r1"]) <= 5  # six tokens, the last of which is the mark
    assert set(caller.text["r1"]) <= set("abcdefgh ")
    assert len(calls_of(caller, "r1")) == 1
    kinds = [fact[0] for fact in caller.facts if fact[1:2] == ("r1",)]
    assert kinds.index("call") > kinds.index("text")
    assert "text" not in kinds[kinds.index("call") :]
    assert ending(caller, "r1")[0] == "completed"
    assert model.choices == []


def test_spoken_words_come_before_the_call(backend: VllmBackend, folder: Path) -> None:
    """All their audio has been told when the call begins."""
    caller, _ = converse(backend, folder, "words_then_call ends", asking("r1", audio=True))
    kinds = [fact[0] for fact in caller.facts if fact[1:2] == ("r1",)]
    assert "audio" in kinds
    assert "audio" not in kinds[kinds.index("call") :]


def test_calls_in_parallel(backend: VllmBackend, folder: Path) -> None:
    """The model goes on calling until it ends its turn; told to make one call, it makes one."""
    caller, _ = converse(backend, folder, "call call call ends", asking("r1"))
    assert len(calls_of(caller, "r1")) == 3
    caller, _ = converse(backend, folder, "call", asking("r1", parallel_calls=False))
    assert len(calls_of(caller, "r1")) == 1


def test_no_call_where_none_is_chosen_or_allowed(backend: VllmBackend, folder: Path) -> None:
    """Left to itself the model may speak; with `none` it cannot begin a call, however much it would like to."""
    caller, _ = converse(backend, folder, "words", asking("r1"))
    assert calls_of(caller, "r1") == []
    assert caller.text["r1"]
    caller, _ = converse(
        backend, folder, "call", asking("r1", tool_choice="none", max_output_tokens=8)
    )
    assert calls_of(caller, "r1") == []


def test_a_named_function_is_called_whatever_the_model_wants(
    backend: VllmBackend, folder: Path
) -> None:
    """And it alone, though the model knows of others."""
    request = asking("r1", tool_choice="required", only_tool="stop", parallel_calls=False)
    caller, _ = converse(backend, folder, "", request)
    assert calls_of(caller, "r1") == [("stop", {})]


def test_the_conversation_goes_on_where_the_call_was_written(
    backend: VllmBackend, folder: Path
) -> None:
    """Words, call and result are in the context of the next answer, and what was resident is not computed again."""
    first, _ = converse(backend, folder, "words_then_call ends", asking("r1"))
    (name, _), words = calls_of(first, "r1")[0], first.text["r1"]
    arguments = "".join(
        fact[2].arguments
        for fact in first.facts
        if fact[0] == "call"  # type: ignore[attr-defined]
    )
    after: Sequence[Message] = (
        Message("assistant", words, "a1"),
        Message("assistant", call_text(name, arguments), "c1", call=True),
        Message("tool", "Done.", "t1"),
    )
    caller, _ = converse(
        backend, folder, "words_then_call ends words", asking("r1"), asking("r2", *after)
    )
    assert calls_of(caller, "r1") == calls_of(first, "r1")
    _, usage = ending(caller, "r2")
    result = len("<|im_end|>\n user\n<tool_response>\nDone.\n</tool_response> \nassistant\n") + 24
    assert usage.input_tokens - usage.cached_tokens < result
    assert usage.cached_tokens > ending(caller, "r1")[1].input_tokens + len(arguments)


def test_a_call_that_runs_out_of_tokens_is_not_completed(
    backend: VllmBackend, folder: Path
) -> None:
    """The limit counts words and calls together."""
    caller, _ = converse(backend, folder, "call", asking("r1", max_output_tokens=20))
    assert not any(fact[2].done for fact in caller.facts if fact[0] == "call")  # type: ignore[attr-defined]
    assert ending(caller, "r1")[0] == "max_output_tokens"


def test_a_tool_that_no_grammar_can_hold_fails_the_answer_alone(
    backend: VllmBackend, folder: Path
) -> None:
    """The response says why, and the next one is given."""
    odd = {**STOP, "parameters": {"properties": {"a": {"type": "nothing"}}}}
    caller, _ = converse(
        backend, folder, "call words", asking("r1", tools=(odd,)), asking("r2", tools=(odd,))
    )
    fact = caller.ended("r1")
    assert fact is not None
    assert fact[2] == "failed"
    assert fact[4]
    assert ending(caller, "r2")[0] == "completed"
    assert backend.snapshot().sessions == 0


def test_a_cancelled_call_is_forgotten_and_the_next_answer_is_given(
    backend: VllmBackend, folder: Path
) -> None:
    """A few tokens of it may still be decoded; nothing of it is told, and the context goes on without it."""
    caller, _ = converse(backend, folder, "call words", asking("r1"), asking("r2"), cancels="r1")
    assert caller.ended("r1") is None
    last_of_first = max(i for i, fact in enumerate(caller.facts) if fact[1] == "r1")
    first_of_second = min(i for i, fact in enumerate(caller.facts) if fact[1] == "r2")
    assert last_of_first < first_of_second
    reason, usage = ending(caller, "r2")
    assert reason == "completed"
    assert usage.cached_tokens >= usage.input_tokens - 2
    assert backend.snapshot().sessions == 0


def test_a_model_without_a_tools_branch_may_begin_with_a_call(
    backend: VllmBackend, tmp_path: Path
) -> None:
    """It is told of no tools under `auto`; what it writes as a call is one all the same, and fits the tool."""
    plain = write_tiny_chatml(tmp_path / "plain")
    caller, _ = converse(backend, plain, "bare", asking("r1"))
    assert calls_of(caller, "r1") == [("stop", {})]
    assert "r1" not in caller.text
    assert ending(caller, "r1")[0] == "completed"
