"""How fast the machine is just now: engine time per session and step. Pure.

Shared cores have no one speed. On two of them a step took 0.30 ms per session for minutes and then 0.42 for others,
the same for any batch of 10 to 100 sessions, while a small loop beside it took what it always took: contexts are read
from memory, and who else reads it changes by the minute. What such a machine holds is a question of when.
"""

from math import inf

from bench.scrape import Scrape

SPELL_S = 10.0  # a slow spell that a fleet at its capacity does not survive


class Speed:
    """What was seen of the server's counters, over time."""

    def __init__(self) -> None:
        self._looks: list[tuple[float, Scrape]] = []

    def add(self, now: float, look: Scrape) -> None:
        """The counters at `now`, in seconds of any clock that does not go back."""
        self._looks.append((now, look))

    def slowest(self, since: float = -inf) -> float:
        """Engine seconds per session and step in the slowest spell since then; 0 if none has passed."""
        looks = [(now, look) for now, look in self._looks if now >= since]
        slowest, first = 0.0, 0
        for now, look in looks:
            while first + 1 < len(looks) and now - looks[first + 1][0] >= SPELL_S:
                first += 1
            if looks and now - looks[first][0] >= SPELL_S:
                slowest = max(slowest, _each_s(looks[first][1], look))
        return slowest

    def curve(self) -> tuple[list[float], list[float]]:
        """Seconds, and engine milliseconds per session and step between one look and the next."""
        pairs = list(zip(self._looks, self._looks[1:], strict=False))
        return (
            [now for _, (now, _) in pairs],
            [1000 * _each_s(earlier, later) for (_, earlier), (_, later) in pairs],
        )


def _each_s(earlier: Scrape, later: Scrape) -> float:
    stepped = later.stepped - earlier.stepped
    return (later.step_s - earlier.step_s) / stepped if stepped else 0.0
