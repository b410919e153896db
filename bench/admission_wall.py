"""The negative control: calls that only grow, in front of the controller as it is and of the same one made blind.

Without a window a session's context and cost grow for as long as it lasts, and the pool fills at a pace that anybody
can work out. With its memory and age terms off the controller sees only latency, which is fine until it is not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from admission.settings import AdmissionSettings, SessionShape
from bench.admission_doors import Metronome
from bench.admission_plant import BLOCK_TOKENS, A
from bench.admission_sim import Simulation
from bench.admission_terms import BIN_S, Caller, Tally

HORIZON_S = 600.0
CALLERS = 400
_OVER_S = 60.0
_CALL_S = 300.0
# Ten windows of A: what a session would grow to in eight minutes.
PLANT = replace(A, name="A+unbounded", window=10 * A.window, pool_windows=A.pool_windows // 10)
_PRICED_S = 600.0  # a session without a plateau is priced at this age


@dataclass(frozen=True, slots=True)
class Ending:
    """How it went."""

    tally: Tally

    @property
    def admitted(self) -> int:
        """Most sessions at a time."""
        return self.tally.peak

    @property
    def worst_minute(self) -> float:
        """Missed ÷ owed in the minute with the most."""
        bins, size = self.tally.bins, int(60 / BIN_S)
        shares = []
        for start in range(0, len(bins) - size + 1, size):
            owed, missed = (sum(column) for column in zip(*bins[start : start + size], strict=True))
            shares.append(missed / owed if owed else 0.0)
        return max(shares)


def settings(*, terms: bool) -> AdmissionSettings:
    """With its terms for age and memory, or without."""
    call = PLANT.calls[0]
    tokens = int(_PRICED_S / call.tick_s * call.tokens)
    blocks = tokens // BLOCK_TOKENS
    shape = SessionShape(call.tick_s, call.tick_s, call.steps, tokens, _PRICED_S, blocks)
    return AdmissionSettings(
        shape, 4096, PLANT.pool_blocks, bounded=False, age_terms=terms, kv_terms=terms
    )


def run(*, terms: bool, seed: int = 1) -> Ending:
    """Four hundred callers within a minute, who talk for five."""
    when = [_OVER_S * n / CALLERS for n in range(CALLERS)]
    callers = [Caller(at, _CALL_S) for at in when]
    simulation = Simulation(PLANT, Metronome(settings(terms=terms)), callers, HORIZON_S, seed)
    return Ending(simulation.run())


Curves = Mapping[str, tuple[list[float], list[float]]]


def panels(with_terms: Ending, without: Ending) -> Mapping[str, Curves]:
    """What to draw: sessions and missed ticks over time, of both."""
    endings = {"with age and KV terms": with_terms, "without": without}
    times = [t for t, _, _ in with_terms.tally.trace]
    missed = {
        name: (
            [BIN_S * (n + 1) for n in range(len(ending.tally.bins))],
            [100 * missed / max(1, owed) for owed, missed in ending.tally.bins],
        )
        for name, ending in endings.items()
    }
    admitted = {
        name: (times, [float(active) for _, active, _ in ending.tally.trace])
        for name, ending in endings.items()
    }
    return {"sessions admitted": admitted, "% of ticks missed": missed}
