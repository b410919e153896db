"""The server's lifecycle is one table; probes follow from the phase."""

import pytest

from server.health import TRANSITIONS, Health, Phase


def test_ready_only_between_warm_up_and_drain() -> None:
    """/readyz follows the phase."""
    health = Health()
    assert (health.is_live, health.is_ready) == (True, False)
    health.become(Phase.READY)
    assert (health.is_live, health.is_ready) == (True, True)
    health.become(Phase.DRAINING)
    assert (health.is_live, health.is_ready) == (True, False)
    health.become(Phase.DEAD)
    assert (health.is_live, health.is_ready) == (False, False)


def test_an_illegal_step_raises_and_changes_nothing() -> None:
    """Nothing comes back from the dead."""
    health = Health()
    health.become(Phase.DEAD, "the engine died")
    with pytest.raises(ValueError, match="dead -> ready"):
        health.become(Phase.READY)
    assert (health.phase, health.note) == (Phase.DEAD, "the engine died")


def test_every_phase_has_its_row() -> None:
    """The table is complete."""
    assert set(TRANSITIONS) == set(Phase)


def test_a_stalled_engine_is_live_but_not_ready() -> None:
    """No new calls while nothing moves; no restart either, for it may move again."""
    health = Health()
    health.become(Phase.READY)
    health.stalled = True
    assert not health.is_ready
    assert health.is_live
    health.stalled = False
    assert health.is_ready
