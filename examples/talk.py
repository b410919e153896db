"""Talk to a running server with the stock `openai` client: typed, or spoken from a WAV file.

    python examples/talk.py "What is the capital of France?"
    python examples/talk.py --wav bench/clips/goforward.wav --save reply.wav

Needs: pip install openai soundfile soxr. Works against any server of the OpenAI Realtime API.
"""

import argparse
import asyncio
import base64
import sys

import numpy as np
import soundfile
import soxr
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection

RATE = 24_000  # Hz, mono pcm16
CHUNK_S = 0.02


async def type_in(connection: AsyncRealtimeConnection, text: str) -> None:
    """A typed turn: add the message, ask for an answer."""
    content = [{"type": "input_text", "text": text}]
    await connection.conversation.item.create(
        item={"type": "message", "role": "user", "content": content}
    )
    await connection.response.create()


async def say(connection: AsyncRealtimeConnection, wav: str) -> None:
    """A spoken turn, as a microphone would send it. The server hears by the silence that it is over."""
    samples, rate = soundfile.read(wav, dtype="float32", always_2d=True)
    speech = soxr.resample(samples[:, 0], rate, RATE)
    speech = np.concatenate([speech, np.zeros(RATE, np.float32)])
    pcm = (speech.clip(-1, 1) * 32767).astype("<i2").tobytes()
    size = int(RATE * CHUNK_S) * 2
    for start in range(0, len(pcm), size):
        audio = base64.b64encode(pcm[start : start + size]).decode()
        await connection.input_audio_buffer.append(audio=audio)
        await asyncio.sleep(CHUNK_S)


async def listen(connection: AsyncRealtimeConnection) -> bytes:
    """Print what happens until the answer is complete; its audio."""
    pcm = b""
    async for event in connection:
        if event.type == "conversation.item.input_audio_transcription.completed":
            print(f"you: {event.transcript}")
        elif event.type == "response.output_audio.delta":
            pcm += base64.b64decode(event.delta)
        elif event.type == "response.output_audio_transcript.done":
            print(f"answer: {event.transcript}")
        elif event.type == "error":
            sys.exit(f"error: {event.error.message}")
        elif event.type == "response.done" and event.response.status != "cancelled":
            break
    return pcm


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="?", help="what to ask")
    parser.add_argument("--wav", help="what to say, instead of typing")
    parser.add_argument("--save", metavar="FILE", help="store the answer as a WAV file")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--key", default="any", help="API key (any, unless the server has keys)")
    parser.add_argument("--model", default="embedded")
    options = parser.parse_args()
    if (options.text is None) == (options.wav is None):
        parser.error("give a text or --wav FILE")

    client = AsyncOpenAI(base_url=options.url, api_key=options.key)
    async with client, client.realtime.connect(model=options.model) as connection:
        transcription = {"model": "whisper-1"}  # any name: the server has one transcriber
        await connection.session.update(
            session={"type": "realtime", "audio": {"input": {"transcription": transcription}}}
        )
        async with asyncio.TaskGroup() as tasks:
            if options.text is not None:
                tasks.create_task(type_in(connection, options.text))
            else:
                tasks.create_task(say(connection, options.wav))
            pcm = await listen(connection)
    if options.save:
        soundfile.write(options.save, np.frombuffer(pcm, "<i2"), RATE, subtype="PCM_16")
        print(f"saved: {options.save}")


if __name__ == "__main__":
    asyncio.run(main())
