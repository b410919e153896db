"""livekit-plugins-openai: `AgentSession` with a `RealtimeModel`, its history, and sound devices of ours."""

import asyncio
import functools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import common
from livekit import rtc
from livekit.agents import Agent, AgentSession, function_tool
from livekit.agents.utils import http_context
from livekit.agents.voice import io
from livekit.plugins import openai

calls: list[dict[str, Any]] = []


@function_tool
async def get_weather(city: str) -> str:
    """The weather in a city."""
    calls.append({"name": "get_weather", "arguments": f'{{"city": "{city}"}}'})
    return common.WEATHER


def make_session(base_url: str, key: str) -> AgentSession[None]:
    # region: how to point it here
    # base_url = "http://127.0.0.1:8000/v1"
    model = openai.realtime.RealtimeModel(base_url=base_url, api_key=key, model="gpt-realtime")
    return AgentSession(llm=model, aec_warmup_duration=None)
    # endregion


class Microphone(io.AudioInput):
    """What the caller says."""

    def __init__(self) -> None:
        super().__init__(label="microphone")
        self._frames: asyncio.Queue[rtc.AudioFrame] = asyncio.Queue()

    async def push(self, pcm: bytes) -> None:
        await self._frames.put(rtc.AudioFrame(pcm, common.RATE, 1, len(pcm) // 2))

    async def __anext__(self) -> rtc.AudioFrame:
        return await self._frames.get()


class Speaker(io.AudioOutput):
    """Keeps what it is given; plays infinitely fast once an answer is whole."""

    def __init__(self, changed: asyncio.Event) -> None:
        capabilities = io.AudioOutputCapabilities(pause=False)
        super().__init__(label="speaker", capabilities=capabilities, sample_rate=common.RATE)
        self.sound = common.Sound()
        self._open = False  # an answer is being captured
        self._changed = changed

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        if not self._open:
            self._open = True
            self.on_playback_started(created_at=datetime.now(UTC).timestamp())
        self.sound.add(bytes(frame.data))
        self._changed.set()

    def flush(self) -> None:
        super().flush()
        self._finish(interrupted=False)

    def clear_buffer(self) -> None:
        self._finish(interrupted=True)

    def _finish(self, *, interrupted: bool) -> None:
        if self._open:
            self._open = False
            self.on_playback_finished(playback_position=self.sound.seconds, interrupted=interrupted)


class Screen(io.TextOutput):
    """Shows the words of the answer as they come."""

    def __init__(self) -> None:
        super().__init__(label="screen", next_in_chain=None)
        self.words = ""

    async def capture_text(self, text: str) -> None:
        self.words += text

    def flush(self) -> None:
        pass


class Talk:
    """One session."""

    def __init__(self, session: AgentSession[None]) -> None:
        self.session = session
        self.changed = asyncio.Event()
        self.microphone, self.speaker, self.screen = Microphone(), Speaker(self.changed), Screen()
        session.input.audio = self.microphone
        session.output.audio = self.speaker
        session.output.transcription = self.screen
        self.spontaneous: asyncio.Queue[Any] = asyncio.Queue()  # answers that speech brought about
        self._is_asked = False
        self.heard = ""
        self.errors: list[Any] = []
        session.on("speech_created", self._speech_created)
        session.on("user_input_transcribed", self._transcribed)
        session.on("error", lambda event: self.errors.append(event.error))

    def _speech_created(self, event: Any) -> None:
        if not self._is_asked:
            self.begin()
            self.spontaneous.put_nowait(event.speech_handle)

    def _transcribed(self, event: Any) -> None:
        if event.is_final:
            self.heard = event.transcript

    def begin(self) -> None:
        self.speaker.sound, self.screen.words = common.Sound(), ""

    async def answer(self, handle: Any) -> dict[str, Any]:
        await handle
        assert not self.errors, self.errors
        told = [words for role, words in self.told() if role == "assistant"]
        return common.turn(self.speaker.sound, self.screen.words, told[-1])

    def ask(self, text: str) -> Any:
        """The handle of the answer."""
        self.begin()
        self._is_asked = True
        handle = self.session.generate_reply(user_input=text)
        self._is_asked = False
        return handle

    async def say(self, speech: bytes) -> None:
        await common.speak(self.microphone.push, speech)

    def told(self) -> list[list[str]]:
        """The history as the client has it."""
        messages = (item for item in self.session.history.items if item.type == "message")
        return [[item.role, item.text_content or ""] for item in messages]


async def barge_in(talk: Talk, speech: bytes) -> dict[str, Any]:
    for _ in range(common.TRIES):
        handle = talk.ask(common.LONG)
        while not talk.speaker.sound.pcm:
            talk.changed.clear()
            await talk.changed.wait()
        await talk.say(speech)
        await handle
        answer = await talk.answer(await talk.spontaneous.get())
        if handle.interrupted:
            return {**answer, "interrupted": True}
    return {"interrupted": False}


Maker = Callable[[str, str], AgentSession[None]]  # base URL, key


async def program(
    make: Maker, base_url: str, key: str, speech: bytes, report: dict[str, Any]
) -> None:
    async with http_context.open():  # as a worker would
        await converse(functools.partial(make, base_url, key), speech, report)


async def converse(
    make: Callable[[], AgentSession[None]], speech: bytes, report: dict[str, Any]
) -> None:
    agent = Agent(instructions="Be brief.", tools=[get_weather])
    async with make() as session:
        talk = Talk(session)
        await session.start(agent, record=False)
        if not common.ONLY_SPOKEN:
            report["typed"] = await talk.answer(talk.ask(common.TYPED))

        await talk.say(speech)
        spoken = await talk.answer(await talk.spontaneous.get())
        report["spoken"] = {**spoken, "heard": talk.heard}
        if common.ONLY_SPOKEN:
            return

        report["tool"] = {**await talk.answer(talk.ask(common.ASK_TOOL)), "calls": calls}
        report["barge_in"] = await barge_in(talk, speech)
        report["history"] = talk.told()
    async with make() as session:
        talk = Talk(session)
        await session.start(Agent(instructions="Be brief."), record=False)
        report["second"] = await talk.answer(talk.ask(common.TYPED))


if __name__ == "__main__":
    common.run(
        "livekit-plugins-openai",
        "livekit-plugins-openai",
        functools.partial(program, make_session),
    )
