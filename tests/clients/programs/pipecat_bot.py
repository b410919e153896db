"""pipecat-ai: a pipeline around `OpenAIRealtimeLLMService`, its history in the context that the aggregators keep."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import common
from loguru import logger
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMMessagesAppendFrame,
    LLMRunFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.openai.realtime.events import (
    AudioConfiguration,
    AudioInput,
    InputAudioTranscription,
    SessionProperties,
)
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner

calls: list[dict[str, Any]] = []


async def get_weather(params: FunctionCallParams, city: str) -> None:
    """The weather in a city.

    Args:
        city: Its name.
    """
    calls.append({"name": "get_weather", "arguments": json.dumps({"city": city})})
    await params.result_callback(common.WEATHER)


TRANSCRIBED = OpenAIRealtimeLLMService.Settings(
    session_properties=SessionProperties(
        audio=AudioConfiguration(input=AudioInput(transcription=InputAudioTranscription()))
    )
)


def make_service(base_url: str, key: str) -> OpenAIRealtimeLLMService:
    url = base_url.replace("http", "ws", 1) + "/realtime"
    # region: how to point it here
    # url = "ws://127.0.0.1:8000/v1/realtime"
    return OpenAIRealtimeLLMService(api_key=key, base_url=url, settings=TRANSCRIBED)
    # endregion


class Ear(FrameProcessor):
    """Sits behind the service and notices what a caller would."""

    def __init__(self) -> None:
        super().__init__()
        self.sound, self.words, self.heard = common.Sound(), "", ""
        self.ends = 0  # answers that were heard to their end
        self.interruptions = 0
        self.ends_before = 0  # … the last interruption
        self.began_at = 0.0  # when the first of the present answer was heard
        self.was_cut_off = False  # an answer was still being played at the last interruption
        self.errors: list[str] = []
        self.changed = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            if not self.sound.pcm:
                self.began_at = asyncio.get_running_loop().time()
            self.sound.add(frame.audio)
        elif isinstance(frame, TTSTextFrame):
            self.words += frame.text
        elif isinstance(frame, LLMFullResponseEndFrame):
            self.ends += bool(self.sound.pcm)
        elif isinstance(frame, InterruptionFrame):
            self.interruptions += 1
        elif isinstance(frame, ErrorFrame):
            self.errors.append(frame.error)
        self.changed.set()
        await self.push_frame(frame, direction)

    async def until(self, condition: Any) -> None:
        while not condition():
            assert not self.errors, self.errors
            self.changed.clear()
            await self.changed.wait()

    def is_interrupted(self) -> None:
        now = asyncio.get_running_loop().time()
        self.was_cut_off = bool(self.sound.pcm) and now < self.began_at + self.sound.seconds
        self.ends_before = self.begin()

    def begin(self) -> int:
        """A new answer is expected; how many have ended before it."""
        self.sound, self.words = common.Sound(), ""
        return self.ends


class Desk(FrameProcessor):
    """Sits before the service: the application's messages enter here, transcripts and interruptions pass."""

    def __init__(self, ear: Ear) -> None:
        super().__init__()
        self._ear = ear

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TranscriptionFrame):
            self._ear.heard = frame.text
        elif isinstance(frame, InterruptionFrame) and direction is FrameDirection.DOWNSTREAM:
            self._ear.is_interrupted()  # before the service closes the answer
        await self.push_frame(frame, direction)


