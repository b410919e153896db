"""Function calls: what the model is told, what it is held to, and what the caller hears of it."""

import json
from typing import Any

import jsonschema
import pytest
from support.sim_engine import Caller, ask, cascade, running

from engine.call_text import CallText
from engine.listener import CallPart
from engine.models.base import Message, SessionSetup
from engine.models.sim import SimChat
from engine.models.tools import call_schema, tool_block
from engine.sim_json import Unmakeable, made_up
from engine.virtual_time import run_virtual


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": {"type": "object", **parameters}}


WEATHER = tool("get_weather", properties={"city": {"type": "string"}}, required=["city"])
CLOCK = tool("what_time", properties={"zone": {"enum": ["UTC", "CET"]}}, required=["zone"])
NESTED = tool(
    "draw",
    properties={"shape": {"$ref": "#/$defs/Shape"}},
    required=["shape"],
    **{
        "$defs": {
            "Shape": {"type": "object", "properties": {"sides": {"minimum": 3, "type": "integer"}}}
        }
    },
)
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {}},
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 7, "maximum": 7}}},
    {
        "type": "object",
        "properties": {"a": {"type": "number", "exclusiveMinimum": 2.5, "maximum": 3}},
    },
    {"type": "object", "properties": {"a": {"type": "number", "maximum": -4}}},
    {"type": "object", "properties": {"a": {"type": "integer", "exclusiveMaximum": 0}}},
    {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 5, "minimum": 11}}},
    {"type": "object", "properties": {"a": {"type": "string", "minLength": 30, "maxLength": 31}}},
    {"type": "object", "properties": {"a": {"type": "string", "maxLength": 2}}},
    {"type": "object", "properties": {"a": {"type": ["null", "string"]}}},
    {"type": "object", "properties": {"a": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}}},
    {
        "type": "object",
        "properties": {"a": {"type": "array", "minItems": 3, "items": {"const": 5}}},
    },
    {"type": "object", "properties": {"a": {"allOf": [{"type": "string"}, {"minLength": 4}]}}},
    {"type": "object", "properties": {}, "required": ["free"]},
    NESTED["parameters"],
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_what_the_simulator_makes_up_fits_the_schema(schema: dict[str, Any]) -> None:
    """An independent validator agrees."""
    jsonschema.validate(json.loads(made_up(json.dumps(schema))), schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/nowhere"},
        {"type": "thing"},
        {"type": "integer", "minimum": 5, "maximum": 4},
    ],
    ids=["endless", "lost", "no type", "no number"],
)
def test_what_cannot_be_made_up_is_refused(schema: dict[str, Any]) -> None:
    """A schema without a finite value."""
    with pytest.raises(Unmakeable):
        made_up(json.dumps(schema))


