"""openai-python's `client.live`: the Live protocol, raw. The microphone is open all the time, and so is the speaker.

The protocol knows neither typed turns nor items, and tools belong to a second model: what is left is the spoken turn,
the barge-in, and the transcripts of both sides in the order in which they come.
"""

import asyncio
import base64
from typing import Any

import common
from openai import AsyncOpenAI
from openai.types.live import ServerEvent

SILENCE_S = 1.0  # of silence that end an answer, in output audio
CHUNK_S = common.CHUNK_MS / 1000


def connect(base_url: str, key: str) -> Any:
    # region: how to point it here
    client = AsyncOpenAI(base_url=base_url, api_key=key)  # http://127.0.0.1:8000/v1
    return client.live.connect()
    # endregion


class Talk:
    """One session."""

    def __init__(self, live: Any) -> None:
        self._live = live
        self._unsaid = bytearray()  # what the caller is about to say
        self._said_all = asyncio.Event()
        self._changed = asyncio.Event()
        self.told: list[list[str]] = []  # who, what
        self.sound = common.Sound()  # of the answer that was last heard
        self.quiet_s = SILENCE_S  # of output since it was last heard

    async def listen(self) -> None:
        async for event in self._live:
            self._notice(event)
            self._changed.set()

    def _notice(self, event: ServerEvent) -> None:
        if event.type == "session.output_audio.delta":
            pcm = base64.b64decode(event.delta)
            if any(pcm):
                self.quiet_s = 0.0
                self.sound.add(pcm)
            else:
                self.quiet_s += len(pcm) / 2 / common.RATE
        elif event.type == "session.input_transcript.delta":
            self._tell("user", event.delta)
        elif event.type == "session.output_transcript.delta":
            self._tell("assistant", event.delta)
        elif event.type == "error":
            raise AssertionError(event.error)

    def _tell(self, who: str, delta: str) -> None:
        if not self.told or self.told[-1][0] != who:
            self.told.append([who, ""])
            if who == "assistant":
                self.sound = common.Sound()
        self.told[-1][1] += delta
        if who == "assistant":
            self.quiet_s = 0.0  # its sound comes behind it

    async def hold_microphone(self) -> None:
        """What the caller says, and silence else: at the pace of life, for the server's clock is this audio."""
        size = common.RATE * common.CHUNK_MS // 1000 * 2
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            chunk = bytes(self._unsaid[:size]).ljust(size, b"\0")
            del self._unsaid[:size]
            audio = base64.b64encode(chunk).decode()
            await self._live.send({"type": "session.input_audio.append", "audio": audio})
            if not self._unsaid:
                self._said_all.set()
            due += CHUNK_S
            await asyncio.sleep(due - loop.time())

    async def until(self, condition: Any) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def says(self, speech: bytes) -> None:
        self._unsaid += speech
        self._said_all.clear()
        await self._said_all.wait()

    async def answer(self, users: int) -> dict[str, Any]:
        """The answer to what the caller said, the `users`-th time."""
        await self.until(lambda: len(self.told) == 2 * users and self.quiet_s >= SILENCE_S)
        return common.turn(self.sound, self.told[-1][1], self.told[-1][1])


async def converse(talk: Talk, speech: bytes, report: dict[str, Any]) -> None:
    await talk.says(speech)
    report["spoken"] = {**await talk.answer(1), "heard": talk.told[0][1]}
    if common.ONLY_SPOKEN:
        return

    await talk.says(speech)
    await talk.until(lambda: not talk.quiet_s)
    await talk.says(speech)  # the answer falls silent while the caller speaks
    was_cut_off = talk.quiet_s > 0 and len(talk.told) == 4
    report["barge_in"] = {**await talk.answer(3), "interrupted": was_cut_off}
    report["history"] = talk.told


async def session(base_url: str, key: str, talk_about: Any) -> None:
    start = {"model": "gpt-live-1", "instructions": "Be brief."}
    async with connect(base_url, key) as live, asyncio.TaskGroup() as group:
        await live.send({"type": "session.start", "session": start})
        while (await live.recv()).type != "session.started":
            pass
        talk = Talk(live)
        tasks = [group.create_task(talk.listen()), group.create_task(talk.hold_microphone())]
        await talk_about(talk)
        for task in tasks:
            task.cancel()


async def program(base_url: str, key: str, speech: bytes, report: dict[str, Any]) -> None:
    async def first(talk: Talk) -> None:
        await converse(talk, speech, report)

    async def second(talk: Talk) -> None:
        await talk.says(speech)
        report["second"] = await talk.answer(1)

    await session(base_url, key, first)
    if not common.ONLY_SPOKEN:
        await session(base_url, key, second)


if __name__ == "__main__":
    common.run("openai-python (Live)", "openai", program)
