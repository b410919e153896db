"""Jobs of a session that end before they begin."""

import gc

from support.sim_engine import Caller, ask, cascade, running

from engine.models.base import SessionSetup
from engine.virtual_time import run_virtual


def test_an_answer_that_is_cancelled_before_it_begins_leaves_nothing() -> None:
    """No coroutine is left unawaited, which Python would warn of (and a warning is an error here)."""

    async def scenario() -> None:
        async with running(cascade()) as (engine, _, _plant):
            session = engine.open("s", SessionSetup(), Caller())
            session.respond(ask("r1", "Hello?"))
            session.cancel("r1")
            engine.close("s")

    run_virtual(scenario())
    gc.collect()