@pytest.mark.parametrize("tools", [[NESTED], [WEATHER, NESTED]], ids=["one", "any"])
def test_the_schema_of_a_call(tools: list[dict[str, Any]]) -> None:
    """It names its tool first, its arguments are the tool's, and references inside them still lead somewhere."""
    schema = json.loads(call_schema(tools))
    for asked in tools:
        arguments = json.loads(made_up(json.dumps(asked["parameters"])))
        jsonschema.validate({"name": asked["name"], "arguments": arguments}, schema)
    wrong = {"name": "draw", "arguments": {"shape": {"sides": 2}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)


def test_objects_are_closed_where_that_is_what_they_mean() -> None:
    """A property more is not allowed unless the tool allows it, requires it, or says the rest elsewhere."""
    shown = tool(
        "f",
        properties={
            "plain": {"properties": {"properties": {"type": "string"}}},
            "open": {"properties": {}, "additionalProperties": True},
            "asks": {"properties": {}, "required": ["more"]},
            "sum": {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
            "data": {"const": {"properties": {}}},
        },
    )
    arguments = json.loads(call_schema([shown]))["properties"]["arguments"]
    found = arguments["properties"]
    assert arguments["additionalProperties"] is False
    assert found["plain"] == {
        "properties": {"properties": {"type": "string"}},
        "additionalProperties": False,
    }
    for name in ("open", "asks", "sum", "data"):
        assert found[name] == shown["parameters"]["properties"][name]


def test_integers_end() -> None:
    """Unbounded ones a small model may go on writing until its tokens run out."""
    asked = {"free": {"type": "integer"}, "held": {"type": "integer", "minimum": 3}}
    arguments = json.loads(call_schema([tool("f", properties=asked)]))["properties"]["arguments"]
    assert arguments["properties"]["free"]["maximum"] == 2**53 - 1
    assert arguments["properties"]["held"] == asked["held"]


def test_a_tool_without_parameters_takes_none() -> None:
    """Free objects would be filled with anything."""
    schema = json.loads(call_schema([{"type": "function", "name": "stop"}]))
    jsonschema.validate({"name": "stop", "arguments": {}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"name": "stop", "arguments": {"now": 1}}, schema)


def test_the_system_block_describes_every_tool() -> None:
    """Names and parameters, one tool a line."""
    block = tool_block([WEATHER, CLOCK])
    assert [json.loads(line)["name"] for line in block.splitlines()[1:-1]] == [
        "get_weather",
        "what_time",
    ]


WRITTEN = r' {"name": "say \"it\"", "arguments": {"a": "}\"{", "b": {"c": [1]}}}' + "\n"


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_call_is_read_however_it_is_split(size: int) -> None:
    """The arguments are passed on as they come, exactly; braces and quotes in strings do not count."""
    call, arguments = CallText(), ""
    for start in range(0, len(WRITTEN), size):
        assert not call.done or not WRITTEN[start:].strip(" }\n")
        arguments += call.feed(WRITTEN[start : start + size])
    assert call.name == 'say "it"'
    assert call.done
    assert json.loads(arguments) == {"a": '}"{', "b": {"c": [1]}}


@pytest.mark.parametrize(
    ("choice", "said", "called"),
    [
        ("auto", "Get weather, please!", ["get_weather"]),
        ("auto", "get_weather and what_time", ["get_weather", "what_time"]),
        ("auto", "Hello.", []),
        ("none", "get_weather", []),
        ("required", "what time?", ["what_time"]),
        ("required", "Hello.", ["get_weather"]),
    ],
)
def test_which_tools_the_simulated_model_calls(choice: Any, said: str, called: list[str]) -> None:
    """Those that the caller names; where a call is required, some tool at any rate."""
    schemas = SimChat().calls([Message("user", said)], [WEATHER, CLOCK], choice)
    assert [json.loads(s)["properties"]["name"]["const"] for s in schemas] == called


def test_a_result_is_answered_in_words() -> None:
    """The last message is the tool's, so nothing is called again."""
    said = [Message("user", "get_weather"), Message("tool", "get_weather says fog")]
    assert SimChat().calls(said, [WEATHER], "auto") == ()


async def _called(request: Any) -> Caller:
    async with running(cascade()) as (engine, _, plant):
        caller = Caller()
        session = engine.open("s", SessionSetup(), caller)
        session.respond(request)
        await caller.until("ended")
        session.respond(ask("r2", "And now?"))
        await caller.until("ended", "r2")
        assert plant.snapshot().sessions == 1  # the contexts of the calls are gone
        engine.close("s")
    return caller


def _calls(caller: Caller) -> list[tuple[str, Any]]:
    """Every call that was completed: (name, arguments)."""
    written: dict[int, str] = {}
    done: list[tuple[str, Any]] = []
    for fact in caller.facts:
        if fact[0] == "call":
            part = fact[2]
            assert isinstance(part, CallPart)
            written[part.index] = written.get(part.index, "") + part.arguments
            if part.done:
                done.append((part.name, json.loads(written[part.index])))
    return done


def test_calls_stream_and_end() -> None:
    """An answer that calls says nothing, streams arguments of both calls, and the conversation goes on after it."""
    request = ask("r1", "get_weather, what_time", tools=(WEATHER, CLOCK))
    caller = run_virtual(_called(request))
    assert _calls(caller) == [("get_weather", {"city": "city"}), ("what_time", {"zone": "UTC"})]
    assert len([fact for fact in caller.facts if fact[0] == "call"]) > 4
    assert caller.text.get("r1") is None
    ended = caller.ended("r1")
    assert ended is not None
    assert ended[2] == "completed"
    assert ended[3].output_tokens > 40  # type: ignore[attr-defined]
    assert caller.audio["r2"]


def test_one_call_where_one_is_allowed() -> None:
    """parallel_tool_calls false."""
    request = ask("r1", "get_weather, what_time", tools=(WEATHER, CLOCK), parallel_calls=False)
    assert len(_calls(run_virtual(_called(request)))) == 1


def test_a_call_that_is_cut_off_is_not_completed() -> None:
    """The token limit ends the answer in the middle of the call."""
    request = ask("r1", "get_weather", tools=(WEATHER,), max_output_tokens=50)
    caller = run_virtual(_called(request))
    assert _calls(caller) == []
    assert caller.ended("r1")[2] == "max_output_tokens"  # type: ignore[index]


def test_a_call_nobody_can_make_fails_alone() -> None:
    """The answer fails and says why; the session goes on."""
    endless = tool("loop", properties={"x": {"$ref": "#/properties/x"}}, required=["x"])
    caller = run_virtual(_called(ask("r1", "loop", tools=(endless,))))
    ended = caller.ended("r1")
    assert ended is not None
    assert ended[2] == "failed"


def test_a_cancelled_call_leaves_nothing_behind() -> None:
    """Its context is freed and no piece of it follows."""

    async def scenario() -> None:
        async with running(cascade()) as (engine, _, plant):
            caller = Caller()
            session = engine.open("s", SessionSetup(), caller)
            session.respond(ask("r1", "get_weather", tools=(WEATHER,)))
            await caller.until("call")
            session.cancel("r1")
            told = len(caller.facts)
            session.respond(ask("r2", "Never mind."))
            await caller.until("ended", "r2")
            assert all(fact[1] == "r2" for fact in caller.facts[told:])
            assert plant.snapshot().sessions == 1
            engine.close("s")

    run_virtual(scenario())
