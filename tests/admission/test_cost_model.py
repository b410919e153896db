"""What a step costs, learned."""

import json
from collections.abc import Callable

import numpy as np
import pytest

from admission.cost_model import CostModel, StepSample
from admission.projection import CURVE

PLATEAU = 6000
BUDGET_S = 0.03


def _law(sessions: float, tokens: float) -> float:
    return 0.004 + 3e-5 * sessions + 2e-8 * tokens


def _serve(
    model: CostModel,
    law: Callable[[float, float], float],
    loads: list[tuple[int, float]],
    seed: int = 0,
    noise: float = 0.05,
) -> None:
    """One interval per load: (sessions in a step, tokens each holds)."""
    rng = np.random.default_rng(seed)
    for sessions, each in loads:
        for _ in range(30):
            n = max(1, int(sessions * rng.uniform(0.8, 1.2)))
            seconds = law(n, n * each) * float(np.exp(rng.normal(0, noise)))
            model.add(StepSample(n, seconds, n * each))
        model.fit((2 * sessions, 2 * sessions * each), 0.5)


def _predicted(model: CostModel, sessions: float, tokens: float) -> float:
    c = model.coefficients()
    return c[0] + c[1] * sessions + c[2] * tokens + c[3] * tokens**CURVE


GROWING = [(n, each) for n in (4, 8, 16, 30, 50) for each in (500, 2000, 4000, 6000)]


def test_it_learns_the_law_it_is_shown() -> None:
    """Within three percent, also twice beyond the largest load seen."""
    model = CostModel(BUDGET_S, PLATEAU)
    _serve(model, _law, GROWING)
    assert model.ready
    for sessions in (5, 40, 100):
        tokens = sessions * PLATEAU
        assert _predicted(model, sessions, tokens) == pytest.approx(
            _law(sessions, tokens), rel=0.03
        )


def _slower(model: CostModel, sessions: float) -> float:
    """By what factor the careful law is slower than the likely one for so many full sessions."""
    tokens = sessions * PLATEAU
    c = model.careful(sessions, tokens)
    careful = c[0] + c[1] * sessions + c[2] * tokens + c[3] * tokens**CURVE
    return careful / _predicted(model, sessions, tokens)


def test_young_sessions_leave_doubt_about_old_ones() -> None:
    """Nothing but fresh contexts: at full age the slowest likely law is far off; with old ones seen it is near."""
    young, old = CostModel(BUDGET_S, PLATEAU), CostModel(BUDGET_S, PLATEAU)
    _serve(young, _law, [(8, 100.0)] * 6)
    _serve(old, _law, GROWING)
    assert 1 < _slower(old, 100) < 1.1
    assert _slower(young, 100) > 2


def test_a_slowdown_moves_the_gain_and_not_the_shape() -> None:
    """The fleet is the same and every step takes 1.6 times as long: the shape waits for it to pass."""
    model = CostModel(BUDGET_S, PLATEAU)
    _serve(model, _law, GROWING)
    _serve(model, _law, [(50, 6000.0)] * 8)
    shape = model.law.theta.copy()
    _serve(model, lambda n, kv: 1.6 * _law(n, kv), [(50, 6000.0)] * 20)
    assert model.regime.gain == pytest.approx(1.6, rel=0.05)
    assert model.regime.lasts_s > 0
    frozen = [model.law.theta[0], model.law.theta[2]]
    assert frozen == pytest.approx([shape[0], shape[2]], rel=0.25)
    _serve(model, _law, [(50, 6000.0)] * 10)
    assert _predicted(model, 50, 50 * PLATEAU) == pytest.approx(_law(50, 50 * PLATEAU), rel=0.05)
    assert model.regime.lasts_s == 0


def test_steps_that_no_law_fits_are_no_change_of_regime() -> None:
    """Small steps take less than any line through the large ones: seen often, they leave the gain where it is."""
    model = CostModel(BUDGET_S, PLATEAU)

    def bent(n: float, kv: float) -> float:
        return _law(n, kv) * (0.5 if n < 5 else 1.0)

    _serve(model, bent, [(n, 6000.0) for n in (2, 8, 16, 30, 50, 80, 120)] * 3)
    _serve(model, bent, [(2, 6000.0)] * 30)
    assert model.regime.gain == pytest.approx(1, abs=0.03)
    assert bent(100, 6e5) < _predicted(model, 100, 6e5) < 1.15 * bent(100, 6e5)


