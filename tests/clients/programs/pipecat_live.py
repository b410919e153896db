"""pipecat-ai's `OpenAILiveLLMService`: the Live protocol in a pipeline, its history in the context of the aggregators.

The microphone is open all the time. The service takes typed messages only when a call begins, and tools belong to a
second model: what is left is the spoken turn, the barge-in and both sides in order.
"""

import asyncio
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
    LLMRunFrame,
    SpeechOutputAudioRawFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.live.llm import OpenAILiveLLMService
from pipecat.workers.runner import WorkerRunner

SILENCE_S = 1.0  # of silence that end an answer, in output audio


def make_service(base_url: str, key: str) -> OpenAILiveLLMService:
    url = base_url.replace("http", "ws", 1) + "/live/sessions"
    # region: how to point it here
    # url = "ws://127.0.0.1:8000/v1/live/sessions"
    return OpenAILiveLLMService(api_key=key, base_url=url)
    # endregion


class Ear(FrameProcessor):
    """Sits behind the service and notices what a caller would."""

    def __init__(self) -> None:
        super().__init__()
        self.sound, self.words = common.Sound(), ""  # of the answer that was last heard
        self.quiet_s = SILENCE_S  # of output since it was last heard
        self.hears = asyncio.Event()  # the session has begun: there is audio, silent or not
        self.errors: list[str] = []
        self.changed = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, SpeechOutputAudioRawFrame):
            self.hears.set()
            self._listen(frame.audio)
        elif isinstance(frame, TTSTextFrame):
            self.words += frame.text
        elif isinstance(frame, ErrorFrame):
            self.errors.append(frame.error)
        self.changed.set()
        await self.push_frame(frame, direction)

    def _listen(self, pcm: bytes) -> None:
        if any(pcm):
            self.quiet_s = 0.0
            self.sound.add(pcm)
        else:
            self.quiet_s += len(pcm) / 2 / common.RATE

    def begin(self) -> None:
        """A new answer is expected."""
        self.sound, self.words = common.Sound(), ""

    async def until(self, condition: Any) -> None:
        while not condition():
            assert not self.errors, self.errors
            self.changed.clear()
            await self.changed.wait()


class Talk:
    """One session."""

    def __init__(self, worker: PipelineWorker, ear: Ear, context: LLMContext) -> None:
        self._worker, self._context, self.ear = worker, context, ear
        self._unsaid = bytearray()  # what the caller is about to say
        self._said_all = asyncio.Event()

    def told(self) -> list[list[str]]:
        """The history as the client has it; a message begins anew after 0.8 s without a word, and some are longer."""
        told: list[list[str]] = []
        for message in self._context.get_messages():
            if told and told[-1][0] == message["role"]:
                told[-1][1] += f" {message['content']}"
            else:
                told.append([message["role"], message["content"]])
        return told

    async def hold_microphone(self) -> None:
        """What the caller says, and silence else, at the pace of life."""
        size = common.RATE * common.CHUNK_MS // 1000 * 2
        while True:
            chunk = bytes(self._unsaid[:size]).ljust(size, b"\0")
            del self._unsaid[:size]
            await self._worker.queue_frame(InputAudioRawFrame(chunk, common.RATE, 1))
            if not self._unsaid:
                self._said_all.set()
            await asyncio.sleep(common.CHUNK_MS / 1000)

    async def says(self, speech: bytes) -> None:
        self._unsaid += speech
        self._said_all.clear()
        await self._said_all.wait()

    async def answer(self, users: int) -> dict[str, Any]:
        """The answer to what the caller said, the `users`-th time."""
        ear = self.ear
        await ear.until(lambda: ear.sound.pcm and ear.quiet_s >= SILENCE_S)
        words = ear.words.strip()
        await ear.until(lambda: len(self.told()) == 2 * users and self.told()[-1][1] == words)
        return common.turn(ear.sound, words, self.told()[-1][1])


@asynccontextmanager
async def talking(base_url: str, key: str) -> AsyncIterator[Talk]:
    ear, context = Ear(), LLMContext()
    aggregators = LLMContextAggregatorPair(context)
    stages = [aggregators.user(), make_service(base_url, key), ear, aggregators.assistant()]
    worker = PipelineWorker(Pipeline(stages), enable_rtvi=False)
    started = asyncio.Event()

    @worker.event_handler("on_pipeline_started")
    async def on_started(*_: Any) -> None:
        started.set()

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    async with asyncio.TaskGroup() as group:
        group.create_task(runner.run())
        await started.wait()
        await worker.queue_frame(LLMRunFrame())
        talk = Talk(worker, ear, context)
        microphone = group.create_task(talk.hold_microphone())
        await ear.hears.wait()
        yield talk
        microphone.cancel()
        await worker.queue_frame(EndFrame())


async def barge_in(talk: Talk, speech: bytes) -> dict[str, Any]:
    """The protocol knows no interruptions: the answer falls silent while the caller speaks, and another one follows."""
    ear = talk.ear
    ear.begin()
    await talk.says(speech)
    await ear.until(lambda: ear.sound.pcm)
    await talk.says(speech)
    was_cut_off = ear.quiet_s > 0
    ear.begin()
    return {**await talk.answer(3), "interrupted": was_cut_off}


async def program(base_url: str, key: str, speech: bytes, report: dict[str, Any]) -> None:
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    async with talking(base_url, key) as talk:
        await talk.says(speech)
        report["spoken"] = {**await talk.answer(1), "heard": talk.told()[0][1]}
        if common.ONLY_SPOKEN:
            return

        report["barge_in"] = await barge_in(talk, speech)
        report["history"] = talk.told()
    async with talking(base_url, key) as talk:
        await talk.says(speech)
        report["second"] = await talk.answer(1)


if __name__ == "__main__":
    common.run("pipecat-ai (Live)", "pipecat-ai", program)
