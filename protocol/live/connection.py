"""One client's Live session, without IO: continuous audio both ways, no turns and no items on the wire.

    WAITING --session.start--> ACTIVE --session.close, or the server's end--> CLOSED

What the engine reports, and what is played, is the base's (`talk`).
"""

from collections.abc import Callable
from typing import Any

from protocol.codec import decode_audio
from protocol.commands import (
    Command,
    Configure,
    Hangup,
    PushAudio,
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
from protocol.live.playout import Playout
from protocol.live.talk import State, Talk
from protocol.session_config import SessionDefaults

_ALONE = "The model here answers by itself: delegation is accepted, and never used."
_TURNS = TurnDetectionSettings(eagerness="auto")  # a caller may think aloud and say "mm-hm"

_Outcome = list[Command] | ProtocolError


class LiveConnection(Talk):
    """The client's side of a Live session. Implements `protocol.facade.Facade`."""

    def __init__(
        self,
        *,
        session_id: str,
        model: str,
        defaults: SessionDefaults,
        ids: IdFactory,
        expires_at: int,
    ) -> None:
        about = {"id": session_id, "expires_at": expires_at, "model": model, "status": "active"}
        super().__init__(defaults, ids, about)
        self._muted = False

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

    # -- shared ------------------------------------------------------------------------

    def _configure(self) -> Configure:
        chosen = self._settings
        return Configure(
            chosen.instructions, _TURNS, chosen.rate, None, (), voice=chosen.voice or ""
        )


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
