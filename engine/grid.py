"""When a tick's audio is due: an absolute grid, so that lateness never accumulates.

    release(k) = anchor + k·period        the instant tick k's audio is complete in real time
    deadline(k) = max(release(k), ready_at) + period

The anchor is the first frame's arrival. It moves only when the caller fell silent on the wire for more than a period
(a muted client, a lost network): the gap is the caller's, not ours. A burst faster than real time (a file, a pre-roll)
keeps its audio clock: its later ticks are due when they would have been due live.
"""


class TickGrid:
    """Places frames of one session on the grid, in order."""

    def __init__(self, period_s: float) -> None:
        if period_s <= 0:
            raise ValueError(f"a tick lasts more than {period_s} s")
        self.period_s = period_s
        self._anchor: float | None = None  # release of tick 0; None until the first frame
        self._next = 0  # index of the next tick

    def place(self, ready_at: float) -> float:
        """The deadline of the next frame, whose last byte arrived at `ready_at`."""
        if self._anchor is None:
            self._anchor = ready_at
        release = self._anchor + self._next * self.period_s
        if ready_at > release + self.period_s:
            self._anchor = ready_at - self._next * self.period_s
            release = ready_at
        self._next += 1
        return (release if release > ready_at else ready_at) + self.period_s


def next_beat(start: float, period_s: float, now: float) -> float:
    """The first instant `start + k·period_s` after `now`: a beat that is late is skipped, never shifted."""
    beats = int((now - start) / period_s) + 1
    beat = start + beats * period_s
    # Rounding may put `now`, itself a beat, just below it: without this the loop would wake for ever at one instant.
    return beat if beat > now else start + (beats + 1) * period_s
