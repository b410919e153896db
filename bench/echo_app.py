"""The floor that the front end is measured against: the same bytes through uvicorn, nothing else.

Raw ASGI on websockets-sansio. Every append is parsed with orjson, its audio decoded with validation
and encoded again with pybase64, and sent back as a delta with the fields a real one has. There is
no session, no queue, no metric. Run as `python -m bench.echo_app --port N`.
"""

import argparse
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson
import pybase64
import uvicorn

Message = MutableMapping[str, Any]

GREETING = '{"type":"session.created","event_id":"event_0","session":{}}'
_IDS = {
    "type": "response.output_audio.delta",
    "event_id": "event_000000000000000000000",
    "response_id": "resp_000000000000000000000",
    "item_id": "item_000000000000000000000",
    "output_index": 0,
    "content_index": 0,
}


async def app(
    scope: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    """Answers every append on any WebSocket path with its own audio, and any GET with 200."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})
        return
    await receive()  # websocket.connect
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": GREETING})
    while (message := await receive())["type"] == "websocket.receive":
        pcm = pybase64.b64decode(orjson.loads(message["text"])["audio"], validate=True)
        delta = pybase64.b64encode(pcm).decode("ascii")
        text = orjson.dumps({**_IDS, "delta": delta}).decode("utf-8")
        await send({"type": "websocket.send", "text": text})


def main() -> None:
    """Serve `app` on loopback until told to stop."""
    parser = argparse.ArgumentParser(description="Echo server of the front-end benchmark.")
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=port,
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        loop="uvloop",
        lifespan="off",
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main()
