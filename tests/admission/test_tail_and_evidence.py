"""How far the slowest ticks lie above an even one, and how far what was served reaches."""

import math

import numpy as np
import pytest

from admission.evidence import Departures, Evidence
from admission.latency_window import Histogram
from admission.settings import Temper
from admission.tail import TailRatio

TEMPER = Temper()


def _ticks(even: float, excess: float, rng: np.random.Generator, count: int = 500) -> Histogram:
    """Uniform from even to even·(1 + excess)."""
    histogram = Histogram()
    for share in even * (1 + excess * rng.random(count)):
        histogram.add(float(share), missed=share > 1)
    return histogram


def test_the_tail_is_learned() -> None:
    """Its margin included, it lies just above the slowest tick of a thousand."""
    tail, rng = TailRatio(), np.random.default_rng(0)
    for _ in range(400):
        tail.observe(_ticks(0.5, 0.4, rng), 0.5, 0.05)
    assert 0.38 < tail.known.slowest < 0.7
    assert tail.even_limit(1.0, 0.05) == pytest.approx(1 / (1.02 + tail.known.slowest), rel=0.01)


def test_few_ticks_do_not_overrule_many() -> None:
    """A quiet half minute does not make a machine steady that was noisy for an hour."""
    tail, rng = TailRatio(), np.random.default_rng(0)
    for _ in range(400):
        tail.observe(_ticks(0.5, 0.8, rng), 0.5, 0.05)
    noisy = tail.known.slowest
    for _ in range(30):
        tail.observe(_ticks(0.66, 0.05, rng), 0.66, 0.05)
    assert tail.known.slowest == pytest.approx(noisy, rel=0.15)


def test_a_collapse_is_no_tail() -> None:
    """An interval in which most ticks were missed says nothing about chance."""
    tail, rng = TailRatio(), np.random.default_rng(0)
    before = tail.known
    for _ in range(20):
        tail.observe(_ticks(0.95, 2.0, rng), 0.95, 0.05)
    assert tail.known == before


def test_what_a_fault_spoilt_is_forgotten() -> None:
    """Ticks are believed three seconds late, and not at all if a fault came to light meanwhile."""
    tail, rng = TailRatio(), np.random.default_rng(0)
    for _ in range(200):
        tail.observe(_ticks(0.4, 0.2, rng), 0.4, 0.05)
    before = tail.known
    for _ in range(6):
        tail.observe(_ticks(0.4, 2.0, rng), 0.4, 0.05)
    tail.forget_recent()
    for _ in range(6):
        tail.observe(_ticks(0.4, 0.2, rng), 0.4, 0.05)
    assert tail.known.slowest == pytest.approx(before.slowest, rel=0.02)


def test_pauses_of_the_machine_are_not_multiplied() -> None:
    """One tick in five hundred waits half a budget for something else: a bounded share is set aside for that."""
    tail, rng = TailRatio(), np.random.default_rng(0)
    for _ in range(400):
        ticks = _ticks(0.1, 0.2, rng)
        ticks.add(0.6, missed=False)
        tail.observe(ticks, 0.1, 0.05)
    assert tail.known.slowest > 4
    assert tail.known.likely < 0.5
    assert tail.even_limit(0.95, 0.05) > (0.95 - 0.25) / 1.5


def _in_time(count: int, share: float = 0.8) -> Histogram:
    """So many ticks, all at this share of their budget."""
    ticks = Histogram()
    for _ in range(count):
        ticks.add(share, missed=False)
    return ticks


def test_pauses_that_come_at_any_load_are_told_by_two_of_them() -> None:
    """Ticks take 0.15 of the budget more than even ones, at one load and at twice it: so they will at four times it."""
    tail, rng = TailRatio(), np.random.default_rng(0)
    for even_share in (0.1, 0.2):
        for _ in range(300):
            tail.observe(_ticks(even_share, 0.15 / even_share, rng), even_share, 0.05)
    assert tail.falls == pytest.approx(1, abs=0.2)
    assert tail.even_limit(0.95, 0.05) > 1.15 * 0.95 / (1.025 + tail.known.likely)


def test_a_tail_that_grows_with_the_load_is_multiplied() -> None:
    """Ticks take up to two fifths more than even ones at either load: so they will at any."""
    tail, rng = TailRatio(), np.random.default_rng(0)
    for even_share in (0.2, 0.4):
        for _ in range(300):
            tail.observe(_ticks(even_share, 0.4, rng), even_share, 0.05)
    assert tail.falls == pytest.approx(0, abs=0.1)


def _served_at(*loads: tuple[float, float]) -> TailRatio:
    """At so much of the budget ticks took up to so much more than even ones."""
    tail, rng = TailRatio(), np.random.default_rng(0)
    for even_share, excess in loads:
        for _ in range(300):
            tail.observe(_ticks(even_share, excess, rng), even_share, 0.05)
    return tail


def test_what_the_tail_does_far_below_says_little_about_the_top() -> None:
    """Up to a fifth of the budget ticks took twice as long as even ones, at two fifths only half as much more."""
    assert _served_at((0.05, 1.0), (0.2, 1.0), (0.4, 0.5)).falls > 0.8
    assert _served_at((0.05, 2.0), (0.2, 0.5), (0.4, 0.5)).falls == pytest.approx(0, abs=0.1)


def test_two_loads_that_are_nearly_the_same_tell_nothing() -> None:
    """What differs between them is chance."""
    assert _served_at((0.2, 1.0), (0.24, 0.5)).falls == 0


