"""What a decision costs while four thousand sessions are in."""

import statistics
import time
from math import inf

from admission.controller import Controller
from admission.port import Lease, Request
from admission.settings import AdmissionSettings
from bench.admission_doors import settings_for
from bench.admission_plant import A
from bench.admission_runs import learned_for

SESSIONS = 4000
_ROUNDS, _EACH = 20, 200
# So seldom that four thousand fit, so that every bound is asked before somebody is let in.
_SELDOM = Request(tick_s=10_000.0, steps_per_tick=1, plateau_tokens=100)


def microseconds() -> float:
    """CPU time of one `try_admit` that lets somebody in, median over rounds."""
    shape = settings_for(A).shape
    controller = Controller(AdmissionSettings(shape, 100_000), learned_for(A, 10, "calibrated", 1))
    controller.joins.rate = inf
    now = 0.0
    for _ in range(SESSIONS):
        now += 1.0
        assert isinstance(controller.try_admit(now, _SELDOM), Lease)
    spent = []
    for _ in range(_ROUNDS):
        leases = []
        started = time.process_time()
        for _ in range(_EACH):
            now += 1.0
            leases.append(controller.try_admit(now, _SELDOM))
        spent.append((time.process_time() - started) / _EACH)
        for lease in leases:
            assert isinstance(lease, Lease)
            controller.release(now, lease)
    return 1e6 * statistics.median(spent)
