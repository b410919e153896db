"""A call with a frame-locked model: each tick of audio enters the context and a tick of output comes back.

A call that is behind in a full house leaves out ticks that cannot be in time any more (staleness.py).
"""

import functools

from engine.bystander import NO_TRANSCRIBER
from engine.inbox import ClearMark, CommitMark, Refused
from engine.lane import FrameLane, Mirror
from engine.listener import Usage
from engine.models.base import Heard, SessionSetup, TickOutput
from engine.overhearing import overhearing
from engine.response import ResponseRequest
from engine.session import Call, Session
from engine.staleness import TickTimes
from engine.work import Frame, TokenChunk

_ONE_CONVERSATION = "A full-duplex model speaks in its conversation only."


class FrameSession(Session):
    """One frame at a time: heard, fed, decoded, delivered; the next one waits in the inbox meanwhile."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._lane = FrameLane(call.session_id, call.parts.stepper, call.parts.limits)
        self._speaking = False
        self._tokens: tuple[int, ...] = ()  # of the frame being decoded
        self._pcm = b""  # that came with them
        self._heard_at = self._first_at = 0.0  # of that frame: heard, and its first token there
        self._sounds = False  # something was told that no silence has followed
        self._hushed = False  # what sounds now was cancelled, and is no answer to anything
        self._nudge: str | None = None  # a response that waits for it to speak, until the alarm
        self._beside = overhearing(call, self.fail)
        self._skips = call.parts.settings.skip_late_ticks and not call.parts.model.spec.transcribes
        self._times = TickTimes(self._grid.period_s)
        self._begun_at = 0.0  # when the frame being heard was taken

    # -- what is told of the caller, beside the model ----------------------------

    def push_audio(self, pcm: bytes, now: float) -> Refused | None:
        refused = super().push_audio(pcm, now)
        if self._beside is not None and not self.closed:
            self._beside.push(pcm, now)
        return refused

    def configure(self, setup: SessionSetup) -> None:
        super().configure(setup)
        if self._beside is not None:
            self._beside.configure(setup)

    def commit(self, item_id: str) -> bool:
        """The model hears every frame in its time and is not moved; its caller's words are what an item is about."""
        if self._beside is not None:
            return self._beside.commit(item_id, self._parts.clock.now())
        self.listener.transcription_failed(item_id, NO_TRANSCRIBER)
        return True

    def clear_audio(self) -> None:
        if self._beside is not None:
            self._beside.clear()

    # -- the model's ticks --------------------------------------------------------

    def next_frame(self) -> Frame | None:
        now = self._parts.clock.now()
        if self._skips and self._hearing is None and not self.closed:
            self._skip_hopeless(now)
        frame = super().next_frame()
        if frame is not None:
            self._begun_at = now
        return frame

    def _skip_hopeless(self, now: float) -> None:
        """Drop the frames that wait in vain."""
        while (frame := next(self._inbox.frames(), None)) is not None:
            if not self._times.is_hopeless(now - frame.deadline + self._grid.period_s):
                return
            self._inbox.pop()
            self._times.left_out()
            self._dropped(frame, now)

    def heard(self, frame: Frame, heard: Heard, now: float) -> None:
        chunk = heard.chunk
        if chunk is None or self.closed:
            super().heard(frame, heard, now)
        else:
            self._tokens, self._pcm = (), b""
            self._heard_at = now
            self._lane.feed(chunk, frame.deadline, self._take)

    def _take(self, chunk: TokenChunk, now: float) -> None:
        if chunk.error is not None:
            self.fail("engine_unavailable", chunk.error)
            return
        if not self._tokens:
            self._first_at = now
        self._tokens += chunk.token_ids
        self._pcm += chunk.pcm
        if not chunk.finished:
            return
        frame, self._hearing = self._hearing, None
        assert frame is not None, self.id
        output = self._parts.model.decode(self.state, self._tokens, self._pcm)
        self._deliver(output)
        self._count(frame)
        if self._inbox.head() is not None:
            self._ear.ready(self)

    def _deliver(self, output: TickOutput) -> None:
        if output.speaking:
            self._speaking = True
            if self._sounds and self._nudge is None:  # as nearly every tick: it just goes on
                self.listener.spoke(output.pcm, output.text)
            else:
                self._spoke(output.pcm, output.text)
        elif self._speaking:
            self._speaking = False
            self._fell_silent()

    def _spoke(self, pcm: bytes, text: str) -> None:
        if not self._sounds:
            self._sounds = True
            if self._beside is not None:
                self._beside.began()
        if not self._hushed:
            self._nudge = self._alarm = (
                None  # it speaks: that is the answer, and silence will end it
            )
        self.listener.spoke(pcm, text)

    def _fell_silent(self) -> None:
        self._sounds = self._hushed = False
        if self._beside is not None:
            self._beside.ended()
        self.listener.fell_silent()

    def _count(self, frame: Frame) -> None:
        """The frame's output has left: its latency ends here."""
        now, sent_at = self._parts.clock.now(), self._lane.sent_at
        self._times.took(now - self._begun_at)
        stages = (
            self._heard_at - frame.ready_at,
            sent_at - self._heard_at,
            self._first_at - sent_at,
            now - self._first_at,
        )
        self._served(frame, now, stages)

    def _act(self, heard: Heard) -> None:
        """A frame without a chunk: the model only listened."""

    def _met(self, mark: CommitMark | ClearMark) -> None:
        """None is ever put into the model's own inbox."""

    # -- answers that were asked for ---------------------------------------------

    def respond(self, request: ResponseRequest) -> None:
        """The model speaks when it decides to; a request is a nudge, and over after a while if nothing comes of it."""
        if request.out_of_band:
            self.listener.response_ended(request.response_id, "failed", Usage(), _ONE_CONVERSATION)
            return
        self._nudge = request.response_id
        until = self._parts.clock.now() + self._parts.settings.nudge_s
        self._alarm = until, functools.partial(self._unanswered, request.response_id)
        self._parts.model.begin(self.state)

    def _unanswered(self, response_id: str) -> None:
        self._nudge = None
        self.listener.response_ended(response_id, "completed", Usage(), None)

    def cancel(self, response_id: str) -> None:
        """What is cancelled is what the client hears; the model goes on, and its silence is still told."""
        if self._nudge == response_id:
            self._nudge = self._alarm = None
        else:
            self._hushed = self._sounds

    @property
    def mirror(self) -> Mirror:
        return self._lane.context

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self._lane.close()
        if self._beside is not None:
            self._beside.close()
