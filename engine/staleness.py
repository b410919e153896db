"""Which ticks a frame-locked session that is behind does not begin any more. Pure.

A session has one tick under way at a time, so after a hiccup the next frame waits already when a tick ends. In a full
house, where a tick takes most of its period, working off what waits would make every tick late for many periods, and
of everybody at once: nobody rests between two ticks, so all are in every step. A tick that cannot be in time any more
is left out there: the session waits for its next frame, is in time with that, and leaves the steps to the others.

Where ticks take less than half of their period, lateness is gone within about as many ticks as it lasted, and what the
caller said is worth more than that: everything is heard, late.
"""

NEWEST = 0.25  # weight of the newest tick in what ticks usually take
_AT_MOST = 0.9  # of the period, whatever ticks usually take: what has just come is always begun
FORGOTTEN = 0.02  # of what ticks took, with each that is left out: one must be begun to learn anew
_CATCHES_UP = 0.5  # of the period that ticks take at most for a session to work off what waits


def is_hopeless(lag_s: float, usual_s: float, period_s: float) -> bool:
    """A tick whose audio was complete `lag_s` ago will be late, and to begin it would make others late."""
    takes_s = min(usual_s, _AT_MOST * period_s)
    return usual_s >= _CATCHES_UP * period_s and lag_s + takes_s > period_s


class TickTimes:
    """What the ticks of one session take once they are begun, and what that says of one that begins late."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._usual_s = 0.0  # smoothed

    def took(self, seconds: float) -> None:
        """From when a tick was begun until its output had left. A hiccup counts for one period at most."""
        self._usual_s += NEWEST * (min(seconds, self._period_s) - self._usual_s)

    def left_out(self) -> None:
        """A tick was not begun. However slow hearing is, some tick is begun again."""
        self._usual_s *= 1 - FORGOTTEN

    def is_hopeless(self, lag_s: float) -> bool:
        """See above."""
        return is_hopeless(lag_s, self._usual_s, self._period_s)
