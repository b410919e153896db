"""What all Python client programs share: the caller's voice, an ear for the answers, and the report they print.

A program is called `PROGRAM BASE_URL API_KEY SPEECH_FILE [spoken] [live]` and runs one stock client through the same
conversation, or with "spoken" through its spoken question alone; with either word at the pace of life:

    typed     a typed question, answered aloud
    spoken    a spoken question, its end found by the server
    tool      a question that makes the server call a function, and the answer to its result
    barge_in  an answer that the caller interrupts, and the answer to the interruption
    history   both sides of all that, in order, as the client itself remembers it
    second    a new session after the first

The last line it prints is the report, JSON. tests/clients/test_clients.py says what must be in it.
"""

import array
import asyncio
import importlib.metadata
import json
import math
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

RATE = 24_000  # Hz, pcm16 mono
CHUNK_MS = 50
TIMEOUT_S = 300  # for a whole program; answers come at the pace of life, and the longest take 100 s

ONLY_SPOKEN = "spoken" in sys.argv[4:]
PACE = (
    1 if sys.argv[4:] else 4
)  # times as fast as life; clients that find turns themselves use timers

TRIES = 8  # questions until an answer is long enough to be interrupted

TYPED = "Tell me something about rivers."
ASK_TOOL = "Please use get_weather for Paris."
LONG = "Tell me a long story, please."
WEATHER = "It is foggy in Paris."

WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


class Sound:
    """Audio as it arrives."""

    def __init__(self) -> None:
        self.pcm = bytearray()

    def add(self, pcm: bytes) -> None:
        self.pcm += pcm

    @property
    def seconds(self) -> float:
        return len(self.pcm) / 2 / RATE

    @property
    def loudness(self) -> float:
        """Root mean square, 0–1."""
        samples = array.array("h", bytes(self.pcm[: len(self.pcm) // 2 * 2]))
        if not samples:
            return 0.0
        return math.sqrt(sum(s * s for s in samples[::7]) / len(samples[::7])) / 32_768


def turn(sound: Sound, words: str, item_words: str, **more: Any) -> dict[str, Any]:
    """One answer as its caller noticed it: how it sounded, what was streamed and what the item says."""
    return {
        "audio_s": round(sound.seconds, 2),
        "loudness": round(sound.loudness, 3),
        "words": words,
        "item_words": item_words,
        **more,
    }


async def speak(send: Callable[[bytes], Awaitable[None]], pcm: bytes) -> None:
    """Say something into the microphone and then be silent for a second."""
    size = RATE * CHUNK_MS // 1000 * 2
    for start in range(0, len(pcm) + RATE * 2, size):
        await send(pcm[start : start + size].ljust(size, b"\0"))
        await asyncio.sleep(CHUNK_MS / 1000 / PACE)


def run(
    client: str, package: str, program: Callable[[str, str, bytes, dict[str, Any]], Awaitable[None]]
) -> None:
    """Run a program and print its report, whole or as far as it came."""
    base_url, key, speech_file = sys.argv[1:4]
    report: dict[str, Any] = {"client": client, "version": importlib.metadata.version(package)}
    try:
        asyncio.run(_limited(program(base_url, key, Path(speech_file).read_bytes(), report)))
    finally:
        sys.stdout.write(f"{json.dumps(report)}\n")


async def _limited(program: Awaitable[None]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        await program
