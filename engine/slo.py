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


class Obligation:
    """What an answer owes its caller at each beat, from the deadline of its first output on.

    Voice owes a playback frontier a tick ahead; text and function calls owe something new each tick.
    """

    def __init__(self, first_by: float, *, speaks: bool) -> None:
        self.first_by = first_by  # instant the first output is owed
        self.speaks = speaks
        self.playhead = Playhead()
        self.first_at: float | None = None  # of the output so far
        self._newest_at = first_by
        self._fresh = False  # something came since the last beat

    def came(self, now: float) -> None:
        """Output left."""
        self._newest_at, self._fresh = now, True
        if self.first_at is None:
            self.first_at = now

    def moved(self) -> None:
        """Tokens came whose words are not whole yet: as good as output, once there has been some."""
        self._fresh = True

    def verdict(self, now: float, period_s: float) -> Outcome | None:
        """At a beat: what became of the tick that ends now; None while nothing is owed."""
        fresh, self._fresh = self._fresh, False
        if self.first_at is None:
            on_time = False
            if now <= self.first_by:
                return None
        elif self.speaks:
            on_time = self.playhead.ahead_s(now) >= period_s
        else:
            on_time = fresh
        return "on_time" if on_time else ("late" if fresh else "empty")

    def owed_since(self, now: float, period_s: float) -> float | None:
        """Since when output has been missing; None while none is."""
        if self.first_at is None:
            since = self.first_by
        else:
            end_at = self.playhead.end_at if self.speaks else None
            since = self._newest_at + period_s if end_at is None else end_at - period_s
        return since if since < now else None
