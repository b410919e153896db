"""The step loop, on its own."""

import asyncio

from support.sim_engine import Recorder

from engine.clock import LoopClock
from engine.executor import SimExecutor
from engine.sim_backend import SimBackend, SimCost
from engine.stepping import Stepper
from engine.virtual_time import VirtualLoop, run_virtual
from engine.work import Append, TokenChunk

DELIVERY_S = 0.005


class Slow:
    """Whoever asked takes a while to take what came."""

    def __init__(self) -> None:
        self.done = asyncio.Event()

    def sent(self, append: Append, now: float) -> None: ...

    def take(self, chunk: TokenChunk, now: float) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.pass_time(DELIVERY_S)
        if chunk.finished:
            self.done.set()


def test_a_step_is_over_when_what_it_brought_is_delivered() -> None:
    """The next one cannot begin sooner, so admission must count it, or it lets in more than can be served."""

    async def main() -> Recorder:
        clock, recorder, slow = LoopClock(), Recorder(), Slow()
        executor = SimExecutor(SimBackend(SimCost(0.02, 0.0, 0.0, 0.0)), clock)
        await executor.start()
        stepper = Stepper(executor, clock, recorder, 1000, lambda fault, session_id: None)
        running = asyncio.create_task(stepper.run())
        stepper.submit(Append("a", 0, (1, 2, 3), 2, 0.0), slow)
        await slow.done.wait()
        stepper.stop()
        await running
        return recorder

    first, second = run_virtual(main()).steps[:2]
    for step in (first, second):
        assert abs(step.engine_s - 0.02) < 1e-9
        assert abs(step.host_s - DELIVERY_S) < 1e-9
