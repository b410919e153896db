"""What is true of the machine at the moment of a scrape, and how Prometheus reads it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engine.faults import Fault
from engine.lag import CAUGHT_UP, Lag
from engine.work import KvSnapshot
from server.families import counter, gauge
from server.gatekeeper import AdmissionReadings


@dataclass(frozen=True, slots=True)
class Readings:
    """Every dial, read once."""

    sessions: int
    limit: int
    kv: KvSnapshot | None  # None: no engine yet
    engine_up: bool
    engine_stalled: bool
    draining: bool
    lag: Lag = CAUGHT_UP
    wall_s: float = (
        inf  # until the KV pool is full; infinite where the policy keeps it from filling
    )
    reserved_blocks: int = 0  # promised to the sessions that are in
    restarts: int = 0  # of the engine in this process, ever
    faults: Mapping[Fault, int] = field(default_factory=dict)
    admission: AdmissionReadings | None = None  # None: a door that does not learn
    waiting: int = 0  # callers in line at the door


class Gauges(Protocol):
    """Whoever can read the machine's dials."""

    def readings(self) -> Readings: ...


def dials(model: str, readings: Readings) -> Iterator[Metric]:
    """All of them."""
    of_model, lag = {"model": model}, readings.lag
    yield gauge("sessions_active", "Sessions now.", of_model, readings.sessions)
    yield gauge("sessions_waiting", "In line at the door.", of_model, readings.waiting)
    yield gauge("sessions_young", "Whose window is not full yet.", of_model, lag.young)
    yield gauge("sessions_starved", "Owed output, none for over two ticks.", of_model, lag.starved)
    yield gauge(
        "audio_staleness_seconds",
        "Age of the newest audio that the slowest session's model has heard, while newer waits.",
        of_model,
        lag.staleness_s,
    )
    yield from _admission(readings)
    yield from _engine(readings)
    if readings.kv is not None:
        yield from _kv(of_model, readings, readings.kv)


def _admission(readings: Readings) -> Iterator[Metric]:
    limits = GaugeMetricFamily(
        "metronome_admission_limit", "Sessions that may be active.", labels=["kind"]
    )
    limits.add_metric(["effective"], readings.limit)
    found = readings.admission
    if found is None:
        yield limits
        return
    for kind, limit in found.limits.items():
        limits.add_metric([kind], limit)
    yield limits
    load = GaugeMetricFamily(
        "metronome_admission_projected_load", "Share of a bound in use.", labels=["bound"]
    )
    binding = GaugeMetricFamily(
        "metronome_admission_binding", "1 for the bound that binds.", labels=["bound"]
    )
    for bound, share in found.shares.items():
        load.add_metric([bound], found.projected_load if bound == "model" else share)
        binding.add_metric([bound], bound == found.binding)
    yield load
    yield binding
    yield gauge("admission_model_gain", "Engine's speed against its model.", {}, found.gain)
    yield gauge("admission_tail_ratio", "Slowest tick over an even one.", {}, 1 + found.tail)
    yield counter("admission_decisions", "Let in.", "decision", [("admitted", found.admitted)])


def _engine(readings: Readings) -> Iterator[Metric]:
    yield gauge("engine_up", "1 while the engine runs.", {}, readings.engine_up)
    yield gauge(
        "engine_stalled", "1 while nothing has moved for two ticks.", {}, readings.engine_stalled
    )
    yield gauge("draining", "1 while shutting down.", {}, readings.draining)
    yield CounterMetricFamily(
        "metronome_engine_restarts", "New engines after a death.", value=readings.restarts
    )
    yield counter("engine_errors", "Failures in the engine.", "kind", readings.faults.items())


def _kv(of_model: dict[str, str], readings: Readings, kv: KvSnapshot) -> Iterator[Metric]:
    blocks = GaugeMetricFamily("metronome_kv_blocks", "KV blocks.", labels=["state"])
    blocks.add_metric(["free"], kv.free_blocks)
    blocks.add_metric(["resident"], kv.held_blocks)
    blocks.add_metric(["reserved"], readings.reserved_blocks)
    blocks.add_metric(["sink"], readings.lag.sink_blocks)
    yield blocks
    yield gauge("kv_usage_ratio", "Held share.", {}, kv.held_blocks / max(1, kv.total_blocks))
    yield gauge("kv_tokens", "Tokens resident.", of_model, kv.resident_tokens)
    yield gauge("kv_wall_seconds", "Forecast to a full pool.", of_model, readings.wall_s)
