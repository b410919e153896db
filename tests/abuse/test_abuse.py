"""The abuse list, events: whatever a client sends is answered with the right error event, its session lives, and
neither a neighbour nor the KV pool notices.

Peers that stall, vanish or swarm are in test_peers.py, servers that cannot start in test_start.py, and signals in
tests/server/test_drain.py.
"""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.server_process import Running, run_server
from support.wire import append, ask, enter, event, until
from websockets.asyncio.client import ClientConnection

pytestmark = [pytest.mark.socket, pytest.mark.slow]

SET_SENSE = {"type": "realtime", "output_modalities": ["smell"]}
SET_RATE = {
    "type": "realtime",
    "audio": {"input": {"format": {"type": "audio/pcm", "rate": 16_000}}},
}

# (what it is, the text, the code of the one error event that must follow)
MISTAKES: list[tuple[str, str, str]] = [
    ("no JSON", "hello", "invalid_json"),
    ("half JSON", '{"type": "session.upd', "invalid_json"),
    ("empty text", "", "invalid_json"),
    ("depth", '{"type":' + "[" * 10_000 + "]" * 10_000 + "}", "invalid_json"),
    ("NaN", '{"type": NaN}', "invalid_json"),
    ("half a surrogate", '{"type": "\\ud800"}', "invalid_json"),
    ("no object", "[1, 2]", "invalid_type"),
    ("a bare string", '"session.update"', "invalid_type"),
    ("no type", "{}", "missing_required_parameter"),
    ("type of another type", '{"type": 7}', "invalid_value"),
    ("unknown type", event("session.destroy"), "invalid_value"),
    ("beta type", event("transcription_session.update"), "invalid_value"),
    ("server event", event("response.done"), "invalid_value"),
    ("append without audio", event("input_audio_buffer.append"), "missing_required_parameter"),
    ("audio of another type", event("input_audio_buffer.append", audio=5), "invalid_type"),
    ("no base64", event("input_audio_buffer.append", audio="%%%%"), "invalid_value"),
    ("base64 with a gap", event("input_audio_buffer.append", audio="AA AA"), "invalid_value"),
    ("URL alphabet", event("input_audio_buffer.append", audio="-_-_"), "invalid_value"),
    ("bad padding", event("input_audio_buffer.append", audio="AAA"), "invalid_value"),
    ("odd bytes", event("input_audio_buffer.append", audio="AAAA"), "invalid_value"),
    ("wrong rate", event("session.update", session=SET_RATE), "invalid_value"),
    ("commit of nothing", event("input_audio_buffer.commit"), "input_audio_buffer_commit_empty"),
    ("cancel of nothing", event("response.cancel"), "response_cancel_not_active"),
    (
        "truncate of nothing",
        event("conversation.item.truncate", item_id="no", content_index=0, audio_end_ms=1),
        "item_truncate_invalid_item_id",
    ),
    (
        "retrieve of nothing",
        event("conversation.item.retrieve", item_id="no"),
        "item_retrieve_invalid_item_id",
    ),
    (
        "modality",
        event("session.update", session=SET_SENSE),
        "invalid_value",
    ),
]

# Not mistakes, or none that a client should be troubled with.
HARMLESS: list[tuple[str, str]] = [
    ("nothing appended", event("input_audio_buffer.append", audio="")),
    ("unknown key", event("input_audio_buffer.clear", colour="red")),
    ("clear of nothing", event("input_audio_buffer.clear")),
    ("playback clear", event("output_audio_buffer.clear")),
]


def _against(check: Callable[[Running, ClientConnection], Awaitable[None]], **more: Any) -> None:
    """Run `check` on a call with a neighbour beside it; the neighbour is answered, and nothing leaks."""

    async def main() -> None:
        async with run_server(**more) as server:
            neighbour, socket = await enter(server.ws), await enter(server.ws)
            await check(server, socket)
            await neighbour.send(ask())
            done = await until(neighbour, "response.done")
            assert done["response"]["status"] == "completed"
            await socket.close()
            await neighbour.close()
            await server.settled()

    asyncio.run(main())


async def _lives(socket: ClientConnection) -> list[Any]:
    """Prove that the call goes on; the events up to the proof."""
    await socket.send(event("session.update", session={"type": "realtime", "instructions": "on"}))
    seen: list[Any] = []
    async for text in socket:
        seen.append(json.loads(text))
        if seen[-1]["type"] == "session.updated":
            return seen
    raise AssertionError(f"closed with {socket.close_code}")