def test_a_fresh_fleet_proves_little() -> None:
    """A hundred sessions at a tenth of their windows are evidence for ten."""
    evidence = Evidence(TEMPER)
    evidence.saw(100, 0.1, _in_time(4000), 0.05)
    assert evidence.served == 10
    assert evidence.bound(200, 1.0, 0.05) == TEMPER.trust * 200


def test_near_the_top_only_what_is_proven_lets_it_creep() -> None:
    """A remembered fleet is reached again at once and hardly passed; what is served now lets in more."""
    evidence = Evidence(TEMPER, served=180, inherited=180, capacity=200)
    evidence.saw(180, 0.2, _in_time(4000), 0.05)
    assert evidence.bound(200, 1.0, 0.05) == pytest.approx(180 * 1.025)
    evidence.saw(180, 1.0, _in_time(4000), 0.05)
    assert evidence.bound(200, 1.0, 0.05) == pytest.approx(180 * 1.05)
    assert evidence.bound(200, 1.0, 0.15) == pytest.approx(180 * (1 + 0.05 / 3))


def test_a_small_house_creeps_by_one() -> None:
    """A sixtieth of thirty sessions is none."""
    evidence = Evidence(TEMPER)
    evidence.saw(30, 1.0, _in_time(12_000), 0.15)
    assert evidence.bound(33, 1.0, 0.15) == 31


def test_where_the_slowest_tick_is_far_from_late_noise_does_not_slow_the_growth() -> None:
    """Not at all up to half of the budget, in full from four fifths; a slow minute is remembered for two."""
    evidence = Evidence(TEMPER)
    assert evidence.pace(0.2) == pytest.approx(0.25)
    evidence.saw(100, 1.0, _in_time(2000, 0.495), 0.2)
    assert evidence.pace(0.2) == 1
    evidence.saw(100, 1.0, _in_time(2000, 0.65), 0.2)
    assert evidence.pace(0.2) == pytest.approx(0.5, abs=0.05)
    evidence.saw(100, 1.0, _in_time(2000, 0.85), 0.2)
    for _ in range(238):
        evidence.saw(100, 1.0, _in_time(200, 0.495), 0.2)
    assert evidence.pace(0.2) == pytest.approx(0.25)
    evidence.saw(100, 1.0, _in_time(200, 0.495), 0.2)
    evidence.saw(100, 1.0, _in_time(200, 0.495), 0.2)
    assert evidence.pace(0.2) == 1


def test_far_from_late_a_load_is_proven_by_fewer_ticks() -> None:
    """By half of them where the slowest in a thousand takes a fifth of the budget, and no fewer where it takes less."""
    for share, pace in ((0.345, 1.5), (0.195, 2.0), (0.05, 2.0)):
        evidence = Evidence(TEMPER)
        evidence.saw(100, 1.0, _in_time(4000, share), 0.05)
        assert evidence.pace(0.05) == evidence.pace(0.2) == pytest.approx(pace)
        evidence.saw(200, 1.0, _in_time(1000, share), 0.05)
        assert evidence.proven == pytest.approx(100 + 100 * pace / 4)


def test_a_load_is_proven_by_as_many_ticks_as_show_the_slowest_in_a_thousand() -> None:
    """Half of them prove half of the way; on a noisy machine three times as many are needed."""
    evidence = Evidence(TEMPER)
    evidence.saw(180, 1.0, _in_time(4000), 0.05)
    evidence.saw(200, 1.0, _in_time(2000), 0.05)
    assert (evidence.served, evidence.proven) == (200, 190)
    evidence.saw(200, 1.0, _in_time(6000), 0.15)
    assert evidence.proven == pytest.approx(195)
    evidence.saw(200, 1.0, _in_time(4000), 0.05)
    assert evidence.proven == 200


def test_an_earlier_proof_is_of_the_machine_of_that_time() -> None:
    """Where the model allows a fifth less now, it is worth a fifth less; never more than was proven."""
    evidence = Evidence(TEMPER, served=180, inherited=180, capacity=200)
    assert evidence.vouched(160) == pytest.approx(144)
    assert evidence.vouched(250) == 180
    evidence.saw(150, 1.0, _in_time(4000), 0.05)
    assert evidence.vouched(160) == 150
    evidence.refuted()
    assert evidence.vouched(250) == pytest.approx(147)


def test_congestion_refutes_evidence() -> None:
    """The load under which ticks were late is not evidence for itself."""
    evidence = Evidence(TEMPER, served=200)
    evidence.saw(150, 1.0, _in_time(4000), 0.05)
    evidence.refuted()
    assert evidence.served == pytest.approx(147)
    evidence.refuted()
    assert evidence.served == pytest.approx(147)


def test_nobody_leaves_until_somebody_has() -> None:
    """Without departures every window fills."""
    departures = Departures(fill_s=48)
    departures.watch(100, 60)
    assert departures.settled_fill == 1


def test_the_settled_fill_follows_the_departures_observed() -> None:
    """It is the mean of min(1, age/fill) over the ages of a steady fleet."""
    departures, rng = Departures(fill_s=48), np.random.default_rng(0)
    mean_s, fleet = 60.0, 120
    for _ in range(2000):
        departures.watch(fleet, 0.5)
        for _ in range(rng.poisson(fleet * 0.5 / mean_s)):
            departures.left()
    ages = rng.exponential(mean_s, 200_000)
    assert departures.hazard == pytest.approx(1 / mean_s, rel=0.05)
    assert departures.settled_fill == pytest.approx(np.minimum(1, ages / 48).mean(), rel=0.03)
    assert math.isfinite(departures.settled_fill)
