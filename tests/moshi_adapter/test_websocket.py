"""A call with the tiny random model through the real server, with the public client."""

import asyncio
import base64
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from moshi_adapter.streams import FRAME, noise
from openai import AsyncOpenAI
from support.embedded import embedded_files
from support.server_process import Running, run_server

from bench.audio import clip

pytestmark = [pytest.mark.models, pytest.mark.socket, pytest.mark.slow]

MOSHI: dict[str, Any] = {
    "server.port": 0,
    "model.id": "moshi-tiny-random",
    "model.tick_ms": 80,
    "model.decode_per_tick": 1,
    "engine.max_sessions": 4,
    "engine.moshi.device": "cpu",
    "log.level": "warning",
    "admission.kind": "static",  # as configs/moshi.toml has it: the slots are the limit
}


@pytest.fixture
async def server() -> AsyncIterator[Running]:
    async with run_server(MOSHI) as running:
        yield running


async def converse(server: Running, seed: int, frames: int) -> dict[str, list[Any]]:
    """Send `frames` frames as fast as they are answered; what came back, by event type."""
    client = AsyncOpenAI(api_key="none", base_url=f"{server.http}/v1")
    events: dict[str, list[Any]] = {}
    async with client.realtime.connect(model="moshi-tiny-random") as call:
        for pcm in noise(seed, frames):
            await call.input_audio_buffer.append(audio=base64.b64encode(pcm).decode())
        async for event in call:
            events.setdefault(event.type, []).append(event)
            # One frame in, one frame out, but for the first.
            if len(events.get("response.output_audio.delta", ())) == frames - 1:
                break
    return events


async def test_sound_goes_in_and_comes_out_at_once(server: Running) -> None:
    """A frame of 24 kHz pcm16 for every frame after the first, with words, in a response nobody asked for."""
    async with asyncio.timeout(20):
        events = await converse(server, seed=1, frames=20)
    deltas = events["response.output_audio.delta"]
    assert {len(base64.b64decode(delta.delta)) for delta in deltas} == {2 * FRAME}
    words = "".join(event.delta for event in events["response.output_audio_transcript.delta"])
    assert words.startswith("w")
    assert len(words.split()) > 3
    assert len(events["response.created"]) == 1
    assert "error" not in events


async def test_calls_share_the_engine_and_leave_it_empty(server: Running) -> None:
    """Four calls at once each get their own answer; when they hang up, no slot is held."""
    async with asyncio.timeout(30):
        calls = await asyncio.gather(*(converse(server, seed, 12) for seed in range(4)))
        await server.settled()
    transcripts = {
        "".join(e.delta for e in events["response.output_audio_transcript.delta"])
        for events in calls
    }
    assert len(transcripts) == 4


async def first_words(server: Running, **session: Any) -> str:
    """What the model says in the first 20 frames of a call with these settings."""
    client, words = AsyncOpenAI(api_key="none", base_url=f"{server.http}/v1"), ""
    async with client.realtime.connect(model="moshi-tiny-random") as call:
        if session:
            update: Any = {"type": "realtime", **session}
            await call.session.update(session=update)
        for pcm in noise(1, 20):
            await call.input_audio_buffer.append(audio=base64.b64encode(pcm).decode())
        frames = 0
        async for event in call:
            assert event.type != "error", event
            if event.type == "session.updated":
                assert event.session.audio.output.voice == "anna"
            if event.type == "response.output_audio_transcript.delta":
                words += event.delta
            frames += event.type == "response.output_audio.delta"
            if frames == 19:
                return words
    raise AssertionError("the call ended")


async def test_a_session_s_role_and_voice_reach_the_model(tmp_path: Path) -> None:
    """Instructions and voice that a stock client sends change what is said, the same every time."""
    with wave.open(str(tmp_path / "anna.wav"), "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes(b"".join(noise(9, 4)))
    prompted = {
        **MOSHI,
        "engine.moshi.prompted": True,
        "engine.moshi.voices": str(tmp_path),
        "engine.moshi.context_frames": 64,
        "engine.moshi.temperature": 0.0,
        "engine.moshi.text_temperature": 0.0,
        "model.voice": "anna",
    }
    async with asyncio.timeout(60), run_server(prompted) as server:
        default = await first_words(server)
        teacher = await first_words(server, instructions="You are a teacher.")
        again, sailor = await asyncio.gather(
            first_words(server, instructions="You are a teacher."),
            first_words(server, instructions="You are a sailor."),
        )
        await server.settled()
    assert teacher == again
    assert len({default, teacher, sailor}) == 3


async def test_a_person_is_understood_beside_the_model() -> None:
    """Silero and Moonshine, as configs/moshi.toml has them: a recording's turn is told, with its words."""
    files = embedded_files()
    overrides = {
        **MOSHI,
        "engine.inbox_s": 60.0,  # everything is sent at once
        "model.vad": str(files.root),
        "model.stt": str(files.transcriber),
    }
    quiet, spoken = bytes(24_000), clip("goforward")
    seen: list[Any] = []
    async with asyncio.timeout(60), run_server(overrides) as server:
        client = AsyncOpenAI(api_key="none", base_url=f"{server.http}/v1")
        async with client.realtime.connect(model="moshi-tiny-random") as call:
            transcription: Any = {"input": {"transcription": {"model": "whisper-1"}}}
            await call.session.update(session={"type": "realtime", "audio": transcription})
            for pcm in (quiet, spoken.pcm, quiet, quiet):
                await call.input_audio_buffer.append(audio=base64.b64encode(pcm).decode())
            async for event in call:
                seen.append(event)
                assert event.type != "error", event
                if event.type == "conversation.item.input_audio_transcription.completed":
                    break
    kinds = [event.type for event in seen]
    assert kinds.count("input_audio_buffer.speech_started") == 1
    assert kinds.count("input_audio_buffer.speech_stopped") == 1
    assert kinds.count("response.created") == 1  # the model's own, which goes on
    assert "go forward" in seen[-1].transcript.lower()
