"""A caller on the stock `openai` client: speaks in real time, listens to each answer to its end."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection

from bench.audio import WIRE_RATE, Utterance
from bench.microphone import Microphone
from bench.turns import Turn
from engine.clock import Clock, LoopClock

_ANSWER_S = 30.0  # how long a caller waits for an answer to be complete


class Conversation:
    """One call. `say` one utterance at a time."""

    def __init__(self, connection: AsyncRealtimeConnection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._microphone = Microphone(clock, self._append)
        self._turn: Turn | None = None  # None before the first utterance
        self._heard_news = asyncio.Event()  # an event arrived

    async def _append(self, chunk: bytes) -> None:
        audio = base64.b64encode(chunk).decode("ascii")
        await self._connection.input_audio_buffer.append(audio=audio)

    async def configure(self) -> None:
        """Ask for transcripts of what is said and for the server to decide when a turn is over."""
        pcm = {"type": "audio/pcm", "rate": WIRE_RATE}
        await self._connection.session.update(
            session={
                "type": "realtime",
                "output_modalities": ["audio"],
                "audio": {
                    "input": {
                        "format": pcm,  # type: ignore[typeddict-item]
                        "transcription": {"model": "whisper-1", "language": "en"},
                        "turn_detection": {"type": "server_vad"},
                    },
                    "output": {"format": pcm},  # type: ignore[typeddict-item]
                },
            }
        )

    async def run_microphone(self) -> None:
        await self._microphone.run()

    async def run_ear(self) -> None:
        """Take in the server's events until the call ends."""
        async for event in self._connection:
            if self._turn is not None:
                self._turn.take(event, self._clock.now())
                self._heard_news.set()

    async def say(self, utterance: Utterance) -> Turn:
        """Say it, wait for the answer, and listen to it to its end.

        A turn without an answer comes back after a while with a problem in it.
        """
        turn = self._turn = Turn(utterance)
        spoken = await self._microphone.say(utterance.pcm)
        turn.spoken_at, turn.sent_at = spoken.ended_at, spoken.sent_at
        try:
            async with asyncio.timeout(_ANSWER_S):
                while not turn.is_complete:
                    self._heard_news.clear()
                    await self._heard_news.wait()
        except TimeoutError:
            turn.problems.append(f"no complete answer within {_ANSWER_S:.0f} s")
        if turn.first_audio_at is not None:
            await self._clock.sleep_until(turn.first_audio_at + turn.answer_s)
        return turn


@asynccontextmanager
async def call(port: int, model: str) -> AsyncIterator[Conversation]:
    """A call to the server on loopback with its microphone open.

    Raises:
        ExceptionGroup: the connection was lost.
    """
    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0)
    async with client, client.realtime.connect(model=model) as connection:
        conversation = Conversation(connection, LoopClock())
        async with asyncio.TaskGroup() as tasks:
            await conversation.configure()
            microphone = tasks.create_task(conversation.run_microphone())
            ear = tasks.create_task(conversation.run_ear())
            yield conversation
            microphone.cancel()
            ear.cancel()
