"""The microphone keeps real time, whatever sending costs."""

import asyncio

import numpy as np
import pytest

from bench.audio import CHUNK_BYTES, SILENT_CHUNK
from bench.microphone import Microphone
from engine.clock import LoopClock
from engine.virtual_time import run_virtual

LOUD = np.full(CHUNK_BYTES // 2, 9000, "<i2").tobytes()


def test_chunks_leave_every_20_ms_even_if_sending_is_slow() -> None:
    """Delays do not add up: the grid is absolute."""

    async def scene() -> list[float]:
        clock, sent = LoopClock(), []

        async def send(chunk: bytes) -> None:
            sent.append(clock.now())
            await asyncio.sleep(0.015)

        microphone = asyncio.create_task(Microphone(clock, send).run())
        await asyncio.sleep(1.995)
        microphone.cancel()
        return sent

    instants = run_virtual(scene())
    assert instants == pytest.approx([k * 0.02 for k in range(100)])


def test_speech_is_sent_between_silences_and_its_end_is_known() -> None:
    """The last voiced chunk, not the trailing silence, ends the speech."""

    async def scene() -> tuple[list[bytes], float, float]:
        clock, sent = LoopClock(), []

        async def send(chunk: bytes) -> None:
            sent.append(chunk)

        microphone = Microphone(clock, send)
        running = asyncio.create_task(microphone.run())
        await asyncio.sleep(0.05)
        spoken = await microphone.say(LOUD * 5 + SILENT_CHUNK * 10)
        await asyncio.sleep(0.05)
        running.cancel()
        return sent, spoken.ended_at, spoken.sent_at

    sent, ended_at, sent_at = run_virtual(scene())
    first = sent.index(LOUD)
    assert set(sent[:first]) == {SILENT_CHUNK}
    assert sent[first : first + 5] == [LOUD] * 5
    assert LOUD not in sent[first + 5 :]
    assert sent_at - ended_at == pytest.approx(0.2)