class Talk:
    """One session."""

    def __init__(self, worker: PipelineWorker, desk: Desk, ear: Ear, context: LLMContext) -> None:
        self.worker, self.desk, self.ear, self.context = worker, desk, ear, context
        self._answers_told = 0

    def told(self) -> list[list[str]]:
        """The history as the client has it."""
        return [
            [message["role"], message["content"]]
            for message in self.context.get_messages()
            if message["role"] in ("user", "assistant") and message.get("content")
        ]

    async def answer(self, ended: int, messages: int = 1) -> dict[str, Any]:
        """What was noticed of the answer that followed the `ended`-th, the `messages`-th in the history since."""
        await self.ear.until(lambda: self.ear.ends > ended)
        sound, words = self.ear.sound, self.ear.words
        # The aggregator comes after the ear, and the end of every answer passes through both.
        known = self._answers_told + messages
        await self.ear.until(lambda: len(self._told_by("assistant")) >= known)
        told = self._told_by("assistant")
        self._answers_told = len(told)
        return common.turn(sound, words, told[-1])

    def _told_by(self, role: str) -> list[str]:
        return [words for speaker, words in self.told() if speaker == role]

    async def says(self, text: str) -> None:
        messages = [{"role": "user", "content": text}]
        await self.desk.push_frame(LLMMessagesAppendFrame(messages, run_llm=True))

    async def append(self, pcm: bytes) -> None:
        await self.worker.queue_frame(InputAudioRawFrame(pcm, common.RATE, 1))


async def barge_in(talk: Talk, speech: bytes) -> dict[str, Any]:
    ear = talk.ear
    for _ in range(common.TRIES):
        ear.begin()
        interruptions = ear.interruptions
        await talk.says(common.LONG)
        await ear.until(lambda: ear.sound.pcm)
        await common.speak(talk.append, speech)
        await ear.until(lambda before=interruptions: ear.interruptions > before)
        answer = await talk.answer(ear.ends_before, messages=2)
        if ear.was_cut_off:
            return {**answer, "interrupted": True}
    return {"interrupted": False}


@dataclass(frozen=True, slots=True)
class Setup:
    """A bot."""

    make_service: Callable[[str, str], OpenAIRealtimeLLMService]
    hearing: Callable[[], LLMUserAggregatorParams | None]  # its own, of turns

    @asynccontextmanager
    async def talking(self, base_url: str, key: str) -> AsyncIterator[Talk]:
        ear = Ear()
        context = LLMContext([{"role": "user", "content": common.TYPED}], tools=[get_weather])
        aggregators = LLMContextAggregatorPair(context, user_params=self.hearing())
        desk = Desk(ear)
        stages = [aggregators.user(), desk, self.make_service(base_url, key), ear]
        worker = PipelineWorker(Pipeline([*stages, aggregators.assistant()]), enable_rtvi=False)
        started = asyncio.Event()

        @worker.event_handler("on_pipeline_started")
        async def on_started(*_: Any) -> None:
            started.set()

        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(worker)
        async with asyncio.TaskGroup() as group:
            group.create_task(runner.run())
            await started.wait()
            yield Talk(worker, desk, ear, context)
            await worker.queue_frame(EndFrame())

    async def program(self, base_url: str, key: str, speech: bytes, report: dict[str, Any]) -> None:
        logger.remove()
        logger.add(sys.stderr, level="WARNING")
        async with self.talking(base_url, key) as talk:
            if not common.ONLY_SPOKEN:
                await talk.worker.queue_frame(LLMRunFrame())
                report["typed"] = await talk.answer(0)

            ended = talk.ear.begin()
            await common.speak(talk.append, speech)
            report["spoken"] = {**await talk.answer(ended), "heard": talk.ear.heard}
            if common.ONLY_SPOKEN:
                await talk.worker.queue_frame(EndFrame())
                return

            ended = talk.ear.begin()
            await talk.says(common.ASK_TOOL)
            report["tool"] = {**await talk.answer(ended), "calls": calls}

            report["barge_in"] = await barge_in(talk, speech)
            report["history"] = talk.told()
        async with self.talking(base_url, key) as talk:
            await talk.worker.queue_frame(LLMRunFrame())
            report["second"] = await talk.answer(0)


if __name__ == "__main__":
    common.run("pipecat-ai", "pipecat-ai", Setup(make_service, lambda: None).program)
