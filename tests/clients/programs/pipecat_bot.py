"""pipecat-ai: a pipeline around `OpenAIRealtimeLLMService`, its history in the context that the aggregators keep."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import FunctionCallParams
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


# region: how to point it here
def make_service(base_url: str, key: str) -> OpenAIRealtimeLLMService:
    url = base_url.replace("http", "ws", 1) + "/realtime"
    return OpenAIRealtimeLLMService(api_key=key, base_url=url)


# endregion


class Ear(FrameProcessor):
    """Sits behind the service and notices what a caller would."""

    def __init__(self) -> None:
        super().__init__()
        self.sound, self.words, self.heard = common.Sound(), "", ""
        self.ends = self.interruptions = 0
        self.errors: list[str] = []
        self.changed = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.sound.add(frame.audio)
        elif isinstance(frame, TTSTextFrame):
            self.words += frame.text
        elif isinstance(frame, LLMFullResponseEndFrame):
            self.ends += 1
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

    def begin(self) -> int:
        """A new answer is expected; how many have ended before it."""
        self.sound, self.words = common.Sound(), ""
        return self.ends


class Talk:
    """One session."""

    def __init__(self, worker: PipelineWorker, ear: Ear, context: LLMContext) -> None:
        self.worker, self.ear, self.context = worker, ear, context

    def told(self) -> list[list[str]]:
        """The history as the client has it."""
        return [
            [message["role"], message["content"]]
            for message in self.context.get_messages()
            if message["role"] in ("user", "assistant") and message.get("content")
        ]

    async def answer(self, ended: int) -> dict[str, Any]:
        """What was noticed of the answer that followed the `ended`-th."""
        await self.ear.until(lambda: self.ear.ends > ended)
        while self.told()[-1][0] != "assistant":  # the aggregators come after the ear
            await asyncio.sleep(0.02)
        return common.turn(self.ear.sound, self.ear.words, self.told()[-1][1])

    async def says(self, text: str) -> None:
        messages = [{"role": "user", "content": text}]
        await self.worker.queue_frame(LLMMessagesAppendFrame(messages, run_llm=True))

    async def append(self, pcm: bytes) -> None:
        await self.worker.queue_frame(InputAudioRawFrame(pcm, common.RATE, 1))


class Transcripts(FrameProcessor):
    """Sits before the aggregators, to which the service tells upstream what the caller said."""

    def __init__(self, ear: Ear) -> None:
        super().__init__()
        self._ear = ear

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TranscriptionFrame):
            self._ear.heard = frame.text
        await self.push_frame(frame, direction)


@asynccontextmanager
async def talking(base_url: str, key: str) -> AsyncIterator[Talk]:
    ear = Ear()
    context = LLMContext([{"role": "user", "content": common.TYPED}], tools=[get_weather])
    aggregators = LLMContextAggregatorPair(context)
    stages = [aggregators.user(), Transcripts(ear), make_service(base_url, key), ear]
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
        yield Talk(worker, ear, context)
        await worker.queue_frame(EndFrame())


async def barge_in(talk: Talk, speech: bytes) -> dict[str, Any]:
    ear = talk.ear
    for _ in range(common.TRIES):
        ended, interruptions = ear.begin(), ear.interruptions
        await talk.says(common.LONG)
        await ear.until(lambda: ear.sound.pcm)
        was_playing = ear.ends == ended
        await common.speak(talk.append, speech)
        await ear.until(lambda before=interruptions: ear.interruptions > before)
        ended = ear.begin() if ear.ends > ended else ended
        answer = await talk.answer(ended)
        if was_playing:
            return {**answer, "interrupted": True}
    return {"interrupted": False}


async def program(base_url: str, key: str, speech: bytes, report: dict[str, Any]) -> None:
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    async with talking(base_url, key) as talk:
        await talk.worker.queue_frame(LLMRunFrame())
        report["typed"] = await talk.answer(0)

        ended = talk.ear.begin()
        await common.speak(talk.append, speech)
        report["spoken"] = {**await talk.answer(ended), "heard": talk.ear.heard}

        ended = talk.ear.begin()
        await talk.says(common.ASK_TOOL)
        report["tool"] = {**await talk.answer(ended + 1), "calls": calls}

        report["barge_in"] = await barge_in(talk, speech)
        report["history"] = talk.told()
    async with talking(base_url, key) as talk:
        await talk.worker.queue_frame(LLMRunFrame())
        report["second"] = await talk.answer(0)


if __name__ == "__main__":
    common.run("pipecat-ai", "pipecat-ai", program)
