"""openai-agents (Python): `RealtimeRunner`, an agent with a tool, and the history that the session keeps."""

import asyncio
from typing import Any

import common
from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner

calls: list[dict[str, Any]] = []


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    calls.append({"name": "get_weather", "arguments": f'{{"city": "{city}"}}'})
    return common.WEATHER


async def connect(base_url: str, key: str) -> Any:
    url = base_url.replace("http", "ws", 1) + "/realtime?model=gpt-realtime"
    # region: how to point it here
    # url = "ws://127.0.0.1:8000/v1/realtime?model=gpt-realtime"
    agent = RealtimeAgent(name="Metronome", instructions="Be brief.", tools=[get_weather])
    return await RealtimeRunner(agent).run(model_config={"url": url, "api_key": key})
    # endregion


class Talk:
    """One session, its events sorted into what a caller notices."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.history: list[Any] = []
        self.sound = common.Sound()
        self.words = ""
        self.item_words = ""
        self.interruptions = 0
        self.ends = 0  # answers that have ended
        self.changed = asyncio.Event()

    async def listen(self) -> None:
        async for event in self.session:
            if event.type == "audio":
                self.sound.add(event.audio.data)
            elif event.type == "audio_interrupted":
                self.interruptions += 1
            elif event.type == "history_updated":
                self.history = event.history
            elif event.type == "history_added":
                self.history = [*self.history, event.item]
            elif event.type == "error":
                raise AssertionError(event.error)
            elif event.type == "raw_model_event":
                self._listen_closer(event.data)
            self.changed.set()

    def _listen_closer(self, event: Any) -> None:
        if event.type == "turn_started":
            self.begin()
        elif event.type == "transcript_delta":
            self.words += event.delta
        elif event.type == "turn_ended":
            self.ends += 1
        elif event.type == "raw_server_event" and event.data["type"] == "response.output_item.done":
            item = event.data["item"]
            if item["type"] == "message":
                self.item_words = item["content"][0]["transcript"]

    async def until(self, condition: Any) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    def begin(self) -> int:
        """A new answer begins or is expected; how many have ended before it."""
        self.sound, self.words, self.item_words = common.Sound(), "", ""
        return self.ends

    async def answer(self, ended: int) -> dict[str, Any]:
        """What was noticed of the answer that followed the `ended`-th."""
        await self.until(lambda: self.ends > ended)
        return common.turn(self.sound, self.words, self.item_words)

    def told(self) -> list[list[str]]:
        """The history as the client has it."""
        told = []
        for item in self.history:
            if item.type == "message":
                part = item.content[0]
                told.append([item.role, getattr(part, "text", None) or part.transcript or ""])
        return told


async def converse(talk: Talk, speech: bytes, report: dict[str, Any]) -> None:
    if not common.ONLY_SPOKEN:
        ended = talk.begin()
        await talk.session.send_message(common.TYPED)
        report["typed"] = await talk.answer(ended)

    ended = talk.begin()
    await common.speak(talk.session.send_audio, speech)
    spoken = await talk.answer(ended)
    await talk.until(lambda: talk.told()[-2][1])
    report["spoken"] = {**spoken, "heard": talk.told()[-2][1]}
    if common.ONLY_SPOKEN:
        return

    ended = talk.begin()
    await talk.session.send_message(common.ASK_TOOL)
    report["tool"] = {**await talk.answer(ended + 1), "calls": calls}

    report["barge_in"] = await barge_in(talk, speech)
    await talk.until(lambda: all(words for _, words in talk.told()))
    report["history"] = talk.told()


async def barge_in(talk: Talk, speech: bytes) -> dict[str, Any]:
    for _ in range(common.TRIES):
        talk.begin()
        interruptions, ended = talk.interruptions, talk.ends
        await talk.session.send_message(common.LONG)
        await talk.until(lambda: talk.sound.pcm)
        await common.speak(talk.session.send_audio, speech)
        await talk.until(lambda before=ended: talk.ends > before)
        answer = await talk.answer(ended + 1)
        if talk.interruptions > interruptions:
            return {**answer, "interrupted": True}
    return {"interrupted": False}


async def session(base_url: str, key: str, talk_about: Any) -> None:
    async with await connect(base_url, key) as connected, asyncio.TaskGroup() as group:
        talk = Talk(connected)
        listening = group.create_task(talk.listen())
        await talk_about(talk)
        listening.cancel()


async def program(base_url: str, key: str, speech: bytes, report: dict[str, Any]) -> None:
    async def first(talk: Talk) -> None:
        await converse(talk, speech, report)

    async def second(talk: Talk) -> None:
        ended = talk.begin()
        await talk.session.send_message(common.TYPED)
        report["second"] = await talk.answer(ended)

    await session(base_url, key, first)
    if not common.ONLY_SPOKEN:
        await session(base_url, key, second)


if __name__ == "__main__":
    common.run("openai-agents (Python)", "openai-agents", program)
