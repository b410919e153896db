"""The conformance turn, spoken in and events out, through the real server and the stock client, for each model."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from support.pictures import picture
from support.server_process import Running, run_server
from support.sim_engine import silence, tone

from bench.tiny_audio import HEARING, spread_weights, write_minicpmo, write_voxtral
from engine.hearing_session import HearingSession

pytestmark = [pytest.mark.models, pytest.mark.vllm, pytest.mark.socket, pytest.mark.slow]

SPOKEN = silence(0.4) + tone(1.5) + silence(1.0)
CHUNK = 24_000 * 2 // 10  # bytes of 100 ms


def settings(folder: Path) -> dict[str, Any]:
    """A deployment of this model with simulated ears and voice around it."""
    return {
        "server.port": 0,
        "model.id": str(folder),
        "model.name": "tiny",
        "model.vad": "sim",
        "model.stt": "none",
        "model.tts": "sim",
        "engine.max_sessions": 2,
        "engine.vllm.dtype": "float32",
        "engine.vllm.max_model_len": 1024,
        "engine.vllm.kv_cache_gib": 0.05,
        "engine.vllm.load_format": "dummy",
        "engine.kv.window_tokens": 256,
        "engine.kv.slack_tokens": 128,
        "engine.lead_s": 60.0,
    }


async def speak(server: Running) -> list[Any]:
    """One spoken turn; all events up to the end of its answer."""
    events = []
    client = AsyncOpenAI(base_url=f"{server.http}/v1", api_key="any")
    async with client.realtime.connect(model="gpt-realtime") as connection:
        for start in range(0, len(SPOKEN), CHUNK):
            audio = base64.b64encode(SPOKEN[start : start + CHUNK]).decode()
            await connection.input_audio_buffer.append(audio=audio)
        async for event in connection:
            events.append(event)
            if event.type == "response.done":
                break
    await client.close()
    return events


@pytest.mark.parametrize("name", HEARING)
def test_a_spoken_turn_is_answered_aloud(name: str, tmp_path: Path) -> None:
    """The model is given the audio itself, in the order the API promises; afterwards nothing is held."""

    async def main() -> None:
        with spread_weights():
            async with run_server(settings(HEARING[name](tmp_path))) as server:
                engine = server.runtime.parts.engine
                opened = []
                open_session = engine.open
                engine.open = lambda *a: opened.append(open_session(*a)) or opened[-1]  # type: ignore[method-assign,func-returns-value]
                events = await speak(server)
                kinds = [event.type for event in events]
                wanted = [
                    "session.created",
                    "input_audio_buffer.speech_started",
                    "input_audio_buffer.speech_stopped",
                    "input_audio_buffer.committed",
                    "response.created",
                    "response.output_audio.delta",
                    "response.done",
                ]
                assert [kinds.index(kind) for kind in wanted] == sorted(map(kinds.index, wanted))
                assert events[-1].response.status in ("completed", "incomplete")
                (session,) = opened
                assert isinstance(session, HearingSession)
                assert session._memory.audio_tokens > 0
                await server.settled()

    asyncio.run(main())


def item(item_id: str, *content: dict[str, str]) -> Any:
    return {"type": "message", "role": "user", "id": item_id, "content": list(content)}


def image(data: bytes, kind: str = "png") -> dict[str, str]:
    url = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return {"type": "input_image", "image_url": url, "detail": "auto"}


async def push(connection: Any, pcm: bytes) -> None:
    for start in range(0, len(pcm), CHUNK):
        audio = base64.b64encode(pcm[start : start + CHUNK]).decode()
        await connection.input_audio_buffer.append(audio=audio)


async def until(connection: Any, kind: str) -> list[Any]:
    """Events up to the next of this type."""
    events = []
    async for event in connection:
        events.append(event)
        if event.type == kind:
            break
    return events


@pytest.mark.parametrize("name", ["qwen2.5-omni", "qwen3-omni"])
def test_a_caller_shows_images_while_speaking(name: str, tmp_path: Path) -> None:
    """One before the turn, one within it, one damaged: two are in the context, the third is an error event."""

    async def main() -> None:
        with spread_weights():
            deployment = settings(HEARING[name](tmp_path)) | {"model.image_tokens": 24}
            async with run_server(deployment) as server:
                engine = server.runtime.parts.engine
                opened = []
                open_session = engine.open
                engine.open = lambda *a: opened.append(open_session(*a)) or opened[-1]  # type: ignore[method-assign,func-returns-value]
                client = AsyncOpenAI(base_url=f"{server.http}/v1", api_key="any")
                async with client.realtime.connect(model="gpt-realtime") as connection:
                    words = {"type": "input_text", "text": "look"}
                    add = connection.conversation.item.create
                    await add(item=item("before", words, image(picture(1))))
                    await push(connection, silence(0.4) + tone(1.5))
                    await until(connection, "input_audio_buffer.speech_started")
                    async with asyncio.timeout(20):  # until a second of the turn has been heard
                        while not opened[0]._memory.turn:  # noqa: ASYNC110  # nothing tells of it
                            await asyncio.sleep(0.01)
                    await add(item=item("within", image(picture(2, kind="JPEG"), "jpeg")))
                    await add(item=item("damaged", image(picture(3)[:100])))
                    wrong = (await until(connection, "error"))[-1].error
                    assert (wrong.code, wrong.message) == (
                        "invalid_image",
                        "Item 'damaged': The image is damaged.",
                    )
                    await push(connection, tone(1.2) + silence(1.0))
                    done = (await until(connection, "response.done"))[-1]
                    assert done.response.status in ("completed", "incomplete")
                    await connection.conversation.item.retrieve(item_id="within")
                    told = (await until(connection, "conversation.item.retrieved"))[-1].item
                    assert [part.type for part in told.content] == ["input_image"]
                await client.close()
                (session,) = opened
                shown = [f for f in session._memory._features.values() if f.modality == "image"]
                assert len(shown) == 2
                assert session._memory._insets
                await server.settled()

    asyncio.run(main())


@pytest.mark.parametrize("name", ["qwen2-audio", "qwen2.5-omni"])
def test_a_model_that_takes_no_images_says_so_and_goes_on(name: str, tmp_path: Path) -> None:
    """Because it has no eyes, or because the deployment does not load them."""

    async def main() -> None:
        with spread_weights():
            deployment = settings(HEARING[name](tmp_path)) | {"model.image_tokens": 0}
            async with run_server(deployment) as server:
                client = AsyncOpenAI(base_url=f"{server.http}/v1", api_key="any")
                async with client.realtime.connect(model="gpt-realtime") as connection:
                    await connection.conversation.item.create(item=item("i1", image(picture(1))))
                    wrong = (await until(connection, "error"))[-1].error
                    assert wrong.message == "This model takes no images."
                    await push(connection, SPOKEN)
                    done = (await until(connection, "response.done"))[-1]
                    assert done.response.status in ("completed", "incomplete")
                await client.close()
                await server.settled()

    asyncio.run(main())


@pytest.mark.parametrize("detects", [True, False])
def test_a_transcription_session_gets_the_words(detects: bool, tmp_path: Path) -> None:
    """Voxtral realtime: turns found by voice activity, or committed by the client, each with its transcript."""

    async def main() -> None:
        deployment = settings(write_voxtral(tmp_path))
        deployment |= {"model.tick_ms": 80, "engine.kv.policy": "unbounded"}
        with spread_weights():
            async with run_server(deployment) as server:
                client = AsyncOpenAI(base_url=f"{server.http}/v1", api_key="any")
                async with client.realtime.connect(
                    extra_query={"intent": "transcription"}
                ) as connection:
                    heard: dict[str, Any] = {"transcription": {"model": "tiny"}}
                    heard |= {} if detects else {"turn_detection": None}
                    await connection.session.update(
                        session={"type": "transcription", "audio": {"input": heard}}
                    )
                    await until(connection, "session.updated")
                    for _ in range(2):
                        await push(connection, SPOKEN)
                        if not detects:
                            await connection.input_audio_buffer.commit()
                        kind = "conversation.item.input_audio_transcription.completed"
                        events = await until(connection, kind)
                        kinds = [event.type for event in events]
                        assert "error" not in kinds
                        assert ("input_audio_buffer.speech_started" in kinds) is detects
                        assert kinds.index("conversation.item.added") < kinds.index(kind)
                        assert not any(kind.startswith("response.") for kind in kinds)
                        # Random weights write random bytes, but some.
                        assert events[-1].transcript
                await client.close()
                await server.settled()

    asyncio.run(main())


def test_a_model_that_decides_by_itself_is_voiced(tmp_path: Path) -> None:
    """MiniCPM-o: seconds and images go in, a response opens when it begins to speak, and what it writes is heard."""

    async def main() -> None:
        with spread_weights():
            deployment = settings(write_minicpmo(tmp_path))
            deployment |= {"engine.vllm.trust_remote_code": True, "model.tick_ms": 1000}
            async with run_server(deployment) as server:
                client = AsyncOpenAI(base_url=f"{server.http}/v1", api_key="any")
                async with client.realtime.connect(model="gpt-realtime") as connection:
                    await connection.conversation.item.create(item=item("i1", image(picture(1))))
                    for _ in range(40):  # its words are random: a clause may be long in coming
                        audio = base64.b64encode(tone(1.0)).decode()
                        await connection.input_audio_buffer.append(audio=audio)
                    kinds = []
                    async for event in connection:
                        kinds.append(event.type)
                        if event.type == "response.output_audio.delta":
                            break
                await client.close()
                assert "response.created" in kinds
                assert "error" not in kinds
                await server.settled()

    asyncio.run(main())
