"""Measuring the engine at full window before the first call: what to try next, and what came of it. Pure.

Two kinds of probes. `StepProbe`: so many sessions that hold so many tokens each are all in every step; their times are
the cost model's prior, up to the step that no tick could stand. `SoakProbe`: so many sessions at full window, each with
its own phase, ticking for a while as calls do; that shows how far the slowest tick lies above the mean, and is evidence
for that load. Whoever has an engine carries the probes out: the server on the real one, the simulator on its plant.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import mean, median

from admission.controller import Controller
from admission.cost_model import StepSample
from admission.latency_window import Histogram
from admission.learned import Learned
from admission.settings import AdmissionSettings

TICKS_EACH = 4
_STEP_WEIGHT = 25.0  # of a whole tick among single steps
_MAX_SOAKS = 10
_SOAK_S = 12.0
_PART_S, _CHANGED = 4.0, 1.3
_CONFIRM_S = 40.0  # rare hiccups of the engine are seen in nothing shorter, …
_MAX_CONFIRM_S = 120.0
_QUIET = 0.05  # … and this is for steps that vary by so much; for others in proportion
_HOPELESS = 0.2  # of the ticks missed: far beyond what can be served
_SHORTLY = 0.9  # of a load that was held only for moments counts as evidence
# Samples that what was measured counts for at most. With nobody connected an engine has more of the machine to itself
# than it will have, so what its steps take now gives way soon to what they take while serving.
_WEIGHT = 400.0
_SOUND_SHARE = 0.92  # of the budget: where the slowest tick in a thousand is of a load that holds


@dataclass(frozen=True, slots=True)
class StepProbe:
    """`sessions` sessions that hold `tokens` tokens each, all in every step, for `TICKS_EACH` ticks; time each."""

    sessions: int
    tokens: int


@dataclass(frozen=True, slots=True)
class SoakProbe:
    """Serve `sessions` sessions at full window for `seconds`, phases spread, and keep every tick's latency."""

    sessions: int
    seconds: float


@dataclass(slots=True)
class SoakPart:
    """A few seconds of one."""

    ticks: Histogram = field(default_factory=Histogram)
    steps: list[StepSample] = field(default_factory=list)

    @property
    def is_even(self) -> bool:
        """The machine had one speed; rare pauses do not count."""
        seconds = [sample.seconds for sample in self.steps]
        middle = len(seconds) // 2
        if not middle:
            return False
        before, after = median(seconds[:middle]), median(seconds[middle:])
        return max(before, after) < _CHANGED * min(before, after)


class Soak:
    """What was seen of a `SoakProbe`, in parts that are short beside the spells in which a machine has one speed.

    Of a soak in which the machine changes its speed the ticks of the slow half would look like a tail of the mean.
    """

    def __init__(self) -> None:
        self.parts: list[SoakPart] = []

    def part(self, elapsed_s: float) -> SoakPart:
        """Where to put what is seen so long after its beginning."""
        while len(self.parts) <= elapsed_s / _PART_S:
            self.parts.append(SoakPart())
        return self.parts[-1]

    @property
    def ticks(self) -> Histogram:
        """All of them."""
        whole = Histogram()
        for part in self.parts:
            whole.merge(part.ticks)
        return whole


