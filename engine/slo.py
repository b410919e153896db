"""A tick's obligation, and the ledger that judges it. Pure.

A tick is *owed*: caller audio that arrived must have been heard within the tick; a session that is answering must keep
its playback frontier a tick ahead (audio) or deliver fresh tokens (text). Late or empty when owed is a miss, however
fast the call returned: a stalled engine answers quickly, with nothing.
"""

import msgspec

from engine.observer import Outcome, TickKind, TickStats


class TickLedger:
    """Judges the ticks of one session and keeps its run of misses."""

    def __init__(self) -> None:
        self.miss_run = 0  # consecutive misses up to now
        self.owed = 0
        self.missed = 0

    def judge(
        self,
        kind: TickKind,
        ready_at: float,
        done_at: float,
        deadline: float,
        fresh: bool,
        stages: tuple[float, ...] = (),
    ) -> TickStats:
        """The verdict on one owed tick. `fresh`: it brought what it owed, at `done_at`."""
        outcome: Outcome = (
            "on_time" if fresh and done_at <= deadline else ("late" if fresh else "empty")
        )
        return self._enter(TickStats(kind, outcome, ready_at, done_at, deadline, stages=stages))

    def record(
        self, kind: TickKind, outcome: Outcome, ready_at: float, now: float, deadline: float
    ) -> TickStats:
        """Enter a verdict of the beat, which waits for nothing."""
        return self._enter(TickStats(kind, outcome, ready_at, now, deadline, measured=False))

    def _enter(self, stats: TickStats) -> TickStats:
        self.owed += 1
        if stats.outcome != "on_time":
            self.missed += 1
            self.miss_run += 1
        elif self.miss_run:
            ended_run, self.miss_run = self.miss_run, 0
            return msgspec.structs.replace(stats, miss_run=ended_run)
        return stats


class Playhead:
    """How far the audio we sent reaches past now, if the client plays it as it comes."""

    def __init__(self) -> None:
        self.end_at: float | None = (
            None  # instant the last sample sent so far will have been played
        )
        self.sent_s = 0.0

    def extend(self, now: float, seconds: float) -> None:
        """`seconds` more audio left at `now`."""
        self.end_at = (now if self.end_at is None or self.end_at < now else self.end_at) + seconds
        self.sent_s += seconds

    def ahead_s(self, now: float) -> float:
        """Seconds of audio the client still has; negative: it has been silent for that long. 0 before the first."""
        return 0.0 if self.end_at is None else self.end_at - now
