"""One client's Live session, without IO: continuous audio both ways, no turns and no items on the wire.

    WAITING --session.start--> ACTIVE --session.close, or the server's end--> CLOSED

Turns exist behind it: the engine says when the caller has spoken, and this machine asks for the answer, plays it out on
a grid of 200 ms (`beat`) and remembers of it what was played. Speech of the caller's ends what is being played.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Any

from protocol.codec import decode_audio
from protocol.commands import (
    CancelResponse,
    Command,
    CommitAudio,
    Configure,
    CreateResponse,
    Hangup,
    PushAudio,
    TokenLogprob,
    TurnDetectionSettings,
)
from protocol.errors import ProtocolError
from protocol.ids import IdFactory
from protocol.live import settings
from protocol.live.client_events import (
    AudioAppend,
    ContextAppend,
    LiveEvent,
    Plain,
    SessionStart,
    SessionUpdate,
    decode,
)
from protocol.live.history import History
from protocol.live.playout import GRID_MS, Playout, Said
from protocol.live.server_events import LiveEvents
from protocol.response import ResponseUsage
from protocol.session_config import SessionDefaults

_ALONE = "The model here answers by itself: delegation is accepted, and never used."
_USAGE_BEATS = 10_000 // GRID_MS
_TURNS = TurnDetectionSettings(eagerness="auto")  # a caller may think aloud and say "mm-hm"

_Outcome = list[Command] | ProtocolError


class State(enum.Enum):
    """How far the session has come."""

    WAITING = enum.auto()
    ACTIVE = enum.auto()
    CLOSED = enum.auto()


class LiveConnection:
    """Implements `protocol.facade.Facade`."""

    def __init__(
        self,
        *,
        session_id: str,
        model: str,
        defaults: SessionDefaults,
        ids: IdFactory,
        expires_at: int,
    ) -> None:
        self.state = State.WAITING
        self._about = {
            "id": session_id,
            "expires_at": expires_at,
            "model": model,
            "status": "active",
        }
        self._defaults = defaults
        self._ids = ids
        self._events = LiveEvents(ids)
        self._settings = settings.initial(defaults)
        self._playout = Playout(self._settings.rate)
        self._history = History(ids, defaults.max_items)
        self._answer: tuple[str, Said] | None = None  # being made: its response id
        self._spoke_from_ms = 0  # where the caller's turn began
        self._muted = False
        self._beats = 0  # since session.start

    # -- the client's side ---------------------------------------------------------

    def start(self) -> list[Command]:
        """Nothing is said before session.start."""
        return [self._configure()]

    def receive(self, text: str | bytes) -> list[Command]:
        """One message from the client. Never raises on client input."""
        event = decode(text)
        if isinstance(event, ProtocolError):
            self._events.error(event)
            return []
        outcome = self._refusal(event) or _HANDLERS[event.type](self, event)
        if isinstance(outcome, ProtocolError):
            self._events.error(outcome.about(event.event_id))
            return []
        return outcome

    def take_events(self) -> list[str]:
        return self._events.take()

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

    def _refusal(self, event: LiveEvent) -> ProtocolError | None:
        if self.state is State.WAITING and event.type != "session.start":
            return ProtocolError("session_not_started", "Send session.start first.")
        if self.state is not State.WAITING and event.type == "session.start":
            return ProtocolError("session_already_started", "The session has started already.")
        return None

    def _start(self, event: SessionStart) -> _Outcome:
        chosen = settings.started(event.session, self._defaults)
        if isinstance(chosen, ProtocolError):
            return chosen
        self._settings = chosen
        self._playout = Playout(chosen.rate)
        for message in event.session.input or ():
            self._history.add_initial(message)
        self.state = State.ACTIVE
        self._events.say("session.started", event.event_id, session=self._view)
        if event.session.delegation is not None:
            self._events.say("info", event.event_id, code="nothing_delegated", message=_ALONE)
        return [self._configure()]

    def _update(self, event: SessionUpdate) -> _Outcome:
        self._events.say("session.updated", event.event_id, session=self._view)
        return []

    def _append(self, event: AudioAppend) -> _Outcome:
        audio = decode_audio(event.audio, self._settings.format.sample_bytes)
        if isinstance(audio, ProtocolError):
            return audio
        return [PushAudio(self._settings.format.to_pcm(audio))] if audio and not self._muted else []

    def _mute(self, event: Plain) -> _Outcome:
        self._muted = event.type == "session.input_audio.mute"
        self._events.say(f"{event.type}d", event.event_id)
        return []

    def _add_context(self, event: ContextAppend) -> _Outcome:
        self._history.add("system", event.content)
        at = {"start_ms": self._now_ms, "end_ms": self._now_ms}
        self._events.say(f"{event.type}ed", event.event_id, **at)
        # Commentary is there to be said; the others wait for the caller.
        wants_voice = event.type == "session.commentary.append" and self._answer is None
        return [self._answer_now()] if wants_voice and not self._defaults.decides_turns else []

    def _close_requested(self, event: Plain) -> _Outcome:
        self._close("close_requested", event.event_id)
        return [Hangup(1000, "close_requested")]

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

    # -- shared ------------------------------------------------------------------------

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

    def _configure(self) -> Configure:
        chosen = self._settings
        return Configure(
            chosen.instructions, _TURNS, chosen.rate, None, (), voice=chosen.voice or ""
        )

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


_HANDLERS: dict[str, Callable[[LiveConnection, Any], _Outcome]] = {
    "session.start": LiveConnection._start,
    "session.update": LiveConnection._update,
    "session.input_audio.append": LiveConnection._append,
    "session.input_audio.mute": LiveConnection._mute,
    "session.input_audio.unmute": LiveConnection._mute,
    "session.instructions.append": LiveConnection._add_context,
    "session.thinking.append": LiveConnection._add_context,
    "session.commentary.append": LiveConnection._add_context,
    "session.close": LiveConnection._close_requested,
}
