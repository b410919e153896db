"""One client's Realtime session, without IO: client events and engine facts in, commands and server events out.

    client text ──receive──▶ codec ──▶ handler of the table below ──▶ commands for the engine
    engine fact ──method of that name (turn_taking)──────────────────▶ server events, taken by take_events

Nothing here waits, reads a clock or raises on what a client sends. A client's mistake becomes one `error` event that
names the client event, and changes nothing else.
"""

from collections.abc import Callable
from typing import Any

from protocol import session_config
from protocol.client_events import (
    SUPPORTED_CLIENT_EVENTS,
    AudioAppend,
    AudioClear,
    AudioCommit,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    OutputClear,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
)
from protocol.codec import decode, decode_audio
from protocol.commands import ClearAudio, Command, PushAudio, ShowItem
from protocol.errors import ProtocolError
from protocol.ids import IdFactory
from protocol.response import Ending
from protocol.response_options import OptionsReader
from protocol.session_config import SessionConfig, SessionDefaults
from protocol.session_view import client_view, engine_view
from protocol.turn_taking import TurnTaking

__all__ = ["SUPPORTED_CLIENT_EVENTS", "RealtimeConnection"]

_Outcome = list[Command] | ProtocolError

_CLIENT_CANCELLED = Ending("cancelled", "client_cancelled")


class RealtimeConnection(TurnTaking):
    """The protocol state of one session: the client's side here, the engine's in the base."""

    def __init__(
        self,
        *,
        session_id: str,
        model: str,
        defaults: SessionDefaults,
        ids: IdFactory,
        expires_at: int | None,
        config: SessionConfig | None = None,
    ) -> None:
        super().__init__(defaults, ids)
        if config is not None:  # what the session starts with, instead of the defaults
            self._config = config
        self._session_id = session_id
        self._model = model
        # Unix seconds, shown to the client; None: the session has no end.
        self._expires_at = expires_at
        self._options = OptionsReader(defaults, self._conversation, ids)

    # -- the client's side -----------------------------------------------------------------------

    def start(self) -> list[Command]:
        """The first event, before anything is read, and the settings the engine starts with."""
        self._events.session_created(self._view())
        return [engine_view(self._config)]

    def receive(self, text: str | bytes) -> list[Command]:
        """One message from the client. Never raises on client input."""
        event = decode(text)
        if isinstance(event, ProtocolError):
            self._events.error(event)
            return []
        outcome = _HANDLERS[event.__class__](self, event)
        if isinstance(outcome, ProtocolError):
            self._events.error(outcome.about(event.event_id))
            return []
        return outcome

    def take_events(self) -> list[str]:
        """JSON texts for the socket, in order; clears the queue."""
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
        """Queue an `error` event that has its cause outside this machine."""
        self._events.error(ProtocolError(code, message, param, event_id, type))

    def output_rate(self, response_id: str) -> int:
        """Rate in Hz of the pcm16 that an answer takes: 24,000, or 8,000 where its format is G.711.

        An id that names no answer under way stands for a frame-locked model's own: the one it is giving or the next.
        """
        response = self._responses.find(response_id) or self._responses.active
        audio_format = self._config.output_format if response is None else response.options.format
        return audio_format.rate

    def _append(self, event: AudioAppend) -> _Outcome:
        audio_format = self._config.input_format
        audio = decode_audio(event.audio, audio_format.sample_bytes)
        if isinstance(audio, ProtocolError):
            return audio
        if not audio:
            return []
        self._caller.append(audio, audio_format)
        return [PushAudio(audio_format.to_pcm(audio))]

    def _commit(self, _: AudioCommit) -> _Outcome:
        refusal = self._caller.commit_refusal()
        return refusal if refusal is not None else self._commit_turn()

    def _clear(self, _: AudioClear) -> _Outcome:
        self._caller.clear()
        self._events.cleared()
        return [ClearAudio()]

    def _clear_output(self, _: OutputClear) -> _Outcome:
        return []  # the client holds the playback buffer on a WebSocket

    def _update(self, event: SessionUpdate) -> _Outcome:
        config = session_config.merged(
            self._config, event.session, self._defaults, voice_locked=self._responses.has_spoken
        )
        if isinstance(config, ProtocolError):
            return config
        self._config = config
        self._events.session_updated(self._view())
        return [engine_view(config)]

    def _create_item(self, event: ItemCreate) -> _Outcome:
        answering = self._responses.active is not None
        new = self._items.create(
            event,
            reserved_id=self._caller.item_id,
            answering=answering,
            sees=self._defaults.sees_images,
        )
        if isinstance(new, ProtocolError):
            return new
        return [ShowItem(new.item.id, new.shown)] if new.shown else []

    def _delete_item(self, event: ItemDelete) -> _Outcome:
        return self._items.delete(event) or []

    def _retrieve_item(self, event: ItemRetrieve) -> _Outcome:
        return self._items.retrieve(event, self._config) or []

    def _truncate_item(self, event: ItemTruncate) -> _Outcome:
        return self._items.truncate(event) or []

    def _create_response(self, event: ResponseCreate) -> _Outcome:
        if self._config.type == "transcription":
            return ProtocolError("invalid_value", "A transcription session gives no responses.")
        options = self._options.read(event.response, self._config)
        if isinstance(options, ProtocolError):
            return options
        refusal = self._responses.refusal(options)
        return refusal if refusal is not None else self._answer(options)

    def _cancel_response(self, event: ResponseCancel) -> _Outcome:
        response = self._responses.active
        if event.response_id is not None:
            response = self._responses.find(event.response_id)
        if response is None:
            return ProtocolError(
                "response_cancel_not_active", "Cancellation failed: no active response found"
            )
        if (
            self._defaults.decides_turns
            and response.is_written
            and not response.options.out_of_band
        ):
            self._is_hushed = True  # the model does not know and speaks on
        return self._cancel(response, _CLIENT_CANCELLED)

    def _view(self) -> dict[str, Any]:
        return client_view(self._config, self._session_id, self._model, self._expires_at)


_HANDLERS: dict[type, Callable[[RealtimeConnection, Any], _Outcome]] = {
    SessionUpdate: RealtimeConnection._update,
    AudioAppend: RealtimeConnection._append,
    AudioCommit: RealtimeConnection._commit,
    AudioClear: RealtimeConnection._clear,
    OutputClear: RealtimeConnection._clear_output,
    ItemCreate: RealtimeConnection._create_item,
    ItemDelete: RealtimeConnection._delete_item,
    ItemRetrieve: RealtimeConnection._retrieve_item,
    ItemTruncate: RealtimeConnection._truncate_item,
    ResponseCreate: RealtimeConnection._create_response,
    ResponseCancel: RealtimeConnection._cancel_response,
}
