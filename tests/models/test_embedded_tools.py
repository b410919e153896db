"""The embedded language model calls functions: on the real engine, with simulated ears and voice."""

import asyncio
import json
from typing import Any

import jsonschema
import pytest
from support.embedded import embedded_files
from support.sim_engine import Caller, Recorder

from engine.clock import LoopClock
from engine.engine import Engine
from engine.executor import ThreadExecutor
from engine.kv_policy import KvPolicy
from engine.listener import CallPart
from engine.models.base import Message, SessionSetup
from engine.models.registry import ModelSettings, build_model
from engine.pool import Pools
from engine.response import ResponseRequest
from engine.settings import EngineSettings
from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings

pytestmark = [pytest.mark.embedded, pytest.mark.vllm, pytest.mark.slow]

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
    },
}
TIMER = {
    "type": "function",
    "name": "set_timer",
    "description": "Set a timer.",
    "parameters": {
        "type": "object",
        "properties": {"minutes": {"type": "integer"}},
        "required": ["minutes"],
    },
}
QUESTION = Message("user", "What is the weather in Paris?", "question")


def request(response_id: str, *more: Message, **options: Any) -> ResponseRequest:
    return ResponseRequest(response_id, "", (QUESTION, *more), audio=False, **options)


def call_of(caller: Caller, response_id: str) -> tuple[str, Any]:
    """The one call of an answer: its name and arguments."""
    parts = [f[2] for f in caller.facts if f[:2] == ("call", response_id)]
    assert all(isinstance(part, CallPart) for part in parts)
    assert len(parts) > 2  # they stream
    assert parts[-1].done  # type: ignore[attr-defined]
    text = "".join(part.arguments for part in parts)  # type: ignore[attr-defined]
    return parts[0].name, json.loads(text)  # type: ignore[attr-defined]


async def converse(caller: Caller) -> None:
    files = embedded_files()
    sim = {"vad": "sim", "stt": "sim", "tts": "sim"}
    model = build_model(ModelSettings(embedded=files.root, **sim))
    clock = LoopClock()
    settings = VllmSettings(
        str(files.llm), "bfloat16", max_model_len=1024, max_num_seqs=4, kv_cache_gib=0.1
    )
    executor = ThreadExecutor(lambda: VllmBackend(settings))
    engine = Engine(
        model,
        executor,
        clock,
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
        session.respond(request("required", tools=(TIMER, WEATHER), tool_choice="required"))
        await caller.until("ended", "required")
        session.respond(request("named", tools=(WEATHER,), tool_choice="required"))
        await caller.until("ended", "named")
        called = Message(
            "assistant", '{"name": "get_weather", "arguments": {"city": "Paris"}}', "call"
        )
        result = Message("tool", "It is foggy in Paris.", "result")
        session.respond(request("words", called, result, tools=(TIMER, WEATHER)))
        await caller.until("ended", "words")
        engine.close("s")
        engine.request_stop()
        await running
    await engine.stop()


def test_it_calls_when_it_must_and_then_speaks() -> None:
    """Required, it calls some tool; named, that one; and given a result it answers in words. It is a small model."""
    pytest.importorskip("tokenizers")
    caller = Caller()
    asyncio.run(converse(caller))
    name, arguments = call_of(caller, "required")
    (tool,) = (tool for tool in (WEATHER, TIMER) if tool["name"] == name)
    jsonschema.validate(arguments, tool["parameters"])
    name, arguments = call_of(caller, "named")
    assert name == "get_weather"
    jsonschema.validate(arguments, WEATHER["parameters"])
    assert arguments["city"] == "Paris"
    assert caller.text["words"].strip()
