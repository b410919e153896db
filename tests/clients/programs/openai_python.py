"""openai-python: the raw event stream, kept in order by `previous_item_id` and read back item by item."""

import base64
from typing import Any

import common
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection


def connect(base_url: str, key: str) -> Any:
    # region: how to point it here
    client = AsyncOpenAI(base_url=base_url, api_key=key)  # http://127.0.0.1:8000/v1
    return client.realtime.connect(model="gpt-realtime")
    # endregion


class Talk:
    """One session."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.order: list[str] = []  # item ids
        self.heard = ""  # what the server understood of the caller
        self.calls: list[dict[str, Any]] = []

    async def answer(self) -> dict[str, Any]:
        """Follow the events to the end of the next response; what the caller noticed of it."""
        sound, words, item_words = common.Sound(), "", ""
        async for event in self.connection:
            self.note(event)
            if event.type == "response.output_audio.delta":
                sound.add(base64.b64decode(event.delta))
            elif event.type == "response.output_audio_transcript.delta":
                words += event.delta
            elif event.type == "response.output_item.done" and event.item.type == "message":
                item_words = event.item.content[0].transcript
            elif event.type == "response.done":
                return common.turn(sound, words, item_words, status=event.response.status)
        raise AssertionError("the connection ended")

    def note(self, event: Any) -> None:
        """Keep what is not about one answer."""
        if event.type == "error":
            raise AssertionError(event.error)
        if event.type == "conversation.item.added":
            after = event.previous_item_id
            at = 0 if after is None else self.order.index(after) + 1
            self.order.insert(at, event.item.id)
        elif event.type == "conversation.item.input_audio_transcription.completed":
            self.heard = event.transcript
        elif event.type == "response.function_call_arguments.done":
            self.calls.append(
                {"call_id": event.call_id, "name": event.name, "arguments": event.arguments}
            )

    async def says(self, text: str) -> None:
        content = [{"type": "input_text", "text": text}]
        message = {"type": "message", "role": "user", "content": content}
        await self.connection.conversation.item.create(item=message)
        await self.connection.response.create()

    async def append(self, pcm: bytes) -> None:
        await self.connection.input_audio_buffer.append(audio=base64.b64encode(pcm).decode())

    async def until(self, event_type: str) -> Any:
        async for event in self.connection:
            self.note(event)
            if event.type == event_type:
                return event
        raise AssertionError("the connection ended")

    async def history(self) -> list[list[str]]:
        """Every message, read back from the server in order."""
        told = []
        for item_id in self.order:
            await self.connection.conversation.item.retrieve(item_id=item_id)
            item = (await self.until("conversation.item.retrieved")).item
            if item.type == "message":
                part = item.content[0]
                told.append([item.role, part.text or part.transcript or ""])
        return told


async def barge_in(talk: Talk, speech: bytes) -> dict[str, Any]:
    """Interrupt an answer; made-up answers may be too short for that, so ask again until one is not."""
    for _ in range(common.TRIES):
        await talk.says(common.LONG)
        await talk.until("response.output_audio.delta")
        await common.speak(talk.append, speech)
        interrupted = await talk.answer()
        after = await talk.answer()
        if interrupted["status"] == "cancelled":
            return {**after, "interrupted": True}
    return {"interrupted": False}


async def program(base_url: str, key: str, speech: bytes, report: dict[str, Any]) -> None:
    async with connect(base_url, key) as connection:
        talk = Talk(connection)
        await talk.until("session.created")
        transcription = {"model": "whisper-1"}
        await connection.session.update(
            session={
                "type": "realtime",
                "tools": [common.WEATHER_TOOL],
                "audio": {"input": {"transcription": transcription}},
            }
        )
        await talk.until("session.updated")

        if not common.ONLY_SPOKEN:
            await talk.says(common.TYPED)
            report["typed"] = await talk.answer()

        await common.speak(talk.append, speech)
        spoken = await talk.answer()
        report["spoken"] = {**spoken, "heard": talk.heard}
        if common.ONLY_SPOKEN:
            return

        await talk.says(common.ASK_TOOL)
        await talk.answer()
        call = talk.calls[0]
        output = {
            "type": "function_call_output",
            "call_id": call["call_id"],
            "output": common.WEATHER,
        }
        await connection.conversation.item.create(item=output)
        await connection.response.create()
        report["tool"] = {**await talk.answer(), "calls": talk.calls}

        report["barge_in"] = await barge_in(talk, speech)
        report["history"] = await talk.history()
    async with connect(base_url, key) as connection:
        talk = Talk(connection)
        await talk.says(common.TYPED)
        report["second"] = await talk.answer()


if __name__ == "__main__":
    common.run("openai-python", "openai", program)
