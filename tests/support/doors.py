"""Doors for tests."""

from admission.port import AdmissionPort
from admission.waiting import WaitingLine
from engine.clock import LoopClock
from server.metrics import Metrics
from server.waiting_room import WaitingRoom


def nobody_waits(admission: AdmissionPort, metrics: Metrics) -> WaitingRoom:
    """The door as it is by default: every answer is immediate."""
    return waiting_room(admission, metrics, wait_s=0.0)


def waiting_room(
    admission: AdmissionPort, metrics: Metrics, wait_s: float, places: int = 512
) -> WaitingRoom:
    """A door with a line before it; whoever uses it runs it."""
    return WaitingRoom(WaitingLine(admission, wait_s, places), LoopClock(), metrics)