class Calibration:
    """Asks for probes until it knows enough. `most` sessions can be built at all (memory, configuration)."""

    def __init__(self, settings: AdmissionSettings, most: int, header_tokens: int) -> None:
        self._controller = Controller(settings)
        self._settings = settings
        self._most = most
        plateau = settings.shape.plateau_tokens
        sizes = [1]
        while sizes[-1] < most:
            sizes.append(min(most, max(sizes[-1] + 1, sizes[-1] * 3 // 2)))
        # All young ones first: contexts only ever grow from one probe to the next.
        self._steps = [
            StepProbe(n, tokens)
            for tokens in sorted({min(header_tokens, plateau), plateau})
            for n in sizes
        ]
        self._too_long: dict[int, int] = {}  # tokens → sessions whose step no tick could stand
        self._soaks = 0
        self._failed = inf  # what is left to try after soaks that were not in time
        self._crowd = 0  # most sessions at full window that can all be in every step
        self.served = 0  # sessions of the largest soak in time
        self._confirmed = 0  # … and of the largest long one

    def next(self) -> StepProbe | SoakProbe | None:
        """What to try now; None: enough is known."""
        while self._steps:
            probe = self._steps[0]
            if probe.sessions <= self._too_long.get(probe.tokens, self._most):
                return probe
            self._steps.pop(0)
        if not self._controller.tempo.outlook.cost.calibrated:
            self._controller.tempo.outlook.cost.calibrated = True
            self._controller.plan()
        return self._next_soak()

    def _next_soak(self) -> SoakProbe | None:
        """Short soaks while they still move the estimate, then a long one that must hold."""
        target = int(min(self._most, self._controller.tempo.outlook.capacity, self._failed))
        if self._soaks >= _MAX_SOAKS or target < 1 or self._confirmed >= target:
            return None
        if self.served and target <= 1.02 * self.served:
            longer = max(1.0, self._controller.tempo.outlook.cost.noise / _QUIET)
            return SoakProbe(target, min(_MAX_CONFIRM_S, _CONFIRM_S * longer))
        return SoakProbe(target, _SOAK_S)

    def stepped(self, probe: StepProbe, tick_s: Sequence[float]) -> None:
        """How long each of the probe's ticks took, from its first step to its last."""
        self._steps.pop(0)
        controller, steps = self._controller, self._settings.shape.steps_per_tick
        tokens = probe.sessions * probe.tokens
        for seconds in tick_s:
            controller.observe_step(probe.sessions, seconds / steps, probe.sessions, tokens)
        controller.tempo.outlook.cost.fit((probe.sessions, tokens), 0.0, weight=_STEP_WEIGHT)
        middle, budget_s = sorted(tick_s)[len(tick_s) // 2], self._settings.shape.budget_s
        if middle > budget_s:
            self._too_long[probe.tokens] = probe.sessions
        elif probe.tokens == self._settings.shape.plateau_tokens:
            self._crowd = max(self._crowd, probe.sessions)

    def soaked(self, probe: SoakProbe, soak: Soak) -> None:
        """What was seen of it."""
        self._soaks += 1
        ticks = soak.ticks
        slowest = ticks.quantile(1 - max(0.001, 5 / max(1, ticks.total)))
        held = ticks.total > 0 and slowest <= _SOUND_SHARE
        if held:
            self.served = max(self.served, probe.sessions)
            if probe.seconds >= _CONFIRM_S:
                self._confirmed = probe.sessions
        else:
            factor = 0.93 if ticks.miss_ratio > _HOPELESS else 0.97
            self._failed = min(self._failed, factor * probe.sessions)
            self.served = min(self.served, int(self._failed))
        for part in soak.parts:
            self._learn(part, probe.sessions, held=held)
        self._controller.plan()

    def _learn(self, part: SoakPart, sessions: int, *, held: bool) -> None:
        outlook = self._controller.tempo.outlook
        for sample in part.steps:
            outlook.cost.add(sample)
        outlook.cost.fit((sessions, sessions * self._settings.shape.plateau_tokens), 0.0)
        if part.is_even and held:  # beyond what holds, ticks are slow for other reasons than chance
            step_s = mean(sample.seconds for sample in part.steps)
            even_share = self._controller.fleet.ordinary.urgency * step_s
            outlook.tail.learn(part.ticks, even_share, outlook.cost.noise)

    def result(self, key: str, join_s: float) -> Learned:
        """What the controller may start from, also if time ran out before `next` had no more to ask."""
        outlook = self._controller.tempo.outlook
        # However long a soak is, the hiccups it did not see are rarer: a noisy machine is trusted less.
        trusted = 1 - 0.5 * outlook.cost.noise
        # Steps timed for a second are a law, not a load that was served: of that nothing is evidence.
        served = trusted * (self._confirmed or _SHORTLY * self.served)
        start = served or trusted * _SHORTLY * self._crowd
        most = float(self._settings.max_sessions)
        return Learned(
            key,
            outlook.cost.export(_WEIGHT),
            outlook.tail.known.as_triple(),
            outlook.tail.heaviest,
            outlook.tail.weight,
            served,
            served if self._confirmed else 0.0,
            min(outlook.capacity, most),
            max(self._settings.temper.min_limit, min(outlook.capacity, start, most)),
            join_s,
            calibrated=True,
        )
