"""A turn that nobody hears: it loads every lazy part and shows whether this machine meets its budget."""

import asyncio
from collections.abc import Sequence

from engine.clock import Clock
from engine.engine import Engine
from engine.listener import CallPart, EndReason, Usage
from engine.models.base import Message, SessionSetup
from engine.observer import Observer, StepStats, TickStats, TurnStats
from engine.response import ResponseRequest
from engine.speech.ports import ScoredToken

_SESSION_ID = "sess_warm_up"
_HEARD_S = 1.0  # silence to listen to
_TICKS = 4  # of a frame-locked model
_GIVE_UP_S = 120.0


class WarmUpFailed(RuntimeError):
    """The turn did not come to its end."""


class Muted:
    """An observer that passes everything on once `on` is set: the warm-up is nobody's latency."""

    def __init__(self, observer: Observer) -> None:
        self.on = False
        self._observer = observer

    def tick(self, stats: TickStats) -> None:
        if self.on:
            self._observer.tick(stats)

    def served(self, stats: TickStats) -> None:
        if self.on:
            self._observer.served(stats)

    def step(self, stats: StepStats) -> None:
        if self.on:
            self._observer.step(stats)

    def turn(self, stats: TurnStats) -> None:
        if self.on:
            self._observer.turn(stats)


async def warm_up(engine: Engine, clock: Clock, voice: str) -> float:
    """Hold one turn with the engine; seconds from the request to its first output.

    Raises:
        WarmUpFailed: it failed, or took two minutes.
    """
    listener = _Listener(clock)
    session = engine.open(_SESSION_ID, SessionSetup(), listener)
    spec = engine.model.spec
    try:
        async with asyncio.timeout(_GIVE_UP_S):
            if spec.decides_turns:
                frames_s = _TICKS * spec.tick_ms / 1000
                started_at = clock.now()
                session.push_audio(bytes(2 * int(spec.input_rate * frames_s)), started_at)
                while session.ledger.owed < _TICKS:
                    listener.check()
                    await clock.sleep_until(clock.now() + spec.tick_ms / 1000)
                return (clock.now() - started_at) / _TICKS
            session.push_audio(bytes(2 * int(spec.input_rate * _HEARD_S)), clock.now())
            session.commit("item_heard")
            await listener.transcribed_or_not.wait()
            started_at = clock.now()
            session.respond(_request(voice))
            # Not to its end: an answer is spoken in real time.
            await listener.answered.wait()
    except TimeoutError:
        raise WarmUpFailed(f"no answer after {_GIVE_UP_S:g} s") from None
    finally:
        engine.close(_SESSION_ID)
    listener.check()
    if listener.first_output_at is None:
        raise WarmUpFailed("it was answered with nothing")
    return listener.first_output_at - started_at


def _request(voice: str) -> ResponseRequest:
    return ResponseRequest(
        response_id="resp_warm_up",
        instructions="",
        messages=(Message("user", "Please say hello.", "item_asked"),),
        voice=voice,
        max_output_tokens=24,
    )


class _Listener:
    """Waits for the ends of things. Implements `engine.listener.SessionListener`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.transcribed_or_not = asyncio.Event()
        self.answered = asyncio.Event()
        # None until there is any.
        self.first_output_at: float | None = None
        # Why it failed; None while it has not.
        self._trouble: str | None = None

    def check(self) -> None:
        """Raises WarmUpFailed."""
        if self._trouble is not None:
            raise WarmUpFailed(self._trouble)

    def speech_started(self, audio_ms: int) -> None: ...
    def speech_stopped(self, audio_ms: int) -> None: ...
    def idle_timeout(self, start_ms: int, end_ms: int) -> None: ...

    def transcribed(
        self, item_id: str, text: str, seconds: float, tokens: Sequence[ScoredToken] = ()
    ) -> None:
        self.transcribed_or_not.set()

    def transcription_failed(self, item_id: str, message: str) -> None:
        self.transcribed_or_not.set()

    def image_failed(self, item_id: str, message: str) -> None: ...

    def response_text(self, response_id: str, text: str) -> None: ...

    def function_call(self, response_id: str, part: CallPart) -> None: ...

    def response_audio(self, response_id: str, pcm: bytes) -> None:
        if self.first_output_at is None:
            self.first_output_at = self._clock.now()
            self.answered.set()

    def response_ended(
        self, response_id: str, reason: EndReason, usage: Usage, error: str | None
    ) -> None:
        self._trouble = error
        self.answered.set()

    def spoke(self, pcm: bytes, text: str) -> None: ...
    def fell_silent(self) -> None: ...

    def failed(self, code: str, message: str) -> None:
        self._trouble = f"{code}: {message}"
        self.transcribed_or_not.set()
        self.answered.set()
