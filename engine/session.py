"""One call, as the engine sees it: an inbox that is heard in order, and whatever the model makes of it.

Everything here runs on the event loop. `TurnSession` serves turn-based models (listen, then answer); `FrameSession`
serves frame-locked ones (every tick in, every tick out).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from engine.framer import Framer
from engine.grid import TickGrid
from engine.inbox import ClearMark, CommitMark, FrameInbox, Refused
from engine.lane import Mirror
from engine.listener import SessionListener
from engine.models.base import AudioChunk, Heard, SessionSetup
from engine.observer import TickKind, TickStats
from engine.response import ResponseRequest
from engine.settings import Parts
from engine.showing import Showing, Sight
from engine.slo import TickLedger
from engine.spawn import Spawn
from engine.work import Frame


class Hearer(Protocol):
    """What the ear hears frame by frame: a session, or what listens beside one."""

    id: str
    state: Any
    closed: bool

    def next_frame(self) -> Frame | None: ...
    def heard(self, frame: Frame, heard: Heard, now: float) -> None: ...
    def fail(self, code: str, message: str) -> None: ...


class EarPort(Protocol):
    """Where it is said that there is something to hear."""

    def ready(self, session: Hearer) -> None: ...


@dataclass(frozen=True, slots=True)
class Call:
    """What a session is opened with."""

    session_id: str
    setup: SessionSetup
    listener: SessionListener
    parts: Parts
    ear: EarPort
    spawn: Spawn
    side_ear: EarPort | None = None  # hears beside a frame-locked model


class Session(ABC):
    """The ear's side of a call. `spawn` runs a job under the engine; a job that breaks fails this session only."""

    def __init__(self, call: Call) -> None:
        parts, setup = call.parts, call.setup
        spec = parts.model.spec
        self.id = call.session_id
        self.setup = setup
        self.listener = call.listener
        self.state = parts.model.open(setup)  # the model's own
        self.closed = False
        self.ledger = TickLedger()
        self._parts = parts
        self._ear = call.ear
        self._spawn = call.spawn
        self._framer = Framer(setup.input_rate * spec.tick_ms // 1000 * 2)
        self._grid = TickGrid(spec.tick_ms / 1000)
        self._inbox = FrameInbox(
            int(parts.settings.inbox_s * setup.input_rate) * 2, drop_oldest=spec.decides_turns
        )
        self._showing = Showing(parts.pool, cast(Sight, parts.model), self._saw, self._unseen)
        self._seq = 0
        self._new_setup: SessionSetup | None = None  # applied between two frames
        self._counted = -1  # newest frame already judged late while it waited
        self._hearing: Frame | None = None  # being heard now
        self._served_at = parts.clock.now()  # when a tick last had what it was owed
        self._alarm: tuple[float, Callable[[], None]] | None = (
            None  # rung by the first beat from then on
        )
        self._kind: TickKind = "frame" if spec.decides_turns else "listen"

    # -- the caller's side ---------------------------------------------------

    def push_audio(self, pcm: bytes, now: float) -> Refused | None:
        """Caller audio that arrived at `now`: mono pcm16 at the session's input rate."""
        if self.closed:
            return None
        if not self._inbox.has_room(len(pcm)):
            return Refused(self._parts.settings.inbox_s)
        for piece in self._framer.push(pcm):
            self._put(piece, now)
        if self._hearing is None and self._inbox.head() is not None:
            self._ear.ready(self)
        return None

    def configure(self, setup: SessionSetup) -> None:
        """New settings, from the next frame on."""
        self._new_setup = setup
        self._ear.ready(self)

    def commit(self, item_id: str) -> bool:
        """All audio pushed so far becomes the user item `item_id`. False: too many commits wait."""
        self._flush()
        return self._mark(CommitMark(item_id))

    def clear_audio(self) -> None:
        """Forget what was pushed since the last commit."""
        self._framer.flush()
        self._mark(ClearMark())

    def show(self, item_id: str, content: Sequence[str | bytes]) -> None:
        """The caller shows the item `item_id`: words and image files. Only for models that see."""
        self._spawn(self.id, self._showing.look(item_id, content))

    def _saw(self, item_id: str, content: AudioChunk) -> None:
        """What is shown has become tokens. Here: of a frame-locked model, which has it in its next ticks."""
        if not self.closed:
            cast(Sight, self._parts.model).show(self.state, content)

    def _unseen(self, item_id: str, message: str) -> None:
        if not self.closed:
            self.listener.image_failed(item_id, message)

    @abstractmethod
    def respond(self, request: ResponseRequest) -> None:
        """Answer."""

    @abstractmethod
    def cancel(self, response_id: str) -> None:
        """Stop an answer; nothing of it follows."""

    def _mark(self, mark: CommitMark | ClearMark) -> bool:
        taken = self._inbox.mark(mark)
        self._ear.ready(self)
        return taken

    def _flush(self) -> None:
        rest = self._framer.flush()
        if rest:
            self._put(rest, self._parts.clock.now())

    def _put(self, pcm: bytes, now: float) -> None:
        frame = Frame(self._seq, pcm, now, self._grid.place(now))
        self._seq += 1
        for gone in self._inbox.put(frame):
            self._dropped(gone, now)

    # -- the ear's side ------------------------------------------------------

    def next_frame(self) -> Frame | None:
        """Take the next frame to hear, applying settings and marks on the way; None if there is none."""
        if self._hearing is not None or self.closed:
            return None
        if self._new_setup is not None:
            self._apply(self._new_setup)
            self._new_setup = None
        while (entry := self._inbox.head()) is not None:
            self._inbox.pop()
            if isinstance(entry, Frame):
                self._hearing = entry
                return entry
            self._met(entry)
        return None

    def heard(self, frame: Frame, heard: Heard, now: float) -> None:
        """The model has consumed `frame`."""
        self._hearing = None
        self._served(frame, now, (now - frame.ready_at,))
        self._act(heard)
        if self._inbox.head() is not None:
            self._ear.ready(self)

    def _apply(self, setup: SessionSetup) -> None:
        if setup.input_rate != self.setup.input_rate:
            self._framer = Framer(setup.input_rate * self._parts.model.spec.tick_ms // 1000 * 2)
        self.setup = setup
        self._parts.model.configure(self.state, setup)

    @abstractmethod
    def _met(self, mark: CommitMark | ClearMark) -> None:
        """A mark has come to the head of the inbox."""

    @abstractmethod
    def _act(self, heard: Heard) -> None:
        """Do what hearing led to."""

    # -- time ----------------------------------------------------------------

    def beat(self, now: float, period_s: float) -> None:
        """Once per tick: count what is overdue as missed now, not when it is served at last."""
        if self._alarm is not None and now >= self._alarm[0]:
            ring, self._alarm = self._alarm[1], None
            ring()
        self._count_overdue(self._hearing, now)
        for frame in self._inbox.frames():
            if not self._count_overdue(frame, now):
                break

    def _count_overdue(self, frame: Frame | None, now: float) -> bool:
        if frame is None or frame.deadline >= now:
            return False
        if frame.seq > self._counted:
            self._counted = frame.seq
            self._parts.observer.tick(
                self.ledger.record(self._kind, "late", frame.ready_at, now, frame.deadline)
            )
        return True

    def _served(self, frame: Frame, now: float, stages: tuple[float, ...]) -> None:
        """The frame has had what it was owed, by now."""
        self._served_at = now
        observer = self._parts.observer
        if frame.seq > self._counted:
            observer.tick(
                self.ledger.judge(
                    self._kind, frame.ready_at, now, frame.deadline, fresh=True, stages=stages
                )
            )
        else:
            late = TickStats(self._kind, "late", frame.ready_at, now, frame.deadline, stages=stages)
            observer.served(late)

    def _dropped(self, frame: Frame, now: float) -> None:
        """Nobody will hear this frame."""
        if frame.seq > self._counted:
            self._counted = frame.seq
            self._parts.observer.tick(
                self.ledger.record(self._kind, "dropped", frame.ready_at, now, frame.deadline)
            )

    @property
    def _waiting(self) -> Frame | None:
        """The oldest audio that was not heard to its end."""
        return self._hearing or next(self._inbox.frames(), None)

    def is_owed(self, now: float) -> bool:
        """True while this call waits for the engine: an answer, or audio past its deadline."""
        waiting = self._waiting
        return self.answering or (waiting is not None and waiting.deadline < now)

    def owed_since(self, now: float) -> float | None:
        """Since when what a tick owes has been missing; None while nothing is overdue."""
        waiting = self._waiting
        if waiting is None or waiting.deadline >= now:
            return None
        return max(self._served_at, waiting.deadline - self._grid.period_s)

    def staleness_s(self, now: float) -> float:
        """Age of the newest audio that the model has heard, while newer audio waits; else 0.

        The oldest frame that waits began a tick before its last byte came: there what was heard ends.
        """
        waiting = self._waiting
        return 0.0 if waiting is None else now - waiting.ready_at + self._grid.period_s

    @property
    @abstractmethod
    def mirror(self) -> Mirror:
        """Of the resident context."""

    @property
    def answering(self) -> bool:
        """True while a reply is under way."""
        return False

    def fail(self, code: str, message: str) -> None:
        """The engine lost this session."""
        if self.closed:
            return
        now = self._parts.clock.now()
        for frame in (self._hearing, *self._inbox.frames()):
            if frame is not None:
                self._dropped(frame, now)
        self.close()
        self.listener.failed(code, message)

    def close(self) -> None:
        """Stop everything; the context is freed with the next step. Idempotent."""
        self.closed = True
        self._inbox.clear()
