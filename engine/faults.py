"""What has gone wrong in the engine since the process began, counted by kind."""

from typing import Literal, get_args

Fault = Literal[
    "death",  # a step raised, or never ended: every call was lost
    "stall",  # a step or a hearing took longer than two ticks
    "hearing",  # hearing a batch raised
    "append",  # the backend refused one session's append
    "session",  # our own work for one session raised
]


class Faults:
    """Counts; each kind starts at zero, so that a rate exists before the first."""

    def __init__(self) -> None:
        self.counts: dict[Fault, int] = dict.fromkeys(get_args(Fault), 0)

    def note(self, fault: Fault) -> None:
        self.counts[fault] += 1