def test_nobody_is_let_in_for_a_lucky_minute() -> None:
    """An engine that is faster for the moment is not believed to stay so; one that is slower is, at once."""
    model = CostModel(BUDGET_S, PLATEAU)
    _serve(model, _law, [*GROWING, *[(50, 6000.0)] * 8])
    _serve(model, lambda n, kv: 0.6 * _law(n, kv), [(50, 6000.0)] * 20)
    assert model.regime.gain == pytest.approx(0.6, rel=0.05)
    assert _predicted(model, 50, 3e5) == pytest.approx(_law(50, 3e5), rel=0.05)
    _serve(model, lambda n, kv: 1.4 * _law(n, kv), [(50, 6000.0)] * 10)
    assert _predicted(model, 50, 3e5) == pytest.approx(1.4 * _law(50, 3e5), rel=0.05)


def _at_speed(factor: float) -> Callable[[float, float], float]:
    return lambda n, kv: factor * _law(n, kv)


def test_luck_is_the_truth_after_ten_minutes() -> None:
    """A quarter faster for nine minutes, but for a second now and then: not believed. Another two: believed."""
    model = CostModel(BUDGET_S, PLATEAU)
    _serve(model, _law, [*GROWING, (100, 6000.0), *[(50, 6000.0)] * 8])
    for _ in range(49):
        for factor, intervals in ((0.76, 20), (0.92, 2)):
            _serve(model, _at_speed(factor), [(50, 6000.0)] * intervals)
    assert _predicted(model, 100, 6e5) > 0.97 * _law(100, 6e5)
    _serve(model, _at_speed(0.76), [(50, 6000.0)] * 240)
    assert _predicted(model, 100, 6e5) < 0.85 * _law(100, 6e5)


def test_a_machine_of_two_speeds_is_as_slow_as_it_was() -> None:
    """A fifth slower by turns of forty seconds: it is priced at the slow speed, in either."""
    model = CostModel(BUDGET_S, PLATEAU)
    _serve(model, _law, [*GROWING, *[(50, 6000.0)] * 8])
    for _ in range(4):
        _serve(model, _at_speed(1.22), [(50, 6000.0)] * 80)
        _serve(model, _law, [(50, 6000.0)] * 80)
        assert _predicted(model, 50, 3e5) == pytest.approx(1.22 * _law(50, 3e5), rel=0.06)


def test_loads_met_in_a_lucky_minute_are_learned_at_the_usual_speed() -> None:
    """The fleet doubles while steps take four fifths: what its steps will take is not what they take now."""
    model = CostModel(BUDGET_S, PLATEAU)
    _serve(model, _law, [*GROWING, *[(50, 6000.0)] * 8])
    _serve(model, _at_speed(0.8), [(50, 6000.0)] * 10 + [(n, 6000.0) for n in range(50, 110)])
    assert _predicted(model, 110, 6.6e5) == pytest.approx(_law(110, 6.6e5), rel=0.06)


@pytest.mark.parametrize("factor", [0.8, 1.6])
def test_a_regime_ends_where_nothing_known_is_met_again(factor: float) -> None:
    """It began with five calls; the hundred that follow never take a step that was seen before."""
    model = CostModel(BUDGET_S, PLATEAU)
    _serve(model, _law, [*GROWING, *[(5, 6000.0)] * 8])
    _serve(model, _at_speed(factor), [(5, 6000.0)] * 10)
    assert model.regime.lasts_s > 0
    _serve(model, _at_speed(0.97), [(120, 6000.0)] * 40)
    assert model.regime.lasts_s == 0
    assert _predicted(model, 120, 7.2e5) == pytest.approx(0.97 * _law(120, 7.2e5), rel=0.05)


def test_a_fleet_whose_steps_get_smaller_has_a_faster_engine() -> None:
    """Its steps shrink with the speed to such as nobody met; what those take now says nothing about larger ones."""
    model = CostModel(BUDGET_S, PLATEAU)
    rng = np.random.default_rng(5)

    def interval(speed: float, sessions: int) -> None:
        for _ in range(40):
            n = round(sessions * rng.uniform(0.9, 1.1))
            seconds = speed * _law(n, n * PLATEAU) * float(np.exp(rng.normal(0, 0.05)))
            model.add(StepSample(n, seconds, n * PLATEAU))
        model.fit((130, 130 * PLATEAU), 0.5)

    for _ in range(40):
        interval(1.0, 60)
    for _ in range(80):
        interval(0.8, 30)
    assert model.regime.gain < 0.9
    assert _predicted(model, 60, 60 * PLATEAU) == pytest.approx(_law(60, 60 * PLATEAU), rel=0.03)


def test_what_is_measured_outside_of_time_is_learned_whatever_it_says() -> None:
    """A calibration serves whole fleets after it timed steps, and finds them half as slow again: both count."""
    model = CostModel(BUDGET_S, PLATEAU)
    for factor in (1.0, 1.5):
        for _ in range(30):
            for n in (40, 60, 80):
                model.add(StepSample(n, factor * _law(n, n * 6000), n * 6000))
            model.fit((80, 480_000), 0.0, weight=10.0)
    kept = CostModel(BUDGET_S, PLATEAU)
    kept.restore(model.export())
    assert _predicted(kept, 60, 3.6e5) == pytest.approx(1.25 * _law(60, 3.6e5), rel=0.05)


