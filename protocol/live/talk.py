"""A Live session's talk: what the engine reports, and what that makes of turns, answers and what is played.

Turns exist behind the wire: the engine says when the caller has spoken, and this machine asks for the answer, plays it
out on a grid of 200 ms (`beat`) and remembers of it what was played. Speech of the caller's ends what is being played.
"""

import enum
from collections.abc import Sequence
from typing import Any

from protocol.commands import (
    CancelResponse,
    Command,
    CommitAudio,
    CreateResponse,
    TokenLogprob,
)
from protocol.errors import ProtocolError
from protocol.ids import IdFactory
from protocol.live import settings
from protocol.live.history import History
from protocol.live.playout import GRID_MS, Playout, Said
from protocol.live.server_events import LiveEvents
from protocol.response import ResponseUsage
from protocol.session_config import SessionDefaults

_USAGE_BEATS = 10_000 // GRID_MS


class State(enum.Enum):
    """How far the session has come."""

    WAITING = enum.auto()
    ACTIVE = enum.auto()
    CLOSED = enum.auto()


class Talk:
    """The half of a Live connection that listens to the engine."""

    def __init__(self, defaults: SessionDefaults, ids: IdFactory, about: dict[str, Any]) -> None:
        """`about`: what the session's view says of it whatever its settings are."""
        self.state = State.WAITING
        self._about = about
        self._defaults = defaults
        self._ids = ids
        self._events = LiveEvents(ids)
        self._settings = settings.initial(defaults)
        self._playout = Playout(self._settings.rate)
        self._history = History(ids, defaults.max_items)
        self._answer: tuple[str, Said] | None = None  # being made: its response id
        self._spoke_from_ms = 0  # where the caller's turn began
        self._beats = 0  # since session.start

    def error(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        event_id: str | None = None,
        type: str = "server_error",  # the name it has on the wire
    ) -> None:
        """Something went wrong outside this machine; an expired session says so in its last event."""
        if code == "session_expired":
            self._close("expired", None)
        else:
            self._events.error(ProtocolError(code, message, param, event_id, type))

    # -- the caller ------------------------------------------------------------------

    def speech_started(self, audio_ms: int) -> list[Command]:
        """The caller began to speak: what is being said ends, and what was not heard of it was not said.

        A frame-locked model hears the caller itself and decides what to do.
        """
        self._spoke_from_ms = audio_ms
        if self._defaults.decides_turns:
            return []
        self._playout.clear()
        if self._answer is None:
            return []
        response_id, _ = self._answer
        self._answer = None
        return [CancelResponse(response_id)]

    def speech_stopped(self, audio_ms: int) -> list[Command]:
        """The caller's turn is over: it is answered, but by a model that decides that itself."""
        item_id = self._history.add_turn(self._spoke_from_ms, audio_ms)
        commit = CommitAudio(item_id)
        return [commit] if self._defaults.decides_turns else [commit, self._answer_now()]

    def idle_timeout(self, start_ms: int, end_ms: int) -> list[Command]:
        """Not asked for."""
        return []

    def transcribed(
        self, item_id: str, text: str, seconds: float, logprobs: Sequence[TokenLogprob] = ()
    ) -> list[Command]:
        """The words of a turn, over the grid cells it was spoken in."""
        span = self._history.settle(item_id, text)
        if text and span is not None:
            cells = {"start_ms": _floor(span[0]), "end_ms": -_floor(-span[1])}
            self._events.say("session.input_transcript.delta", None, delta=text, **cells)
        return []

    def transcription_failed(self, item_id: str, message: str) -> list[Command]:
        self._history.settle(item_id, "")
        return []

    # -- the answer --------------------------------------------------------------------

    def output_rate(self, response_id: str) -> int:
        return self._settings.rate

    def response_text(self, response_id: str, text: str) -> None:
        if self._answer is not None and self._answer[0] == response_id:
            self._playout.push_words(self._answer[1], text)

    def response_audio(self, response_id: str, pcm: bytes) -> None:
        if self._answer is not None and self._answer[0] == response_id:
            self._playout.push_audio(pcm)

    def response_call(
        self, response_id: str, index: int, name: str, arguments: str, *, done: bool
    ) -> None:
        """Answers are asked for without tools."""

    def response_ended(
        self, response_id: str, reason: str, usage: ResponseUsage, error: str | None
    ) -> list[Command]:
        if self._answer is not None and self._answer[0] == response_id:
            self._answer = None
            if reason == "failed":
                self.error("response_failed", error or "The answer failed.")
        return []

    def spoke(self, pcm: bytes, text: str) -> None:
        """A frame-locked model made a sound: pcm16 at the session's rate, and any words it begins."""
        if text:
            self._playout.push_words(Said("assistant", ""), text)
        self._playout.push_audio(pcm)

    def fell_silent(self) -> None:
        """Silence is played anyway."""

    def beat(self) -> None:
        """200 ms have passed: say the next 200 ms, silent or not."""
        if self.state is not State.ACTIVE:
            return
        pcm, words = self._playout.take()
        start_ms = self._now_ms
        self._beats += 1
        if words:
            cell = {"start_ms": start_ms, "end_ms": self._now_ms}
            self._events.say("session.output_transcript.delta", None, delta=words, **cell)
        self._events.audio(self._settings.format.from_pcm(pcm))
        if self._beats % _USAGE_BEATS == 0:
            self._events.say("session.usage.updated", None, usage=self._usage)

    # -- shared with the client's side ---------------------------------------------------

    @property
    def _now_ms(self) -> int:
        return self._beats * GRID_MS

    @property
    def _view(self) -> dict[str, Any]:
        """The session as the client is shown it."""
        return self._about | self._settings.about

    @property
    def _usage(self) -> dict[str, Any]:
        return {"seconds": self._now_ms // 1000}

    def _answer_now(self) -> CreateResponse:
        messages = self._history.messages()
        answer = self._history.add("assistant", "")
        response_id = self._ids.new("resp")
        self._answer = response_id, answer
        return CreateResponse(
            response_id=response_id,
            instructions=self._settings.instructions,
            messages=messages,
            audio=True,
            voice=self._settings.voice,
            speed=1.0,
            max_output_tokens=None,
            out_of_band=False,
            tools=(),
            tool_choice="none",
            parallel_tool_calls=False,
        )

    def _close(self, reason: str, event_id: str | None) -> None:
        self._events.close(event_id, reason=reason, session=self._view, usage=self._usage)
        self.state = State.CLOSED


def _floor(at_ms: int) -> int:
    """`at_ms` on the grid."""
    return at_ms // GRID_MS * GRID_MS
