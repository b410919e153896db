"""prometheus_client's families in one line each, with our prefix."""

from collections.abc import Iterable

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from server.histogram import Histogram


def gauge(name: str, text: str, labels: dict[str, str], value: float) -> Metric:
    """One value."""
    family = GaugeMetricFamily(f"metronome_{name}", text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def counter(name: str, text: str, label: str, counts: Iterable[tuple[str, int]]) -> Metric:
    """One counter with one label."""
    family = CounterMetricFamily(f"metronome_{name}", text, labels=[label])
    for value, count in counts:
        family.add_metric([value], count)
    return family


def histogram(
    name: str, text: str, counts: Histogram, labels: dict[str, str] | None = None
) -> Metric:
    """A histogram that was counted elsewhere."""
    labels = labels or {}
    family = HistogramMetricFamily(f"metronome_{name}", text, labels=list(labels))
    family.add_metric(list(labels.values()), counts.buckets, counts.total)
    return family