def test_a_load_that_is_faster_than_the_prior_says_is_no_luck() -> None:
    """Nothing was ever seen there: the prior is wrong, and gives way at once."""
    model, teacher = CostModel(BUDGET_S, PLATEAU), CostModel(BUDGET_S, PLATEAU)
    _serve(teacher, _at_speed(1.4), GROWING)
    model.restore(teacher.export(100.0))
    _serve(model, _law, [(50, 6000.0)] * 30)
    assert _predicted(model, 50, 3e5) == pytest.approx(_law(50, 3e5), rel=0.1)


def test_a_slowdown_that_stays_is_absorbed() -> None:
    """After two minutes it is the new truth."""
    model = CostModel(BUDGET_S, PLATEAU)
    _serve(model, _law, [*GROWING, *[(50, 6000.0)] * 8])
    _serve(model, _at_speed(1.6), [(50, 6000.0)] * 260)
    assert model.regime.lasts_s == 0
    assert model.regime.gain == pytest.approx(1, rel=0.1)
    assert _predicted(model, 50, 3e5) == pytest.approx(1.6 * _law(50, 3e5), rel=0.05)


def test_it_is_remembered() -> None:
    """Through JSON, and then it takes a handful of contrary samples without being swayed."""
    model = CostModel(BUDGET_S, PLATEAU)
    _serve(model, _law, GROWING)
    restored = CostModel(BUDGET_S, PLATEAU)
    restored.restore(json.loads(json.dumps(model.export())))
    assert restored.calibrated
    assert restored.ready
    _serve(restored, _law, [(4, 100.0)] * 3)
    assert _predicted(restored, 80, 80 * PLATEAU) == pytest.approx(_law(80, 80 * PLATEAU), rel=0.03)


@pytest.mark.parametrize(
    "damage", [{"theta": [1.0]}, {"theta": [float("nan")] * 4}, {"precision": [[1.0]]}]
)
def test_a_damaged_memory_is_refused(damage: dict[str, object]) -> None:
    """By ValueError; the model stays as it was."""
    model = CostModel(BUDGET_S, PLATEAU)
    state = model.export() | damage
    before = model.law.theta.copy()
    with pytest.raises(ValueError, match="remembered"):
        model.restore(state)
    assert (model.law.theta == before).all()


def test_curvature_is_not_forgotten() -> None:
    """Hours at one load leave the shape at other loads as it was learned there."""
    model = CostModel(BUDGET_S, PLATEAU)

    def convex(n: float, kv: float) -> float:
        return 0.004 + 3e-5 * n + 0.018 * (kv / 9e5) ** 1.25

    _serve(model, convex, [*GROWING, (90, 6000.0), (140, 6000.0)])
    _serve(model, convex, [(60, 6000.0)] * 200)
    assert _predicted(model, 140, 140 * PLATEAU) == pytest.approx(
        convex(140, 140 * PLATEAU), rel=0.03
    )


def test_nothing_new_is_learned_while_the_speed_changes() -> None:
    """A fleet grows just as a slow neighbour comes back: the new load is known as slow as it is, not slower."""
    model = CostModel(BUDGET_S, PLATEAU)
    rng = np.random.default_rng(3)

    def interval(speed: float, *sessions: int) -> None:
        for n in sessions:
            for _ in range(20):
                seconds = speed * _law(n, n * PLATEAU) * float(np.exp(rng.normal(0, 0.05)))
                model.add(StepSample(n, seconds, n * PLATEAU))
        model.fit((100, 100 * PLATEAU), 0.5)

    for _ in range(20):
        interval(1.0, 20, 40)
    for _ in range(40):
        interval(0.75, 20, 40)
    for _ in range(3):
        interval(1.0, 20, 40, 70)
    for _ in range(20):
        interval(1.0, 70)
    assert model.regime.gain == pytest.approx(1, abs=0.03)
    assert _predicted(model, 70, 70 * PLATEAU) == pytest.approx(_law(70, 70 * PLATEAU), rel=0.03)


def test_a_few_steps_that_vary_little_do_not_make_a_steady_machine() -> None:
    """Whoever is let in for a quiet half second stays."""
    model = CostModel(BUDGET_S, PLATEAU)
    rng = np.random.default_rng(4)
    found = []
    for _ in range(400):
        for _ in range(8):
            seconds = _law(40, 40 * PLATEAU) * float(np.exp(rng.normal(0, 0.15)))
            model.add(StepSample(40, seconds, 40 * PLATEAU))
        model.fit((80, 80 * PLATEAU), 0.5)
        found.append(model.noise)
    settled = np.array(found[100:])
    assert 0.1 < settled.mean() < 0.16
    assert settled.min() > 0.85 * settled.mean()
