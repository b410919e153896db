"""The function calls of one answer, written one after another in the conversation's own context.

    … <cue to call> {"name": …, "arguments": {…}}        held to a schema by the backend
      <end of the call> ─▶ the model may begin another, if it was trained to, or end its turn

The context is reconciled with the conversation before each part, as before any answer, so that what is resident is
kept: a call costs its own tokens and, for models without a tools branch, a system block that the next turn cuts off.
"""

import asyncio
from collections.abc import Callable, Sequence

from engine.call_text import CallText
from engine.lane import Lane
from engine.listener import CallPart, EndReason
from engine.models.base import Message, Prompt, TurnModel
from engine.models.tools import Then, call_schema, call_text
from engine.response import ResponseRequest
from engine.settings import Parts
from engine.work import Sampling, TokenChunk

MAX_CALLS = 16  # per answer: a model that cannot stop calling ends there
_CALL_TOKENS = 16  # asked for at a time, so that a cancelled call ends soon
_CHOICE_TOKENS = 4  # likewise, to see what the model wants after a call
_CHOICE_CHARS = 16  # a mark or the end of the turn comes at once, or the model means something else

Told = Callable[[CallPart, float], None]


class CallFailed(RuntimeError):
    """The engine gave a call up; the message says why."""


class FunctionCalls:
    """Runs in the answer's task; `take` is called on the loop."""

    def __init__(
        self, parts: Parts, model: TurnModel, lane: Lane, request: ResponseRequest, told: Told
    ) -> None:
        self.input_tokens = 0
        self.cached_tokens = 0  # of those, already resident
        self.output_tokens = 0
        self._parts = parts
        self._model = model
        self._lane = lane
        self._request = request
        self._told = told  # hears of every piece of every call
        self._messages: list[Message] = []  # the conversation and, as they are written, the calls
        self._state: object = None
        self._deadline = 0.0
        self._left = 0  # tokens that may still be written
        # Of the call being written:
        self._index = 0
        self._text = ""
        self._tokens: list[int] = []
        self._call: CallText | None = None  # None: the model chooses what follows
        self._finished: asyncio.Future[TokenChunk] = asyncio.get_running_loop().create_future()

    async def run(
        self,
        state: object,
        messages: Sequence[Message],
        schemas: Sequence[str],
        deadline: float,
        max_tokens: int,
    ) -> EndReason:
        """Write a call for each of `schemas` and then as many more as the model begins; `max_tokens` in all.

        Raises:
            CallFailed: the engine could not.
            ContextTooLong: the tools alone do not fit.
        """
        self._messages, self._state = list(messages), state
        self._deadline, self._left = deadline, max_tokens
        wanted = list(schemas)
        for self._index in range(MAX_CALLS):
            if not wanted:
                if not await self._begins_another():
                    return "completed" if self._left > 0 else "max_output_tokens"
                wanted = [call_schema(self._request.callable_tools)]
            if self._left <= 0 or not await self._write(wanted.pop(0)):
                return "max_output_tokens"
        return "completed"

    async def _write(self, schema: str) -> bool:
        """Write one call; False if the tokens ran out in the middle of it."""
        self._call = call = CallText()
        await self._decode("call", Sampling(schema=schema), _CALL_TOKENS)
        if not call.done:
            return False
        text = call_text(call.name, call.arguments)
        self._model.remember(self._state, text, self._tokens)
        self._messages.append(Message("assistant", text, call=True))
        return True

    async def _begins_another(self) -> bool:
        """Whether the model goes on with a call rather than end its turn."""
        mark, self._call = self._model.call_mark, None
        if mark is None or not self._request.parallel_calls or self._left <= 0:
            return False
        await self._decode("more", self._model.sampling(), _CHOICE_TOKENS)
        return self._text.lstrip().startswith(mark.text)

    async def _decode(self, then: Then, sampling: Sampling, decode: int) -> None:
        """Bring the context to where `then` is decided, and decode until that is."""
        model, request = self._model, self._request
        self._text, self._tokens = "", []
        self._finished = asyncio.get_running_loop().create_future()
        asked = Prompt(
            request.instructions, self._messages, request.tools, request.callable_tools, then
        )
        segments = await self._parts.pool.run(model.turn_prompt, self._state, asked)
        model.begin(self._state)
        room = self._lane.context.limits.policy.room(self._left)
        plan = self._lane.context.reconcile(segments, room)
        if not self.input_tokens:
            self.input_tokens, self.cached_tokens = plan.input_tokens, plan.keep_tokens
        self._lane.begin(
            plan,
            self.take,
            decode=min(decode, self._left),
            deadline=self._deadline,
            stop=model.spec.stop_token_ids,
            sampling=sampling,
        )
        last = await self._finished
        if last.error is not None:
            raise CallFailed(last.error)

    def take(self, chunk: TokenChunk, now: float) -> None:
        """More tokens of the call, or of what the model does after one."""
        self.output_tokens += len(chunk.token_ids)
        self._left -= len(chunk.token_ids)
        self._tokens += chunk.token_ids
        text = self._model.decode(self._state, chunk.token_ids).text
        self._text += text
        if self._call is not None:
            self._tell(self._call, text, now)
        if not chunk.finished:
            return
        if chunk.error is None and not chunk.stopped and self._left > 0 and self._goes_on():
            size = _CHOICE_TOKENS if self._call is None else _CALL_TOKENS
            self._lane.more(min(size, self._left), self._deadline)
        elif not self._finished.done():
            self._finished.set_result(chunk)

    def _tell(self, call: CallText, text: str, now: float) -> None:
        was_done = call.done
        arguments = call.feed(text)
        done = call.done and not was_done
        if arguments or done:
            self._told(CallPart(self._index, call.name, arguments, done), now)

    def _goes_on(self) -> bool:
        """Whether more tokens are needed to know what this is."""
        if self._call is not None:
            return not self._call.done
        mark, begun = self._model.call_mark, self._text.lstrip()
        assert mark is not None
        return (
            len(begun) < len(mark.text)
            and mark.text.startswith(begun)
            and (len(self._text) < _CHOICE_CHARS)
        )
