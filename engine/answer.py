"""One answer of a turn-based model: transcripts → prompt → tokens, k per tick → clauses → voice.

Tokens are asked for a few at a time and only while playback is less than `lead_s` ahead, so cancelling costs one
quota. The first clause is cut early; later ones are spoken while the caller still listens to those before.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import msgspec

from engine.call_scan import CallScanner
from engine.calling import CallFailed, FunctionCalls
from engine.context import ContextTooLong
from engine.lane import Lane
from engine.listener import CallPart, EndReason, SessionListener, Usage
from engine.models.base import Message, Prompt, Segment, TurnModel
from engine.models.tools import call_schema
from engine.observer import TurnOutcome, TurnStats
from engine.response import Phase, ResponseRequest, Step, advance
from engine.settings import Parts
from engine.slo import Obligation, TickLedger
from engine.speaker import Speaker
from engine.work import Sampling, TokenChunk, TokenRules


class Answer:
    """Runs in a task of its own; `take` and `beat` are called on the loop."""

    def __init__(
        self,
        parts: Parts,
        lane: Lane,
        state: object,
        request: ResponseRequest,
        listener: SessionListener,
    ) -> None:
        self.request = request
        self.phase = Phase.RESOLVING
        self.decided_at = parts.clock.now()
        self.speech_stopped_at: float | None = None  # set by the session where the turn was spoken
        self._parts = parts
        self._model = cast(TurnModel, parts.model)
        self._lane = lane
        self._state = state
        self._listener = listener
        self._owed = Obligation(
            self.decided_at + parts.settings.first_output_s, speaks=request.audio
        )
        callable_names = {tool["name"] for tool in request.callable_tools}
        may_call = request.tool_choice == "auto"
        self._scanner = CallScanner(self._model.call_mark, callable_names if may_call else ())
        self._speaker = Speaker(parts, self._model, request, listener, self._owed)
        self._tokens: list[int] = []  # of its words
        self._input_tokens = self._cached_tokens = self._output_tokens = 0
        self._reason: EndReason = "completed"
        self._error: str | None = None
        self._paused = False  # decoding waits for playback
        self._transcribed_at: float | None = None
        self._first_token_at: float | None = None
        self._asked_at: float | None = None  # its first tokens were asked for
        self._sent_at: float | None = None  # and that left for the backend

    # -- its task ------------------------------------------------------------

    async def run(self, transcript: Callable[[str], Awaitable[str]]) -> None:
        """From the request to `response_ended`. `transcript` gives the words of a spoken item."""
        messages = await self._resolve(transcript)
        self._transcribed_at = self._parts.clock.now()
        model = self._model
        if messages and messages[-1].role == "user" and not self._is_intelligible(messages[-1]):
            self._finish()  # there is nothing to answer
            return
        try:
            request = self.request
            schemas = model.calls(messages, request.callable_tools, request.tool_choice)
            if not schemas:
                asked = Prompt(request.instructions, messages, request.tools)
                self._begin(await self._parts.pool.run(model.turn_prompt, self._state, asked))
                await self._speaker.run()
                messages, schemas = self._with_words(messages), self._chosen()
            if schemas:
                await self._call(messages, schemas)
        except (ContextTooLong, CallFailed) as error:
            self._fail(str(error))
            return
        self._finish()

    def _is_intelligible(self, said: Message) -> bool:
        return bool(said.text.strip()) or self._model.spec.hears_audio

    def _chosen(self) -> Sequence[str]:
        """What a call must fit that the model began in the middle of its words; none if it did not."""
        if not self._scanner.found or self.phase is Phase.ENDED:
            return ()
        tools, name = self.request.callable_tools, self._scanner.name
        return (call_schema([tool for tool in tools if name in ("", tool["name"])]),)

    def _with_words(self, messages: list[Message]) -> list[Message]:
        """The conversation and what this answer has said."""
        if not self._speaker.text:
            return messages
        self._model.remember(self._state, self._speaker.text, self._tokens)
        return [*messages, Message("assistant", self._speaker.text)]

    async def _call(self, messages: Sequence[Message], schemas: Sequence[str]) -> None:
        """Call functions, instead of speaking or after it."""
        self._owed.speaks = False
        self.phase = advance(self.phase, Step.PROMPTED)
        if not self.request.parallel_calls:
            schemas = schemas[:1]
        deadline = self._owed.first_by
        calls = FunctionCalls(self._parts, self._model, self._lane, self.request, self._called)
        left = self._max_tokens - len(self._tokens)
        try:
            self._reason = await calls.run(self._state, messages, schemas, deadline, left)
        finally:
            self._input_tokens = self._input_tokens or calls.input_tokens
            self._cached_tokens = self._cached_tokens or calls.cached_tokens
            self._output_tokens = len(self._tokens) + calls.output_tokens
        self.phase = advance(self.phase, Step.DECODED)

    def _called(self, part: CallPart, now: float) -> None:
        if self.phase is Phase.DECODING:
            self._owed.came(now)
            self._listener.function_call(self.request.response_id, part)

    async def _resolve(self, transcript: Callable[[str], Awaitable[str]]) -> list[Message]:
        newest = self._lane.context.limits.policy.messages_at_most
        messages = []
        for message in self.request.messages[-newest:]:
            if message.item_id in self.request.pending_items:
                message = Message(message.role, await transcript(message.item_id), message.item_id)
            messages.append(message)
        return messages

    def _begin(self, segments: Sequence[Segment]) -> None:
        spec = self._model.spec
        room = self._lane.context.limits.policy.room(self._max_tokens)
        plan = self._lane.context.reconcile(segments, room)
        self._input_tokens, self._cached_tokens = plan.input_tokens, plan.keep_tokens
        self.phase = advance(self.phase, Step.PROMPTED)
        self._model.begin(self._state)
        self._asked_at = self._parts.clock.now()
        self._lane.begin(
            plan,
            self.take,
            decode=min(spec.decode_per_tick, self._max_tokens),
            deadline=self._owed.first_by,
            stop=spec.stop_token_ids,
            sampling=self._sampling(),
        )

    def _sampling(self) -> Sampling:
        """How the words are drawn; a model that may not call is kept from beginning to."""
        sampling, mark, request = self._model.sampling(), self._model.call_mark, self.request
        if not request.tools or request.tool_choice != "none" or mark is None or mark.token is None:
            return sampling
        return msgspec.structs.replace(sampling, rules=TokenRules(forbid=(mark.token,)))

    @property
    def _max_tokens(self) -> int:
        asked, most = self.request.max_output_tokens, self._parts.settings.max_response_tokens
        return most if asked is None else min(asked, most)

    # -- tokens --------------------------------------------------------------

    def take(self, chunk: TokenChunk, now: float) -> None:
        """More tokens of this answer."""
        if chunk.error is not None:
            self._fail(chunk.error)
            return
        if self._first_token_at is None:
            self._first_token_at, self._sent_at = now, self._lane.sent_at
        self._tokens.extend(chunk.token_ids)
        if not self.request.audio:
            self._owed.moved()
        text = self._model.decode(self._state, chunk.token_ids).text
        self._speaker.say(self._scanner.feed(text), now)
        if not chunk.finished:
            return
        over = chunk.stopped or self._scanner.found
        if over or len(self._tokens) >= self._max_tokens:
            if not over:
                self._reason = "max_output_tokens"
            self._speaker.say(self._scanner.rest(), now)
            self._decoded()
        else:
            self._go_on(now)

    def _go_on(self, now: float) -> None:
        """Ask for the next tick's tokens, unless playback is far enough ahead."""
        ahead = self._owed.playhead.ahead_s(now) + self._speaker.waiting_s
        self._paused = self.request.audio and ahead > self._parts.settings.lead_s
        if not self._paused:
            left = self._max_tokens - len(self._tokens)
            deadline = now + max(0.0, ahead) if self._owed.first_at else self.decided_at
            self._lane.more(min(self._model.spec.decode_per_tick, left), deadline)

    def _decoded(self) -> None:
        self.phase = advance(self.phase, Step.DECODED)
        self._speaker.finish()

    # -- ends ----------------------------------------------------------------

    def cancel(self) -> None:
        """Nothing of this answer may follow. Its task is cancelled by the session."""
        if self.phase is not Phase.ENDED:
            self._lane.abandon()
            self._remember()  # what of it the caller heard stays resident
            self._end("cancelled")

    def _fail(self, message: str) -> None:
        self._reason, self._error = "failed", message
        self._speaker.stop()
        if self.phase is not Phase.ENDED:
            self._finish()

    def fail(self, message: str) -> None:
        """A part of the engine broke while it worked for this answer."""
        self._lane.abandon()
        self._fail(message)

    def _finish(self) -> None:
        if self.phase is Phase.ENDED:
            return
        self._remember()
        self._end(self._reason)
        self._lane.rest()
        usage = Usage(
            self._input_tokens,
            self._cached_tokens,
            self._output_tokens or len(self._tokens),
            output_audio_ms=round(1000 * self._owed.playhead.sent_s),
        )
        self._listener.response_ended(self.request.response_id, self._reason, usage, self._error)

    def _remember(self) -> None:
        if self._speaker.text and self._error is None:
            self._model.remember(self._state, self._speaker.text, self._tokens)

    def _end(self, outcome: TurnOutcome) -> None:
        now, begun = self._parts.clock.now(), self.phase is not Phase.RESOLVING
        self.phase = advance(self.phase, Step.END)
        if begun:
            heard_in = 0.0 if outcome == "cancelled" else max(0.0, self._owed.playhead.ahead_s(now))
            self._model.ended(self._state, round(1000 * heard_in))
        self._parts.observer.turn(
            TurnStats(
                self.decided_at,
                self.speech_stopped_at,
                self._transcribed_at,
                self._first_token_at,
                self._owed.first_at,
                now,
                len(self._tokens),
                outcome,
                self._asked_at,
                self._sent_at,
            )
        )

    # -- obligation ----------------------------------------------------------

    def beat(self, now: float, period_s: float, ledger: TickLedger) -> None:
        """One tick has passed: was what this answer owed delivered? Then decode on if playback allows."""
        outcome = self._owed.verdict(now, period_s)
        if outcome is not None and self.phase is not Phase.ENDED:
            self._parts.observer.tick(ledger.record("speak", outcome, now - period_s, now, now))
        if self._paused and self.phase is Phase.DECODING:
            self._go_on(now)

    def owed_since(self, now: float) -> float | None:
        """Since when output has been missing; None while none is."""
        if self.phase is Phase.ENDED:
            return None
        return self._owed.owed_since(now, self._model.spec.tick_ms / 1000)
