"""What a calibration makes of what it is shown."""

from admission.calibration import Calibration, Soak, SoakProbe, StepProbe
from admission.cost_model import StepSample
from admission.learned import Learned
from admission.settings import AdmissionSettings, SessionShape

SHAPE = SessionShape(0.2, 0.2, 5, 1000, 20.0, 32)
SESSIONS = 40


def _step_s(sessions: int, tokens: int) -> float:
    return 0.004 + 1e-4 * sessions + 2e-7 * sessions * tokens


def _after_a_soak(*speeds: float) -> Learned:
    """Calibrated where steps are even, and a soak of one minute had these speeds in turn."""
    calibration = Calibration(AdmissionSettings(SHAPE, 100, pool_blocks=10_000), 100, 100)
    while isinstance(probe := calibration.next(), StepProbe):
        seconds = SHAPE.steps_per_tick * _step_s(probe.sessions, probe.tokens)
        calibration.stepped(probe, [seconds] * 4)
    soak = Soak()
    for tenth in range(600):
        part, speed = soak.part(tenth / 10), speeds[tenth * len(speeds) // 600]
        step_s = speed * _step_s(SESSIONS, 1000)
        part.steps.append(StepSample(SESSIONS, step_s, SESSIONS * 1000))
        for late in range(20):
            share = step_s / SHAPE.tick_s * (SHAPE.steps_per_tick + 1 + 0.01 * late)
            part.ticks.add(share, missed=False)
    calibration.soaked(SoakProbe(SESSIONS, 60.0), soak)
    return calibration.result("key", 0.01)


def test_a_machine_that_changed_its_speed_has_no_long_tail() -> None:
    """Every tick takes what its steps take, in the fast half and in the slow one: nothing sticks out of the mean."""
    steady, changing = _after_a_soak(1.0), _after_a_soak(0.7, 1.3)
    assert changing.tail[0] <= 1.25 * steady.tail[0]


def test_a_soak_is_kept_whole() -> None:
    """Whatever its parts."""
    soak = Soak()
    for second in (0.0, 3.9, 4.0, 30.0):
        soak.part(second).ticks.add(0.5, missed=False)
    assert soak.ticks.total == 4
    assert [part.ticks.total for part in soak.parts] == [2, 1, 0, 0, 0, 0, 0, 1]
