"""A frame-locked model through the real server, with the stock client: the caller's turns are told beside it."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI
from support.server_process import DUPLEX, Running, run_server
from support.sim_engine import silence, tone

pytestmark = [pytest.mark.socket, pytest.mark.slow]

ITEM = "conversation.item."
WORDS = f"{ITEM}input_audio_transcription."
TURN = [
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    f"{ITEM}added",
    f"{ITEM}done",
]


@pytest.fixture(params=["sim", "none"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    async with run_server({**DUPLEX, "model.stt": request.param}) as running:
        yield running


@pytest.fixture
async def humming() -> AsyncIterator[Running]:
    async with run_server(DUPLEX) as running:
        yield running


async def send(call: Any, pcm: bytes) -> None:
    for at in range(0, len(pcm), 9600):
        await call.input_audio_buffer.append(audio=base64.b64encode(pcm[at : at + 9600]).decode())


async def until(call: Any, last: str, seen: list[Any]) -> Any:
    """The next event of that type; everything on the way goes to `seen`."""
    async for event in call:
        seen.append(event)
        assert event.type != "error", event
        if event.type == last:
            return event
    raise AssertionError("the call ended")


async def test_a_turn_beside_a_model_that_never_stops(server: Running) -> None:
    """The hum goes on in its response while the caller's turn is told, committed and, where possible, transcribed."""
    transcribes = server.runtime.parts.config.model.stt == "sim"
    client, seen = AsyncOpenAI(api_key="none", base_url=f"{server.http}/v1"), list[Any]()
    async with asyncio.timeout(20), client.realtime.connect(model="sim-duplex") as call:
        transcription: Any = {"input": {"transcription": {"model": "whisper-1"}}}
        await call.session.update(session={"type": "realtime", "audio": transcription})
        await send(call, silence(0.2))
        await until(call, "response.output_audio.delta", seen)
        await send(call, tone(0.8) + silence(0.8))
        await until(call, WORDS + ("completed" if transcribes else "failed"), seen)
        await send(call, silence(0.1))
        await until(call, "response.output_audio.delta", seen)
    user = [e.item.id for e in seen if e.type == f"{ITEM}added" and e.item.role == "user"]
    model = [e.item.id for e in seen if e.type == f"{ITEM}added" and e.item.role == "assistant"]
    assert (len(user), len(model)) == (1, 1)
    about = [
        e.type
        for e in seen
        if getattr(e, "item_id", "") in user or getattr(getattr(e, "item", 0), "id", "") in user
    ]
    words = [f"{WORDS}delta", f"{WORDS}completed"] if transcribes else [f"{WORDS}failed"]
    assert about == TURN + words
    committed = next(e for e in seen if e.type == "input_audio_buffer.committed")
    assert committed.previous_item_id == model[0]
    assert not [e for e in seen if e.type == "response.done"]
    if transcribes:
        (completed,) = [e for e in seen if e.type == f"{WORDS}completed"]
        assert completed.transcript == "speech lasting zero point eight seconds"
        assert completed.usage.type == "duration"
    else:
        (failed,) = [e for e in seen if e.type == f"{WORDS}failed"]
        assert "model.stt" in failed.error.message


async def test_an_answer_that_is_asked_for_while_it_hums_is_refused(humming: Running) -> None:
    """Its response is in progress; the refusal is the one that clients know."""
    client = AsyncOpenAI(api_key="none", base_url=f"{humming.http}/v1")
    async with asyncio.timeout(20), client.realtime.connect(model="sim-duplex") as call:
        await send(call, silence(0.2))
        await until(call, "response.output_audio.delta", [])
        await call.response.create()
        async for event in call:
            if event.type == "error":
                assert event.error.code == "conversation_already_has_active_response"
                break


async def test_an_answer_that_is_asked_for_of_a_silent_model_ends(humming: Running) -> None:
    """No audio, no model time, and still `response.done`, with nothing said."""
    client, seen = AsyncOpenAI(api_key="none", base_url=f"{humming.http}/v1"), list[Any]()
    async with asyncio.timeout(20), client.realtime.connect(model="sim-duplex") as call:
        await call.response.create(response={"metadata": {"client_event_id": "e1"}})
        done = (await until(call, "response.done", seen)).response
    assert (done.status, done.output, done.metadata) == ("completed", [], {"client_event_id": "e1"})
