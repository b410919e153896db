"""What the engine reports about time. One observer is wired in by the server: metrics and admission read from it."""

from typing import Literal, Protocol, get_args

import msgspec

from engine.work import KvSnapshot

TickKind = Literal[
    "listen", "speak", "frame"
]  # cascade hearing · cascade answering · frame-locked model
Outcome = Literal["on_time", "late", "empty", "dropped"]
TurnOutcome = Literal["completed", "max_output_tokens", "cancelled", "failed"]


# audio complete → heard → sent to the backend → first token → delivered
Stage = Literal["ingest", "queue", "engine", "egress"]
STAGES: tuple[Stage, ...] = get_args(Stage)


class TickStats(msgspec.Struct, frozen=True, gc=False):
    """One tick's obligation and what became of it. Instants in seconds on the engine's clock."""

    kind: TickKind
    outcome: Outcome
    ready_at: float  # last byte of its audio arrived, or (speaking) the tick began
    done_at: float  # heard, or its first output delivered
    deadline: float
    miss_run: int = 0  # length of the run of misses that this tick ended (0: it ended none)
    measured: bool = True  # False: judged by the beat, and `done_at` is only when that was
    # Seconds it spent in each of STAGES, as far as it came.
    stages: tuple[float, ...] = ()

    @property
    def latency_s(self) -> float:
        return self.done_at - self.ready_at


class StepStats(msgspec.Struct, frozen=True, gc=False):
    """One step of the engine thread."""

    sessions: int
    engine_s: float  # inside the backend
    host_s: float  # around it: planning before, delivery after
    shift_s: float
    kv: KvSnapshot


class TurnStats(msgspec.Struct, frozen=True):
    """One spoken or typed answer of a turn-based model. Instants in seconds; None: did not happen."""

    decided_at: float  # the turn was decided to be over, or `response.create` arrived
    speech_stopped_at: float | None  # end of the caller's speech, where there was any
    transcribed_at: float | None
    first_token_at: float | None
    first_output_at: float | None  # first audio (audio mode) or text delivered
    ended_at: float
    tokens: int
    outcome: TurnOutcome
    asked_at: float | None = None  # its first tokens were asked for
    sent_at: float | None = None  # and that left for the backend


class Observer(Protocol):
    """Called on the event loop."""

    def tick(self, stats: TickStats) -> None:
        """One owed tick has its verdict. Exactly once per tick."""
        ...

    def served(self, stats: TickStats) -> None:
        """A tick that was judged while it was overdue has come after all: its true instants, not another verdict."""
        ...

    def step(self, stats: StepStats) -> None: ...
    def turn(self, stats: TurnStats) -> None: ...


class NullObserver:
    """Observes nothing."""

    def tick(self, stats: TickStats) -> None: ...
    def served(self, stats: TickStats) -> None: ...
    def step(self, stats: StepStats) -> None: ...
    def turn(self, stats: TurnStats) -> None: ...
