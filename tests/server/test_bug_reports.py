"""Public bug reports about other Realtime servers, with the right answer, on real sockets with real audio.

Those that need no engine are in tests/protocol/test_bug_reports.py.
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.server_process import run_server
from support.sim_engine import silence, tone
from support.validate_events import validated
from support.wire import ask, enter, event
from websockets.asyncio.client import ClientConnection, connect

pytestmark = [pytest.mark.socket, pytest.mark.slow]

PUSH_TO_TALK: dict[str, Any] = {"audio": {"input": {"turn_detection": None}}}


class Call:
    """One call: what is sent, and every event that came, each valid."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.seen: list[dict[str, Any]] = []

    async def sends(self, kind: str, **fields: Any) -> None:
        await self.socket.send(event(kind, **fields))

    async def updates(self, **session: Any) -> dict[str, Any]:
        await self.sends("session.update", session={"type": "realtime", **session})
        updated: dict[str, Any] = (await self.until("session.updated"))[-1]["session"]
        return updated

    async def says(self, pcm: bytes) -> None:
        """Speak, as fast as the socket takes it."""
        for start in range(0, len(pcm), 9_600):
            audio = base64.b64encode(pcm[start : start + 9_600]).decode()
            await self.sends("input_audio_buffer.append", audio=audio)

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """The events up to the next of this type."""
        found: list[dict[str, Any]] = []
        while not found or found[-1]["type"] != kind:
            async with asyncio.timeout(10):
                found.append(validated(str(await self.socket.recv())))
        self.seen += found
        return found

    async def answered(self) -> dict[str, Any]:
        """The events of the next response to end; it must be whole and audible."""
        events = await self.until("response.done")
        response: dict[str, Any] = events[-1]["response"]
        assert response["status"] == "completed"
        assert audio_of(events)
        return response


def audio_of(events: list[dict[str, Any]]) -> bytes:
    deltas = [e["delta"] for e in events if e["type"] == "response.output_audio.delta"]
    return b"".join(base64.b64decode(delta) for delta in deltas)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def errors(events: list[dict[str, Any]]) -> list[str]:
    return [event["error"]["code"] for event in events if event["type"] == "error"]


def on_a_call(talk: Callable[[Call], Awaitable[None]], **settings: Any) -> None:
    """Hold a call with a server of its own; nothing is left of it afterwards."""

    async def main() -> None:
        async with run_server(**settings) as server:
            socket = await enter(server.ws)
            await talk(Call(socket))
            await socket.close()
            await server.settled()

    asyncio.run(main())


def test_truncating_what_was_never_heard() -> None:
    """livekit/agents 6157: interrupted before its first audio, an answer is truncated at 0, and that is no error."""

    async def talk(call: Call) -> None:
        await call.socket.send(ask())
        item = (await call.until("response.output_item.added"))[-1]["item"]["id"]
        await call.sends("response.cancel")
        await call.sends(
            "conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=0
        )
        events = await call.until("conversation.item.truncated")
        assert events[-1]["audio_end_ms"] == 0
        await call.socket.send(ask())
        await call.answered()
        assert errors(call.seen) == []

    on_a_call(talk, engine__sim__fixed_s=0.05)


def test_truncating_past_the_end_and_going_on() -> None:
    """pipecat 2106 and 3677, openai-agents-python 4122: clients count more than there is; the next answer sounds."""

    async def talk(call: Call) -> None:
        await call.socket.send(event("response.create"))
        item = (await call.answered())["output"][0]["id"]
        for _ in range(2):
            await call.sends(
                "conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=900_000
            )
            assert (await call.until("conversation.item.truncated"))[-1]["audio_end_ms"] < 900_000
        await call.socket.send(event("response.create"))
        await call.answered()
        assert errors(call.seen) == []

    on_a_call(talk)


def test_every_spoken_turn_is_committed() -> None:
    """stdapi.ai 274: found by the server's VAD, a turn is committed and becomes an item, transcription or not."""

    async def talk(call: Call) -> None:
        assert (await call.updates())["audio"]["input"]["transcription"] is None
        await call.says(tone(1.0) + silence(1.0))
        assert kinds(await call.until("response.created"))[-6:] == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
            "response.created",
        ]
        await call.answered()

    on_a_call(talk)


def test_a_commit_in_the_middle_of_speech() -> None:
    """speaches 567, LocalAI 5879: the client commits while the VAD hears speech; both go on, with a new item."""

    async def talk(call: Call) -> None:
        await call.says(tone(1.0))
        first = (await call.until("input_audio_buffer.speech_started"))[-1]["item_id"]
        await call.sends("input_audio_buffer.commit")
        assert (await call.until("input_audio_buffer.committed"))[-1]["item_id"] == first
        await call.says(silence(1.0) + tone(1.0) + silence(1.0))
        started = (await call.until("input_audio_buffer.speech_started"))[-1]["item_id"]
        committed = (await call.until("input_audio_buffer.committed"))[-1]["item_id"]
        assert first not in (started, committed)
        assert started == committed
        await call.answered()
        assert errors(call.seen) == []

    on_a_call(talk)


