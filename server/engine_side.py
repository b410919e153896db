"""The engine's side of one call: commands of the protocol go in, facts of the session come out.

Both run on the event loop and never wait. What a fact makes the protocol say is flushed to the call at once.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol

from engine.clock import Clock
from engine.engine import Engine
from engine.listener import CallPart, EndReason, Usage
from engine.session import Session
from engine.speech.loudness import to_pcm16
from engine.speech.ports import ScoredToken
from engine.speech.resample import Resampler
from protocol.commands import (
    CancelResponse,
    ClearAudio,
    Command,
    CommitAudio,
    Configure,
    CreateResponse,
    Hangup,
    PushAudio,
    ShowItem,
)
from protocol.facade import Facade
from server.metrics import EndedReason
from server.translate import logprob_of, request_of, setup_of, usage_of

P = ParamSpec("P")

_UNPROMPTED = ""  # stands for the response that a frame-locked model opens by itself


class Call(Protocol):
    """The connection, as far as its engine side needs it."""

    @property
    def is_ending(self) -> bool:
        """True once it is decided how the call ends: nothing new may begin."""
        ...

    def flush(self, audio_s: float = 0.0) -> None:
        """Send what the protocol has to say; it carries `audio_s` seconds of audio."""
        ...

    def became_silent(self) -> None:
        """No answer is in progress any more."""
        ...

    def hang_up(self, code: int, reason: str, ended: EndedReason) -> None: ...

    def crashed(self) -> None:
        """Our mistake, being handled: end this call and no other."""
        ...


def _contained(
    method: Callable[Concatenate["EngineSide", P], None],
) -> Callable[Concatenate["EngineSide", P], None]:
    """Keeps a failure of ours inside the connection it happened in: the caller is the engine's loop."""

    @functools.wraps(method)
    def call(self: "EngineSide", /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception:  # noqa: BLE001  # the connection boundary, as the engine meets it
            self.call.crashed()

    return call


class EngineSide:
    """Implements `engine.listener.SessionListener`."""

    def __init__(self, call: Call, protocol: Facade, engine: Engine, clock: Clock) -> None:
        self.call = call
        self._protocol = protocol
        self._engine = engine
        self._clock = clock
        self._rate = engine.model.spec.output_rate
        # Of what a frame-locked model is saying now, on the wire.
        self._wire_rate = self._rate
        # Towards another rate on the wire (G.711), by response.
        self._wire_audio: dict[str, Resampler] = {}
        # Seconds of playback per byte of the model's pcm16.
        self._s_per_byte = 1 / (2 * self._rate)
        # None before `open`.
        self._session: Session | None = None
        # Responses asked for and not ended. A frame-locked model opens and ends its own.
        self._answering: set[str] = set()
        # A frame-locked model is producing output.
        self._speaking = False

    def open(self, session_id: str) -> None:
        """Start the protocol and the session behind it."""
        first, *rest = self._protocol.start()
        assert isinstance(first, Configure), first
        self._session = self._engine.open(session_id, setup_of(first), self)
        self.act(rest)

    def act(self, commands: Iterable[Command]) -> None:
        """Carry out commands, then send what came of them."""
        for command in commands:
            if self.call.is_ending:
                break
            session = self._session
            assert session is not None, command
            _CARRY[type(command)](self, session, command)
        self.call.flush()

    @property
    def is_answering(self) -> bool:
        """True while a reply is in progress."""
        return self._speaking or bool(self._answering)

    # -- commands ------------------------------------------------------------------

    def hear(self, command: PushAudio) -> None:
        """Carry out the commonest command, alone; nothing but a refusal comes of it."""
        session = self._session
        assert session is not None, command
        refused = session.push_audio(command.pcm, self._clock.now())
        if refused is not None:
            self._protocol.error(
                "input_audio_buffer_full",
                f"More than {refused.limit_s:g} s of audio would be waiting to be heard, so this "
                "append was refused whole. Send audio more slowly.",
                type="invalid_request_error",
            )
            self.call.flush()

    def _push(self, session: Session, command: PushAudio) -> None:
        self.hear(command)

    def _configure(self, session: Session, command: Configure) -> None:
        session.configure(setup_of(command))

    def _commit(self, session: Session, command: CommitAudio) -> None:
        if not session.commit(command.item_id):
            self.transcription_failed(
                command.item_id, "Too many turns are waiting to be transcribed."
            )

    def _clear(self, session: Session, command: ClearAudio) -> None:
        session.clear_audio()

    def _show(self, session: Session, command: ShowItem) -> None:
        session.show(command.item_id, command.content)

    def _respond(self, session: Session, command: CreateResponse) -> None:
        if not self._engine.model.spec.decides_turns:
            self._answering.add(command.response_id)
        session.respond(request_of(command))

    def _cancel(self, session: Session, command: CancelResponse) -> None:
        session.cancel(command.response_id)
        self._ended(command.response_id)

    def _hangup(self, session: Session, command: Hangup) -> None:
        self.call.flush()
        self.call.hang_up(command.code, command.reason, "protocol")

    def _ended(self, response_id: str) -> None:
        self._answering.discard(response_id)
        self._wire_audio.pop(response_id, None)
        self._speaking = False
        if not self._answering:
            self.call.became_silent()

    # -- facts -------------------------------------------------------------------------

    @_contained
    def speech_started(self, audio_ms: int) -> None:
        self.act(self._protocol.speech_started(audio_ms))

    @_contained
    def speech_stopped(self, audio_ms: int) -> None:
        self.act(self._protocol.speech_stopped(audio_ms))

    @_contained
    def idle_timeout(self, start_ms: int, end_ms: int) -> None:
        self.act(self._protocol.idle_timeout(start_ms, end_ms))

    @_contained
    def transcribed(
        self, item_id: str, text: str, seconds: float, tokens: Sequence[ScoredToken] = ()
    ) -> None:
        scores = tuple(logprob_of(token) for token in tokens)
        self.act(self._protocol.transcribed(item_id, text, seconds, scores))

    @_contained
    def transcription_failed(self, item_id: str, message: str) -> None:
        self.act(self._protocol.transcription_failed(item_id, message))

    @_contained
    def image_failed(self, item_id: str, message: str) -> None:
        self._protocol.error(
            "invalid_image", f"Item '{item_id}': {message}", type="invalid_request_error"
        )
        self.call.flush()

    @_contained
    def response_text(self, response_id: str, text: str) -> None:
        self._protocol.response_text(response_id, text)
        self.call.flush()

    @_contained
    def response_audio(self, response_id: str, pcm: bytes) -> None:
        self._protocol.response_audio(response_id, self._wired(response_id, pcm))
        self.call.flush(len(pcm) * self._s_per_byte)

    @_contained
    def function_call(self, response_id: str, part: CallPart) -> None:
        self._protocol.response_call(
            response_id, part.index, part.name, part.arguments, done=part.done
        )
        self.call.flush()

    @_contained
    def response_ended(
        self, response_id: str, reason: EndReason, usage: Usage, error: str | None
    ) -> None:
        self.act(self._protocol.response_ended(response_id, reason, usage_of(usage), error))
        self._ended(response_id)

    def spoke(self, pcm: bytes, text: str) -> None:
        """Every tick: so `_contained` is written out, and the wire's rate is asked for once per response."""
        try:
            if not self._speaking:
                self._speaking = True
                self._wire_rate = self._protocol.output_rate(_UNPROMPTED)
            if self._wire_rate != self._rate:
                self._protocol.spoke(self._wired(_UNPROMPTED, pcm), text)
            else:
                self._protocol.spoke(pcm, text)
            self.call.flush(len(pcm) * self._s_per_byte)
        except Exception:  # noqa: BLE001  # the connection boundary, as the engine meets it
            self.call.crashed()

    @_contained
    def fell_silent(self) -> None:
        self._wire_audio.pop(_UNPROMPTED, None)
        self._protocol.fell_silent()
        self.call.flush()
        self._speaking = False
        if not self._answering:
            self.call.became_silent()

    @_contained
    def failed(self, code: str, message: str) -> None:
        self._protocol.error(code, message)
        self.call.flush()
        self.call.hang_up(1011, message, "engine")

    def _wired(self, response_id: str, pcm: bytes) -> bytes:
        """The model's audio at the rate that the wire's format has: the same, but for G.711."""
        rate = self._protocol.output_rate(response_id)
        if rate == self._rate:
            return pcm
        if response_id not in self._wire_audio:
            self._wire_audio[response_id] = Resampler(self._rate, rate)
        return to_pcm16(self._wire_audio[response_id].push(pcm))


_CARRY: dict[type[Any], Callable[[EngineSide, Session, Any], None]] = {
    PushAudio: EngineSide._push,
    Configure: EngineSide._configure,
    CommitAudio: EngineSide._commit,
    ClearAudio: EngineSide._clear,
    ShowItem: EngineSide._show,
    CreateResponse: EngineSide._respond,
    CancelResponse: EngineSide._cancel,
    Hangup: EngineSide._hangup,
}