def test_every_mistake_gets_its_error_event_and_the_session_lives() -> None:
    """Exactly one error event each, with the code that clients look for."""

    async def check(server: Running, socket: ClientConnection) -> None:
        for name, text, code in MISTAKES:
            await socket.send(text)
            errors = [e["error"]["code"] for e in await _lives(socket) if e["type"] == "error"]
            assert errors == [code], name

    _against(check)


def test_harmless_oddities_are_no_errors() -> None:
    """One client ends its call at any unknown error: be frugal."""

    async def check(server: Running, socket: ClientConnection) -> None:
        for name, text in HARMLESS:
            await socket.send(text)
            assert not [e for e in await _lives(socket) if e["type"] == "error"], name

    _against(check)


def test_an_error_names_the_event_it_is_about() -> None:
    """Clients correlate by event_id."""

    async def check(server: Running, socket: ClientConnection) -> None:
        await socket.send(event("response.cancel", event_id="mine_1"))
        assert (await until(socket, "error"))["error"]["event_id"] == "mine_1"

    _against(check)


def test_binary_frames_are_an_error_each_and_the_session_lives() -> None:
    """Audio in binary is what other servers do."""

    async def check(server: Running, socket: ClientConnection) -> None:
        for data in (b"", b"\x00\xff" * 1000, append().encode()):
            await socket.send(data)
            errors = [e for e in await _lives(socket) if e["type"] == "error"]
            assert [e["error"]["code"] for e in errors] == ["invalid_value"]

    _against(check)


def test_twenty_mebibytes_of_audio_in_one_append_are_refused_whole() -> None:
    """More than 15 MiB of audio is over the API's limit; more than the inbox holds is over ours."""

    async def check(server: Running, socket: ClientConnection) -> None:
        for size, code in (
            (15 * 2**20 + 2, "invalid_value"),
            (14 * 2**20, "input_audio_buffer_full"),
        ):
            audio = base64.b64encode(bytes(size)).decode()
            await socket.send(event("input_audio_buffer.append", audio=audio))
            errors = [e["error"]["code"] for e in await _lives(socket) if e["type"] == "error"]
            assert errors == [code]

    _against(check, engine__inbox_s=60.0)


def test_events_out_of_their_time_change_nothing() -> None:
    """A second response.create while one runs, and a cancel of one that is over."""

    async def check(server: Running, socket: ClientConnection) -> None:
        await socket.send(event("conversation.item.create", item=_said("first")))
        await socket.send(event("response.create"))
        created = await until(socket, "response.created")
        await socket.send(event("response.create"))
        error = (await until(socket, "error"))["error"]
        assert error["code"] == "conversation_already_has_active_response"
        done = await until(socket, "response.done")
        assert (done["response"]["id"], done["response"]["status"]) == (
            created["response"]["id"],
            "completed",
        )
        await socket.send(event("response.cancel", response_id=created["response"]["id"]))
        assert (await until(socket, "error"))["error"]["code"] == "response_cancel_not_active"
        await _lives(socket)

    _against(check, engine__sim__fixed_s=0.02)


def test_everything_before_the_first_event_is_read_is_still_served() -> None:
    """Clients send before session.created has come; nothing is lost and nothing overtakes it."""

    async def check(server: Running, socket: ClientConnection) -> None:
        import websockets

        eager = await websockets.connect(server.ws, compression=None)
        await eager.send(event("input_audio_buffer.clear"))
        first = json.loads(await eager.recv())["type"]
        assert first == "session.created"
        await until(eager, "input_audio_buffer.cleared")
        await eager.close()

    _against(check)


def test_ten_thousand_mistakes_in_a_row_are_ten_thousand_errors() -> None:
    """A flood of rubbish is answered one by one; the neighbour's reply is not affected."""

    async def check(server: Running, socket: ClientConnection) -> None:
        async def flood() -> None:
            for _ in range(10_000):
                await socket.send("{")

        async with asyncio.TaskGroup() as group:
            group.create_task(flood())
            for _ in range(10_000):
                assert json.loads(await socket.recv())["error"]["code"] == "invalid_json"

    _against(check)


def _said(text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}