def test_asking_twice_leaves_the_first_answer_alone() -> None:
    """pipecat 1781, openai_realtime_client 3: a second response.create is refused by name; the first goes on."""

    async def talk(call: Call) -> None:
        await call.sends("response.create")
        first = (await call.until("response.created"))[-1]["response"]["id"]
        await call.sends("response.create", event_id="again")
        response = await call.answered()
        assert response["id"] == first
        assert errors(call.seen) == ["conversation_already_has_active_response"]
        (refused,) = [e["error"] for e in call.seen if e["type"] == "error"]
        assert (refused["event_id"], first in refused["message"]) == ("again", True)

    on_a_call(talk, engine__sim__fixed_s=0.02)


def test_an_error_of_something_else_does_not_undo_an_update() -> None:
    """vllm-omni PR 6170: what session.updated says is in force, whatever else goes wrong around it."""

    async def talk(call: Call) -> None:
        await call.sends("input_audio_buffer.append", audio="*")
        await call.sends("session.update", session={"type": "realtime", **PUSH_TO_TALK})
        await call.sends("conversation.item.delete", item_id="none")
        await call.sends("session.update", session={"type": "realtime", "output_modalities": 7})
        await call.says(tone(1.0) + silence(1.0))
        await call.sends("input_audio_buffer.commit")
        events = await call.until("input_audio_buffer.committed")
        (updated,) = [e["session"] for e in events if e["type"] == "session.updated"]
        assert updated["audio"]["input"]["turn_detection"] is None
        assert "input_audio_buffer.speech_started" not in kinds(events)
        assert len(errors(events)) == 3

    on_a_call(talk)


def test_turn_detection_of_null_is_told_and_kept() -> None:
    """livekit/agents 1650: null switches VAD off, is echoed as null, and later updates do not bring it back."""

    async def talk(call: Call) -> None:
        for session in (PUSH_TO_TALK, {"instructions": "Be brief."}, {"tools": []}):
            echoed = await call.updates(**session)
            assert echoed["audio"]["input"]["turn_detection"] is None

    on_a_call(talk)


def test_updates_before_session_created_was_read() -> None:
    """speaches PR 339: a client that configures at once still sees session.created first, then its updates in order."""

    async def main() -> None:
        async with run_server() as server:
            async with connect(server.ws, compression=None) as socket:
                call = Call(socket)
                for text in ("One.", "Two.", "Three."):
                    session: dict[str, Any] = {"type": "realtime", "instructions": text}
                    await call.sends("session.update", session=session)
                for _ in range(3):
                    await call.until("session.updated")
            assert kinds(call.seen) == ["session.created"] + ["session.updated"] * 3
            told = [e["session"]["instructions"] for e in call.seen[1:]]
            assert told == ["One.", "Two.", "Three."]
            await server.settled()

    asyncio.run(main())


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_tool_choice_without_tools(choice: str) -> None:
    """livekit/agents 3114, speaches PR 339: clients send `tools: []` and a choice; they are answered in words."""

    async def talk(call: Call) -> None:
        await call.updates(tools=[], tool_choice=choice)
        await call.socket.send(ask())
        response = await call.answered()
        assert [item["type"] for item in response["output"]] == ["message"]
        assert errors(call.seen) == []

    on_a_call(talk)


def test_a_new_call_hears_nothing_of_the_last() -> None:
    """speech-to-speech PR 226: the caller left in the middle of an answer; the next one starts with silence."""

    async def main() -> None:
        async with run_server(engine__sim__fixed_s=0.02) as server:
            first = Call(await enter(server.ws))
            await first.socket.send(ask())
            await first.until("response.output_audio.delta")
            first.socket.transport.abort()
            second = Call(await enter(server.ws))
            await second.updates()
            assert kinds(second.seen) == ["session.updated"]
            await second.socket.send(ask())
            await second.answered()
            ids = {e["response_id"] for e in second.seen if "response_id" in e}
            assert len(ids) == 1
            await second.socket.close()
            await server.settled()

    asyncio.run(main())


def test_words_come_ahead_of_their_sound() -> None:
    """openai-realtime-embedded 25: transcripts that come seconds after the audio are of no use to subtitles."""

    async def talk(call: Call) -> None:
        await call.socket.send(ask())
        events = await call.until("response.done")
        order = [k for k in kinds(events) if k.endswith((".delta", "audio.done"))]
        assert order[0] == "response.output_audio_transcript.delta"
        # OpenAI-realtimeapi-dotnetsdk 73: no audio may follow the event that says that it is whole.
        assert order.index("response.output_audio.done") > max(
            at for at, kind in enumerate(order) if kind == "response.output_audio.delta"
        )

    on_a_call(talk)
