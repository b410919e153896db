"""The function calls of one answer, decoded one after another, each held to its schema.

A call has a context of its own, freed when it is written: in vLLM 0.32 a later append to a resident request carries
tokens and sampling parameters, but no grammar, so a call is a request by itself and its tokens are asked for at once.
The conversation's own context learns of the call with the next answer.
"""

import asyncio
from collections.abc import Callable, Sequence

from engine.call_text import CallText
from engine.lane import Lane
from engine.listener import CallPart, EndReason
from engine.models.base import Message
from engine.models.tools import tool_block
from engine.response import ResponseRequest
from engine.settings import Parts
from engine.work import Sampling, TokenChunk

Told = Callable[[CallPart, float], None]


class CallFailed(RuntimeError):
    """The engine gave a call up; the message says why."""


class FunctionCalls:
    """Runs in the answer's task; `take` is called on the loop."""

    def __init__(self, parts: Parts, home: Lane, request: ResponseRequest, told: Told) -> None:
        self.input_tokens = 0
        self.output_tokens = 0
        self._parts = parts
        self._home = home  # the conversation's
        self._request = request
        self._told = told  # hears of every piece of every call
        # Of the call being written:
        self._index = 0
        self._state: object = None
        self._text = ""
        self._call = CallText()
        self._finished: asyncio.Future[TokenChunk] = asyncio.get_running_loop().create_future()

    async def run(
        self,
        state: object,
        messages: Sequence[Message],
        schemas: Sequence[str],
        deadline: float,
        max_tokens: int,
    ) -> EndReason:
        """Write a call for each of `schemas`, `max_tokens` at most for all of them.

        Raises:
            CallFailed: the engine could not.
            ContextTooLong: the tools alone do not fit.
        """
        told, self._state = list(messages), state
        for self._index, schema in enumerate(schemas):
            left = max_tokens - self.output_tokens
            if left <= 0:
                return "max_output_tokens"
            await self._write(told, schema, deadline, left)
            if not self._call.done:
                return "max_output_tokens"
            told.append(Message("assistant", self._text.strip()))
        return "completed"

    async def _write(
        self, messages: Sequence[Message], schema: str, deadline: float, max_tokens: int
    ) -> None:
        model, request = self._parts.model, self._request
        self._text, self._call = "", CallText()
        self._finished = asyncio.get_running_loop().create_future()
        instructions = f"{request.instructions}\n\n{tool_block(request.tools)}".strip()
        segments = await self._parts.pool.run(model.prompt, self._state, instructions, messages)
        model.begin(self._state)
        limits = self._home.context.limits
        lane_id = f"{self._home.id}/{request.response_id}/{self._index}"
        lane = Lane(lane_id, self._parts.stepper, limits)
        try:
            plan = lane.context.reconcile(segments, limits.policy.room(max_tokens))
            self.input_tokens += plan.input_tokens
            lane.begin(
                plan,
                self.take,
                decode=max_tokens,
                deadline=deadline,
                stop=model.spec.stop_token_ids,
                sampling=Sampling(schema=schema),
            )
            last = await self._finished
        finally:
            lane.close()
        if last.error is not None:
            raise CallFailed(last.error)

    def take(self, chunk: TokenChunk, now: float) -> None:
        """More tokens of the call."""
        self.output_tokens += len(chunk.token_ids)
        text = self._parts.model.decode(self._state, chunk.token_ids).text
        self._text += text
        was_done = self._call.done
        arguments = self._call.feed(text)
        done = self._call.done and not was_done
        if arguments or done:
            self._told(CallPart(self._index, self._call.name, arguments, done), now)
        if chunk.finished and not self._finished.done():
            self._finished.set_result(chunk)
