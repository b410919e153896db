"""What is counted is true: an empty tick is a miss however fast it was, and names and labels are those promised."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.faults import Faults
from engine.lag import Lag
from engine.observer import Outcome, StepStats, TickStats, TurnStats
from engine.work import KvSnapshot
from server.dials import Readings
from server.gatekeeper import AdmissionReadings
from server.histogram import Histogram
from server.metrics import TICKS_KEPT, Metrics

KV = KvSnapshot(32, 100, 75, 700, 3)


def _sample(metrics: Metrics, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    raise AssertionError(f"no sample {name} {labels}")


def _metrics() -> Metrics:
    return Metrics("test-model", 0.08)


def _tick(outcome: Outcome, latency_s: float = 0.01, miss_run: int = 0) -> TickStats:
    return TickStats("listen", outcome, 10.0, 10.0 + latency_s, 10.08, miss_run)


@pytest.mark.parametrize("outcome", ["on_time", "late", "empty", "dropped"])
def test_every_outcome_has_its_own_count(outcome: Outcome) -> None:
    """ticks_total tells the four ends of an owed tick apart."""
    metrics = _metrics()
    metrics.tick(_tick(outcome))
    for other in ("on_time", "late", "empty", "dropped"):
        count = _sample(metrics, "metronome_ticks_total", outcome=other, model="test-model")
        assert count == (1 if other == outcome else 0)


def test_an_empty_tick_never_improves_the_latency() -> None:
    """A stalled engine returns nothing, quickly: that must not look like speed."""
    metrics = _metrics()
    metrics.tick(_tick("late", 0.2))
    for _ in range(100):
        metrics.tick(_tick("empty", 0.0))
    assert _sample(metrics, "metronome_frame_latency_seconds_count") == 1
    assert _sample(metrics, "metronome_ticks_total", outcome="empty") == 100


def test_the_tick_itself_is_a_bucket_and_holds_a_tick_that_just_made_it() -> None:
    """The share on time can be read off the histogram."""
    metrics = _metrics()
    metrics.tick(_tick("on_time", 0.08 - 1e-9))
    metrics.tick(_tick("late", 0.0801))
    assert _sample(metrics, "metronome_frame_latency_seconds_bucket", le="0.08") == 1
    assert _sample(metrics, "metronome_frame_latency_seconds_bucket", le="+Inf") == 2
    assert _sample(metrics, "metronome_frame_budget_seconds", model="test-model") == 0.08


def test_only_a_run_that_ended_is_observed() -> None:
    """miss_run_ticks counts runs, not ticks."""
    metrics = _metrics()
    metrics.tick(_tick("late"))
    metrics.tick(_tick("late"))
    metrics.tick(_tick("on_time", miss_run=2))
    assert _sample(metrics, "metronome_miss_run_ticks_count") == 1
    assert _sample(metrics, "metronome_miss_run_ticks_sum") == 2


def test_steps_and_turns_are_observed() -> None:
    """Engine time, host time, batch size; first token and first output from the decision on."""
    metrics = _metrics()
    metrics.step(StepStats(4, 0.03, 0.002, 0.0, KV))
    metrics.turn(TurnStats(5.0, 4.5, 5.1, 5.2, 5.7, 9.0, 40, "completed"))
    metrics.turn(TurnStats(5.0, None, None, None, None, 5.1, 0, "cancelled"))
    assert _sample(metrics, "metronome_engine_step_seconds_sum") == 0.03
    assert _sample(metrics, "metronome_host_tick_seconds_sum") == 0.002
    assert _sample(metrics, "metronome_engine_batch_sessions_bucket", le="4.0") == 1
    assert _sample(metrics, "metronome_first_token_seconds_sum") == pytest.approx(0.2)
    assert _sample(metrics, "metronome_turn_first_audio_seconds_sum") == pytest.approx(0.7)
    assert _sample(metrics, "metronome_turn_first_audio_seconds_count") == 1


def test_sessions_rejections_and_refusals_are_counted_by_cause() -> None:
    """Closed label sets start at zero, so that a rate exists from the start."""
    metrics = _metrics()
    metrics.session_started()
    metrics.session_ended("drain", 12.0)
    metrics.rejected("capacity")
    metrics.auth_failed("invalid_api_key")
    metrics.protocol_error("invalid_json")
    assert _sample(metrics, "metronome_sessions_started_total") == 1
    assert _sample(metrics, "metronome_sessions_ended_total", reason="drain") == 1
    assert _sample(metrics, "metronome_sessions_ended_total", reason="slow_consumer") == 0
    assert _sample(metrics, "metronome_session_duration_seconds_sum") == 12
    assert _sample(metrics, "metronome_admission_rejections_total", reason="capacity") == 1
    assert _sample(metrics, "metronome_auth_failures_total", reason="invalid_api_key") == 1
    assert _sample(metrics, "metronome_ws_protocol_errors_total", code="invalid_json") == 1


def test_event_types_are_a_closed_set() -> None:
    """A client cannot grow the label set by inventing types."""
    metrics = _metrics()
    for i in range(50):
        metrics.traffic.received(f"made.up.{i}", b"0123456789")
    metrics.traffic.received("session.update", "éabc")
    assert metrics.traffic.sent('{"type":"response.done"}') == "response.done"
    rendered = metrics.render().decode()
    assert "made.up" not in rendered
    assert _sample(metrics, "metronome_ws_events_total", direction="in", type="other") == 50
    assert _sample(metrics, "metronome_ws_events_total", direction="in", type="session.update") == 1
    assert _sample(metrics, "metronome_ws_bytes_total", direction="in") == 505
    assert _sample(metrics, "metronome_ws_bytes_total", direction="out") == 24


class _Dials:
    def __init__(self, kv: KvSnapshot | None) -> None:
        self._kv = kv

    def readings(self) -> Readings:
        return Readings(2, 8, self._kv, engine_up=True, engine_stalled=False, draining=False)


def test_gauges_are_read_when_scraped() -> None:
    """Sessions, limit, blocks: the state of the moment."""
    metrics = _metrics()
    metrics.gauges = _Dials(KV)
    assert _sample(metrics, "metronome_sessions_active", model="test-model") == 2
    assert _sample(metrics, "metronome_admission_limit", kind="effective") == 8
    assert _sample(metrics, "metronome_kv_blocks", state="free") == 75
    assert _sample(metrics, "metronome_kv_blocks", state="resident") == 25
    assert _sample(metrics, "metronome_kv_usage_ratio") == 0.25
    assert _sample(metrics, "metronome_kv_tokens") == 700
    assert _sample(metrics, "metronome_engine_up") == 1
    assert _sample(metrics, "metronome_draining") == 0


def test_a_machine_without_an_engine_has_no_kv_figures() -> None:
    """Nothing is made up before there is a pool."""
    metrics = _metrics()
    metrics.gauges = _Dials(None)
    for name in ("kv_blocks", "kv_tokens", "kv_usage_ratio", "kv_wall_seconds"):
        assert f"metronome_{name}" not in metrics.render().decode()


def test_a_tick_judged_by_the_beat_has_no_latency_until_it_is_served() -> None:
    """Frozen, the latency metric stays as green as it was; the ticks do not."""
    metrics = _metrics()
    metrics.tick(_tick("on_time", 0.01))
    for _ in range(50):
        metrics.tick(TickStats("frame", "late", 10.0, 10.1, 10.08, measured=False))
    assert _sample(metrics, "metronome_frame_latency_seconds_count") == 1
    assert _sample(metrics, "metronome_ticks_total", outcome="late") == 50
    metrics.served(TickStats("frame", "late", 10.0, 15.0, 10.08, stages=(0.0, 1.0, 4.0, 0.0)))
    assert _sample(metrics, "metronome_ticks_total", outcome="late") == 50
    assert _sample(metrics, "metronome_frame_latency_seconds_sum") == pytest.approx(5.01)
    assert _sample(metrics, "metronome_frame_stage_seconds_sum", stage="engine") == 4


def test_stages_come_from_frames_and_from_answers() -> None:
    """ingest: heard; queue: sent; engine: first token; egress: delivered."""
    metrics = _metrics()
    metrics.tick(TickStats("listen", "on_time", 1.0, 1.03, 1.08, stages=(0.03,)))
    metrics.tick(TickStats("frame", "on_time", 1.0, 1.07, 1.08, stages=(0.01, 0.02, 0.03, 0.01)))
    metrics.turn(TurnStats(5.0, 4.5, 5.1, 5.5, 5.9, 9.0, 40, "completed", 5.2, 5.25))
    sums = {"ingest": 0.04, "queue": 0.02 + 0.05, "engine": 0.03 + 0.25, "egress": 0.01 + 0.4}
    for stage, total in sums.items():
        found = _sample(metrics, "metronome_frame_stage_seconds_sum", stage=stage)
        assert found == pytest.approx(total)
        assert _sample(metrics, "metronome_frame_stage_seconds_count", stage=stage) == 2


def test_ticks_are_also_told_apart_by_what_was_owed() -> None:
    """In a series of its own, so that `ticks_total` keeps its labels."""
    metrics = _metrics()
    metrics.tick(TickStats("speak", "empty", 1.0, 1.1, 1.1, measured=False))
    metrics.tick(TickStats("listen", "on_time", 1.0, 1.05, 1.1))
    assert (
        _sample(metrics, "metronome_ticks_by_kind_total", kind="speak", outcome="empty"),
        _sample(metrics, "metronome_ticks_by_kind_total", kind="listen", outcome="empty"),
        _sample(metrics, "metronome_ticks_total", outcome="empty"),
    ) == (1, 0, 1)


def test_only_steps_that_shifted_have_a_shift_time() -> None:
    """The rest would drown it in zeros."""
    metrics = _metrics()
    metrics.step(StepStats(4, 0.03, 0.002, 0.0, KV))
    metrics.step(StepStats(4, 0.03, 0.002, 0.004, KV))
    assert _sample(metrics, "metronome_kv_shift_seconds_count") == 1
    assert _sample(metrics, "metronome_kv_shift_seconds_sum") == 0.004


class _Behind:
    def readings(self) -> Readings:
        return Readings(
            3,
            8,
            KV,
            engine_up=True,
            engine_stalled=True,
            draining=False,
            lag=Lag(4.2, 2, 1, 6),
            wall_s=90.0,
            reserved_blocks=60,
            restarts=1,
            faults={**Faults().counts, "stall": 5},
            admission=AdmissionReadings(
                {"aimd": 9.0}, {"aimd": 0.3, "kv": 0.5}, "kv", 0.4, 1.0, 0.2, admitted=3
            ),
        )


def test_a_machine_that_is_behind_says_so() -> None:
    """Staleness, starvation, the wall, and what has gone wrong so far."""
    metrics = _metrics()
    metrics.gauges = _Behind()
    for name, value in (
        ("audio_staleness_seconds", 4.2),
        ("sessions_starved", 2),
        ("sessions_young", 1),
        ("kv_wall_seconds", 90),
        ("engine_stalled", 1),
        ("engine_restarts_total", 1),
    ):
        assert _sample(metrics, f"metronome_{name}") == value
    assert _sample(metrics, "metronome_kv_blocks", state="reserved") == 60
    assert _sample(metrics, "metronome_kv_blocks", state="sink") == 6
    assert _sample(metrics, "metronome_engine_errors_total", kind="stall") == 5
    assert _sample(metrics, "metronome_engine_errors_total", kind="death") == 0


def test_a_pool_that_cannot_fill_has_no_wall() -> None:
    """Infinitely far away, and Prometheus can say so."""
    metrics = _metrics()
    metrics.gauges = _Dials(KV)
    assert _sample(metrics, "metronome_kv_wall_seconds") == float("inf")


def test_what_is_exposed_does_not_grow_with_the_calls_there_were() -> None:
    """No label names a session: the page is as long after a thousand calls as after one."""
    lengths = []
    metrics = _metrics()
    metrics.gauges = _Behind()
    for calls in (1, 1000):
        for _ in range(calls):
            metrics.session_started()
            metrics.tick(_tick("late", 0.2))
            metrics.tick(_tick("on_time", 0.01, 1))
            metrics.turn(TurnStats(5.0, 4.5, 5.1, 5.2, 5.7, 9.0, 40, "completed"))
            metrics.step(StepStats(4, 0.03, 0.002, 0.004, KV))
            metrics.session_ended("client", 3.0)
        lengths.append(len(metrics.render().splitlines()))
    assert lengths[0] == lengths[1]


def test_the_page_on_metrics_names_exactly_what_is_exposed() -> None:
    """docs/metrics.md has a row for each of ours, with its labels."""
    metrics = _metrics()
    metrics.gauges = _Behind()
    exposed = {
        (family.name, family.type): {
            label for sample in family.samples for label in sample.labels if label != "le"
        }
        for family in text_string_to_metric_families(metrics.render().decode())
        if family.name.startswith("metronome_")
    }
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    described = {}
    for name, kind, labels in re.findall(
        r"^\| `(metronome_\w+)` \| (counter|gauge|histogram) \| (.*?) \|", page, re.MULTILINE
    ):
        described[name.removesuffix("_total"), kind] = set(re.findall(r"`(\w+)`", labels))
    unlabelled = {
        ("metronome_ws_protocol_errors", "counter"),
        ("metronome_auth_failures", "counter"),
    }
    for key in unlabelled & exposed.keys():  # their labels appear with the first of them
        exposed[key] = described[key]
    assert described == exposed


def test_two_runtimes_do_not_share_counts() -> None:
    """No global registry."""
    one, two = _metrics(), _metrics()
    one.session_started()
    assert _sample(two, "metronome_sessions_started_total") == 0


def test_the_tick_record_is_bounded() -> None:
    """The demo page's strip keeps the newest ticks and the count of all."""
    metrics = _metrics()
    for _ in range(TICKS_KEPT + 5):
        metrics.tick(_tick("on_time"))
    assert (len(metrics.ticks), metrics.ticks_seen) == (TICKS_KEPT, TICKS_KEPT + 5)


def test_a_value_on_a_bound_belongs_to_that_bucket() -> None:
    """`le` is less than or equal."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert histogram.buckets == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
    assert (histogram.count, histogram.total) == (5, 14.0)
