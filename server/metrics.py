"""Everything that is counted, and how Prometheus reads it.

Counting is on the path of every frame, so it is a list or dict increment; names, labels and help texts exist only in
`collect`, which runs when somebody scrapes. One instance and one registry per runtime: nothing is global.
"""

from collections import Counter, deque
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from admission.port import Reason
from admission.waiting import Outcome as WaitOutcome
from engine.observer import STAGES, Outcome, StepStats, TickKind, TickStats, TurnStats
from server.dials import Gauges, dials
from server.families import counter, gauge, histogram
from server.histogram import Histogram, observe_each
from server.traffic import Traffic

EndedReason = Literal[
    "client", "expired", "shed", "drain", "engine", "slow_consumer", "protocol", "internal"
]

_QUEUE, _ENGINE, _EGRESS = (STAGES.index(stage) for stage in ("queue", "engine", "egress"))

TICKS_KEPT = 600  # about the last minute and a half of one call, for the demo page's strip

# Buckets of the frame latency, as multiples of the tick. The tick itself must be one of them.
_OF_A_TICK = (
    0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.25, 1.5, 2, 4, 10,
)  # fmt: skip
_RUNS = (1, 2, 3, 5, 10, 20, 50, 100, 500)
_DURATIONS_S = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400)
_STEPS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0)
_HOST_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_TURNS_S = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
_WAITS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
_LAGS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Metrics(Collector):
    """Counts; implements `engine.observer.Observer`."""

    def __init__(self, model: str, tick_s: float) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        self._model = model
        self._tick_s = tick_s
        # Read at each scrape; None until the machine stands.
        self.gauges: Gauges | None = None
        # The last ticks, oldest first, and how many there have ever been.
        self.ticks: deque[TickStats] = deque(maxlen=TICKS_KEPT)
        self.ticks_seen = 0
        # Counters, by label value. Closed sets start at zero, so that a rate exists before the first event.
        self._verdicts: dict[tuple[TickKind, Outcome], int] = dict.fromkeys(
            product(get_args(TickKind), get_args(Outcome)), 0
        )
        self._started = 0
        self._ended: dict[EndedReason, int] = dict.fromkeys(get_args(EndedReason), 0)
        self._rejections: dict[Reason, int] = dict.fromkeys(get_args(Reason), 0)
        self._auth_failures: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self.traffic = Traffic()
        self._outbox_dropped = 0
        # Histograms.
        of_a_tick = tuple(tick_s * part for part in _OF_A_TICK)
        self._latency = Histogram(of_a_tick)
        self._stages = tuple(Histogram(of_a_tick) for _ in STAGES)
        self._miss_run = Histogram(_RUNS)
        self._duration = Histogram(_DURATIONS_S)
        self._step = Histogram(_STEPS_S)
        self._host = Histogram(_HOST_S)
        self._shift = Histogram(_HOST_S)
        self._batch = Histogram(_BATCHES)
        self._first_token = Histogram(_TURNS_S)
        self._first_audio = Histogram(_TURNS_S)
        self._lag = Histogram(_LAGS_S)
        self._waits = {outcome: Histogram(_WAITS_S) for outcome in get_args(WaitOutcome)}

    # -- what the engine reports --------------------------------------------

    def tick(self, stats: TickStats) -> None:
        """Count one owed tick. One that is judged by the beat has no latency: it may not have come at all."""
        self._verdicts[stats.kind, stats.outcome] += 1
        if stats.measured:
            self._measure(stats)
        if stats.miss_run:
            self._miss_run.observe(stats.miss_run)
        self.ticks.append(stats)
        self.ticks_seen += 1

    def served(self, stats: TickStats) -> None:
        """The true latency of a tick that was counted while it was overdue."""
        self._measure(stats)

    def _measure(self, stats: TickStats) -> None:
        if stats.outcome == "empty":
            return
        self._latency.observe(stats.latency_s)
        observe_each(self._stages, stats.stages)

    def step(self, stats: StepStats) -> None:
        """Count one step of the engine thread."""
        self._step.observe(stats.engine_s)
        self._host.observe(stats.host_s)
        self._batch.observe(stats.sessions)
        if stats.shift_s:
            self._shift.observe(stats.shift_s)

    def turn(self, stats: TurnStats) -> None:
        """Count one answer of a turn-based model. Its stages begin where its tokens are asked for."""
        first_token_at = stats.first_token_at
        if first_token_at is not None:
            self._first_token.observe(first_token_at - stats.decided_at)
            if stats.asked_at is not None and stats.sent_at is not None:
                self._stages[_QUEUE].observe(stats.sent_at - stats.asked_at)
                self._stages[_ENGINE].observe(first_token_at - stats.sent_at)
        if stats.first_output_at is not None:
            self._first_audio.observe(stats.first_output_at - stats.decided_at)
            if first_token_at is not None:
                self._stages[_EGRESS].observe(stats.first_output_at - first_token_at)

    # -- what the front end reports ------------------------------------------

    def session_started(self) -> None:
        self._started += 1

    def session_ended(self, reason: EndedReason, duration_s: float) -> None:
        self._ended[reason] += 1
        self._duration.observe(duration_s)

    def rejected(self, reason: Reason) -> None:
        self._rejections[reason] += 1

    def waited(self, outcome: WaitOutcome, seconds: float) -> None:
        """Count one caller's time in line at the door."""
        self._waits[outcome].observe(seconds)

    def auth_failed(self, reason: str) -> None:
        self._auth_failures[reason] += 1

    def protocol_error(self, code: str) -> None:
        self._errors[code] += 1

    def outbox_dropped(self, texts: int) -> None:
        self._outbox_dropped += texts

    def loop_lag(self, seconds: float) -> None:
        self._lag.observe(seconds)

    # -- what Prometheus reads -------------------------------------------------

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)

    def describe(self) -> list[Metric]:
        """Nothing: registering must not scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield gauge("build_info", "Constant 1.", {"version": _version()}, 1)
        yield self._of_model_gauge("frame_budget_seconds", "One tick.", self._tick_s)
        yield from self._ticks()
        yield from self._sessions()
        yield from self._engine()
        yield from self._front_end()
        if self.gauges is not None:
            yield from dials(self._model, self.gauges.readings())

    def _ticks(self) -> Iterator[Metric]:
        yield self._of_model(
            "frame_latency_seconds", "Audio complete to heard or answered.", self._latency
        )
        outcomes = dict.fromkeys(get_args(Outcome), 0)
        by_kind = CounterMetricFamily(
            "metronome_ticks_by_kind", "The same, by what was owed.", labels=["kind", "outcome"]
        )
        for (kind, outcome), count in self._verdicts.items():
            outcomes[outcome] += count
            by_kind.add_metric([kind, outcome], count)
        ticks = CounterMetricFamily(
            "metronome_ticks",
            "Owed ticks; empty is owed and not delivered.",
            labels=["model", "outcome"],
        )
        for outcome, count in outcomes.items():
            ticks.add_metric([self._model, outcome], count)
        yield ticks
        yield by_kind
        stages = HistogramMetricFamily(
            "metronome_frame_stage_seconds", "Where a frame's time went.", labels=["stage"]
        )
        for stage, spent in zip(STAGES, self._stages, strict=True):
            stages.add_metric([stage], spent.buckets, spent.total)
        yield stages
        yield self._of_model("miss_run_ticks", "Length of runs of missed ticks.", self._miss_run)
        yield self._of_model(
            "first_token_seconds", "Turn decided to first token.", self._first_token
        )
        yield self._of_model(
            "turn_first_audio_seconds", "Turn decided to first output.", self._first_audio
        )

    def _sessions(self) -> Iterator[Metric]:
        yield CounterMetricFamily("metronome_sessions_started", "Admitted.", value=self._started)
        yield counter("sessions_ended", "Ended, by cause.", "reason", self._ended.items())
        yield histogram("session_duration_seconds", "How long sessions lasted.", self._duration)
        yield counter("admission_rejections", "Turned away.", "reason", self._rejections.items())
        waits = HistogramMetricFamily(
            "metronome_admission_wait_seconds", "In line at the door.", labels=["outcome"]
        )
        for outcome, spent in self._waits.items():
            waits.add_metric([outcome], spent.buckets, spent.total)
        yield waits
        yield counter(
            "auth_failures", "Refused at the door.", "reason", self._auth_failures.items()
        )

    def _engine(self) -> Iterator[Metric]:
        yield histogram("engine_step_seconds", "Inside one engine step.", self._step)
        yield histogram("engine_batch_sessions", "Sessions in one engine step.", self._batch)
        yield self._of_model("host_tick_seconds", "Host work around one step.", self._host)
        yield self._of_model("kv_shift_seconds", "Dropping and shifting in one step.", self._shift)

    def _front_end(self) -> Iterator[Metric]:
        yield from self.traffic.collect()
        yield counter("ws_protocol_errors", "Error events sent.", "code", self._errors.items())
        yield histogram("event_loop_lag_seconds", "Lateness of a timer.", self._lag)
        yield CounterMetricFamily(
            "metronome_outbox_dropped_frames",
            "Events that a slow client never got.",
            value=self._outbox_dropped,
        )

    def _of_model(self, name: str, text: str, counts: Histogram) -> Metric:
        return histogram(name, text, counts, {"model": self._model})

    def _of_model_gauge(self, name: str, text: str, value: float) -> Metric:
        return gauge(name, text, {"model": self._model}, value)


def _version() -> str:
    try:
        return version("metronome-realtime")
    except PackageNotFoundError:  # run from a bare checkout
        return "unknown"
