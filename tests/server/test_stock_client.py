"""The stock `openai` client against a real server: transcription sessions, and G.711 both ways."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from support.server_process import Running, run_server
from support.sim_engine import silence, tone
from support.validate_events import validated

from protocol.audio_format import AudioFormat

pytestmark = [pytest.mark.socket, pytest.mark.slow]

CHUNK_MS = 100
TRANSCRIBED = "conversation.item.input_audio_transcription.completed"


@asynccontextmanager
async def calling(server: Running, **connect: Any) -> AsyncIterator[AsyncRealtimeConnection]:
    """A call of the stock client's, past `session.created`."""
    async with (
        AsyncOpenAI(api_key="none", base_url=f"{server.http}/v1") as client,
        client.realtime.connect(**connect) as call,
    ):
        assert (await call.recv()).type == "session.created"
        yield call


async def says(call: AsyncRealtimeConnection, audio: bytes, bytes_per_ms: int) -> None:
    """Send wire audio in chunks, faster than it is spoken."""
    step = CHUNK_MS * bytes_per_ms
    for start in range(0, len(audio), step):
        chunk = audio[start : start + step]
        await call.input_audio_buffer.append(audio=base64.b64encode(chunk).decode())


async def until(call: AsyncRealtimeConnection, kind: str) -> list[dict[str, Any]]:
    """Every event up to the first of this type, each valid."""
    seen: list[dict[str, Any]] = []
    while not seen or seen[-1]["type"] != kind:
        seen.append(validated((await call.recv_bytes()).decode()))
        assert seen[-1]["type"] != "error", seen[-1]
    return seen


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


@pytest.mark.parametrize("chosen_by", ["intent", "session type"])
async def test_a_transcription_session_commits_and_transcribes_and_answers_nothing(
    chosen_by: str,
) -> None:
    """By the URL or by session.update: two spoken turns become two transcripts, and no response."""
    async with run_server() as server:
        query = {"intent": "transcription"} if chosen_by == "intent" else {}
        async with calling(server, extra_query=query) as call:
            await call.session.update(
                session={
                    "type": "transcription",
                    "audio": {"input": {"transcription": {"model": "whisper-1", "language": "en"}}},
                }
            )
            (updated,) = await until(call, "session.updated")
            assert updated["session"]["type"] == "transcription"
            assert "output" not in updated["session"]["audio"]
            items = []
            for seconds in (0.8, 1.2):
                await says(call, tone(seconds) + silence(1.0), 48)
                events = await until(call, TRANSCRIBED)
                assert kinds(events) == [
                    "input_audio_buffer.speech_started",
                    "input_audio_buffer.speech_stopped",
                    "input_audio_buffer.committed",
                    "conversation.item.added",
                    "conversation.item.done",
                    "conversation.item.input_audio_transcription.delta",
                    TRANSCRIBED,
                ]
                assert "speech lasting" in events[-1]["transcript"]
                items.append(events[-1]["item_id"])
            assert items[0] != items[1]
        await server.settled()


async def test_a_transcription_session_can_be_cut_by_hand() -> None:
    """Without turn detection the client commits; a response is refused, and the session goes on."""
    async with (
        run_server() as server,
        calling(server, extra_query={"intent": "transcription"}) as call,
    ):
        await call.session.update(
            session={"type": "transcription", "audio": {"input": {"turn_detection": None}}}
        )
        await until(call, "session.updated")
        await call.response.create()
        refused: Any = await call.recv()
        assert "no responses" in refused.error.message
        await says(call, tone(0.5), 48)
        await call.input_audio_buffer.commit()
        events = await until(call, TRANSCRIBED)
        assert kinds(events)[0] == "input_audio_buffer.committed"
        assert "speech" in events[-1]["transcript"]


@pytest.mark.parametrize("name", ["audio/pcmu", "audio/pcma"])
async def test_a_spoken_turn_over_g711(name: str) -> None:
    """8 kHz in, 8 kHz out: the words of the same length as over pcm, and an answer that is loud and not clipped."""
    wire = AudioFormat(name)
    async with run_server() as server:
        async with calling(server, model="sim") as call:
            audio: Any = {
                "input": {"format": {"type": name}, "transcription": {"model": "any"}},
                "output": {"format": {"type": name}},
            }
            await call.session.update(session={"type": "realtime", "audio": audio})
            (updated,) = await until(call, "session.updated")
            assert updated["session"]["audio"]["output"]["format"] == {"type": name}
            pcm = tone(1.0, 8000) + silence(1.0, 8000)
            await says(call, wire.from_pcm(pcm), 8)
            events = await until(call, "response.done")
            if TRANSCRIBED not in kinds(events):
                events += await until(call, TRANSCRIBED)
        heard = next(e for e in events if e["type"] == TRANSCRIBED)["transcript"]
        assert heard == "speech lasting one point zero seconds"
        deltas = [e["delta"] for e in events if e["type"] == "response.output_audio.delta"]
        answer = wire.to_pcm(b"".join(map(base64.b64decode, deltas)))
        samples = np.frombuffer(answer, "<i2") / 32768
        (done,) = [e for e in events if e["type"] == "response.done"]
        assert done["response"]["status"] == "completed"
        assert len(samples) > 8000 / 2
        level = 20 * np.log10(np.sqrt(np.square(samples).mean()))
        assert -30 < level < -6
        assert np.abs(samples).max() < 0.5
        await server.settled()


async def test_a_turn_and_its_answer_are_read_back_with_their_audio() -> None:
    """What the detector took for speech, to within its padding; and the answer, byte for byte as it was sent."""
    async with run_server() as server, calling(server, model="sim") as call:
        await call.session.update(session={"type": "realtime", "max_output_tokens": 20})
        await says(call, silence(0.64) + tone(1.0) + silence(1.0), 48)
        events = await until(call, "response.done")
        asked = next(e for e in events if e["type"] == "input_audio_buffer.committed")["item_id"]
        sent = [e for e in events if e["type"] == "response.output_audio.delta"]
        read = []
        for item_id in (asked, sent[0]["item_id"]):
            await call.conversation.item.retrieve(item_id=item_id)
            event = (await until(call, "conversation.item.retrieved"))[-1]
            read.append(base64.b64decode(event["item"]["content"][0]["audio"]))
        samples = np.frombuffer(read[0], "<i2") / 32768
        spoken_s = float(np.count_nonzero(np.abs(samples) > 0.01)) / 24_000
        assert 0.95 < spoken_s <= 1.0
        assert len(samples) / 24_000 < 1.5
        assert read[1] == b"".join(base64.b64decode(e["delta"]) for e in sent)
