"""The Live façade against a real server, with the stock `openai` client."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Union, get_args

import numpy as np
import pytest
from openai import AsyncOpenAI
from openai.resources.live.live import AsyncLiveConnection
from openai.types.live import ServerEvent
from pydantic import Field, TypeAdapter
from support.server_process import Running, run_server
from support.sim_engine import silence, tone

from protocol.audio_format import AudioFormat

pytestmark = [pytest.mark.socket, pytest.mark.slow]

_known: Any = Annotated[Union[get_args(get_args(ServerEvent)[0])], Field(discriminator="type")]  # noqa: UP007
_strict: TypeAdapter[Any] = TypeAdapter(_known)


async def recv(live: AsyncLiveConnection) -> dict[str, Any]:
    """The next event, which the package's own types must know."""
    event: dict[str, Any] = _strict.validate_json(await live.recv_bytes()).model_dump(
        exclude_unset=True
    )
    return event


async def until(live: AsyncLiveConnection, kind: str) -> list[dict[str, Any]]:
    """Every event up to the first of this type."""
    seen = [await recv(live)]
    while seen[-1]["type"] != kind:
        seen.append(await recv(live))
    return seen


@asynccontextmanager
async def calling(server: Running, **session: Any) -> AsyncIterator[AsyncLiveConnection]:
    """A session that has started."""
    async with (
        AsyncOpenAI(api_key="none", base_url=f"{server.http}/v1") as client,
        client.live.connect() as live,
    ):
        start: Any = {"type": "session.start", "event_id": "e1", "session": session}
        await live.send(start)
        started = await recv(live)
        assert (started["type"], started["client_event_id"]) == ("session.started", "e1")
        assert started["session"]["status"] == "active"
        yield live


async def says(live: AsyncLiveConnection, audio: bytes, bytes_per_ms: int) -> None:
    step = 200 * bytes_per_ms
    for start in range(0, len(audio), step):
        chunk = base64.b64encode(audio[start : start + step]).decode()
        await live.send({"type": "session.input_audio.append", "audio": chunk})


def audio_of(events: list[dict[str, Any]]) -> list[bytes]:
    deltas = [e["delta"] for e in events if e["type"] == "session.output_audio.delta"]
    return [base64.b64decode(delta) for delta in deltas]


@pytest.mark.parametrize(
    ("name", "rate"), [("audio/pcm", 24000), ("audio/pcm", 16000), ("audio/pcmu", 8000)]
)
async def test_a_spoken_turn(name: str, rate: int) -> None:
    """Silence flows until the answer does, both transcripts lie on the grid, and the session closes with its usage."""
    wire = AudioFormat(name)
    async with run_server() as server:
        audio = {"format": {"type": name, "rate": rate}}
        async with calling(server, model="gpt-live-1", audio=audio) as live:
            events = await until(live, "session.output_audio.delta")
            await says(
                live,
                wire.from_pcm(tone(1.0, rate) + silence(3.0, rate)),
                rate * wire.sample_bytes // 1000,
            )
            events += await until(live, "session.output_transcript.delta")
            for _ in range(4):
                events += await until(live, "session.output_audio.delta")
            await live.send({"type": "session.close"})
            events += await until(live, "session.closed")
        await server.settled()
    frames = audio_of(events)
    assert {len(frame) for frame in frames} == {rate * wire.sample_bytes // 5}
    quiet = wire.from_pcm(bytes(2 * rate // 5))
    assert frames[0] == quiet
    loud = np.frombuffer(wire.to_pcm(b"".join(f for f in frames if f != quiet)), "<i2")
    assert np.abs(loud).max() > 2000
    heard = [e for e in events if e["type"] == "session.input_transcript.delta"]
    said = [e for e in events if e["type"] == "session.output_transcript.delta"]
    assert heard[0]["delta"] == "speech lasting one point zero seconds"
    assert all(e["start_ms"] % 200 == e["end_ms"] % 200 == 0 for e in heard + said)
    assert all(e["start_ms"] < e["end_ms"] for e in heard + said)
    closed = events[-1]
    assert (closed["reason"], closed["session"]["audio"]["format"]["rate"]) == (
        "close_requested",
        rate,
    )
    assert closed["usage"]["seconds"] >= 1


async def test_what_comes_before_the_start_or_from_another_protocol_is_explained() -> None:
    """Each mistake is one error that names the client's event; the session goes on."""
    async with run_server() as server:
        async with (
            AsyncOpenAI(api_key="none", base_url=f"{server.http}/v1") as client,
            client.live.connect() as live,
        ):
            await live.send({"type": "session.close", "event_id": "c1"})
            assert (await recv(live))["error"]["code"] == "session_not_started"
            foreign: Any = {"type": "conversation.item.create", "event_id": "c2"}
            await live.send(foreign)
            error = (await recv(live))["error"]
            assert error["message"].startswith(
                "Invalid value: 'conversation.item.create'. Supported"
            )
            assert error["client_event_id"] == "c2"
        await server.settled()


async def test_a_live_session_speaks_commentary_unasked() -> None:
    """The client's text is acknowledged on the timeline, and voiced."""
    async with run_server() as server:
        async with calling(server, model="any", instructions="Be brief.") as live:
            await live.send(
                {
                    "type": "session.commentary.append",
                    "content": "The parcel has come.",
                    "delegation_id": None,
                }
            )
            events = await until(live, "session.commentary.appended")
            events = await until(live, "session.output_transcript.delta")
            assert events[-1]["delta"].strip()
        await server.settled()
