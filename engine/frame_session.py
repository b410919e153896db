"""A call with a frame-locked model: each tick of audio enters the context and a tick of output comes back."""

from engine.inbox import ClearMark, CommitMark
from engine.lane import FrameLane, Mirror
from engine.models.base import Heard, TickOutput
from engine.response import ResponseRequest
from engine.session import Call, Session
from engine.work import Frame, TokenChunk


class FrameSession(Session):
    """One frame at a time: heard, fed, decoded, delivered; the next one waits in the inbox meanwhile."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._lane = FrameLane(call.session_id, call.parts.stepper, call.parts.limits)
        self._speaking = False
        self._tokens: tuple[int, ...] = ()  # of the frame being decoded
        self._pcm = b""  # that came with them
        self._heard_at = self._first_at = 0.0  # of that frame: heard, and its first token there

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
            self.listener.spoke(output.pcm, output.text)
        elif self._speaking:
            self._speaking = False
            self.listener.fell_silent()

    def _count(self, frame: Frame) -> None:
        """The frame's output has left: its latency ends here."""
        now, sent_at = self._parts.clock.now(), self._lane.sent_at
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
        """Commits and clears do not move a model that hears every frame; see docs on full duplex."""

    def respond(self, request: ResponseRequest) -> None:
        """The model speaks when it decides to; a request is no more than a nudge it does not feel yet."""

    def cancel(self, response_id: str) -> None:
        """What is cancelled is what the client hears; the model goes on, and its silence is still told."""

    @property
    def mirror(self) -> Mirror:
        return self._lane.context

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self._lane.close()
