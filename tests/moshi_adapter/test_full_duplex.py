"""The stock engine over Moshi, in virtual time: how frames meet steps, and how a response opens and closes."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from moshi_adapter.streams import FRAME, noise, tiny
from support.sim_engine import Caller, Recorder, running

from engine.engine import Engine
from engine.models.base import SessionSetup
from engine.models.moshi import MoshiModel, tiny_spelling
from engine.moshi_adapter.backend import MoshiBackend
from engine.moshi_adapter.lockstep import RowInput, RowOutput
from engine.virtual_time import run_virtual

pytestmark = [pytest.mark.models, pytest.mark.slow]
STEP_S = 0.03
TICK_S = 0.08


@asynccontextmanager
async def engine_of(slots: int) -> AsyncIterator[tuple[Engine, Recorder, MoshiBackend]]:
    """An engine whose steps take 30 ms of virtual time."""
    backend = tiny(slots)
    readings = itertools.count()
    backend._timer = lambda: next(readings) * STEP_S  # two readings a step
    model = MoshiModel("m", tiny_spelling())
    async with running(model, backend=backend) as (engine, recorder, _):  # type: ignore[arg-type]
        yield engine, recorder, backend


async def talk(engine: Engine, name: str, frames: Sequence[bytes], starts_at: float) -> Caller:
    """Push a frame every 80 ms from `starts_at` on."""
    listener, loop = Caller(), asyncio.get_running_loop()
    await asyncio.sleep(starts_at)
    session = engine.open(name, SessionSetup(), listener)
    for k, pcm in enumerate(frames):
        await asyncio.sleep(max(0.0, starts_at + k * TICK_S - loop.time()))
        session.push_audio(pcm, loop.time())
    await asyncio.sleep(3 * STEP_S)
    return listener


def test_frames_that_come_together_are_one_step() -> None:
    """Four callers on the same beat: as many steps as ticks, and every caller is in each."""

    async def main() -> None:
        async with engine_of(4) as (engine, recorder, _):
            async with asyncio.TaskGroup() as group:
                for i in range(4):
                    group.create_task(talk(engine, f"s{i}", noise(i, 8), 0.0))
            working = [step for step in recorder.steps if step.sessions]
            assert len(recorder.steps) == 8, working
            assert recorder.outcomes("frame") == {"on_time": 32}

    run_virtual(main(), limit_s=60)


def test_frames_out_of_phase_wait_for_one_step_at_most() -> None:
    """Eight callers anywhere within the tick: all in time, none longer than the step under way and its own.

    So no window is needed in which to gather frames: whoever came during a step is in the next.
    """

    async def main() -> None:
        async with engine_of(8) as (engine, recorder, _):
            async with asyncio.TaskGroup() as group:
                for i in range(8):
                    group.create_task(talk(engine, f"s{i}", noise(i, 10), 0.0097 * i))
            assert recorder.outcomes("frame") == {"on_time": 80}
            assert max(tick.latency_s for tick in recorder.ticks) <= 2 * STEP_S + 1e-6
            duration_s = 10 * TICK_S + 8 * 0.0097
            assert len(recorder.steps) <= duration_s / STEP_S + 2  # not one a frame

    run_virtual(main(), limit_s=60)


class Script:
    """Stands in for the model: what it sounds like, frame by frame."""

    frame_bytes = 2 * FRAME
    context_frames = 24

    def __init__(self, loud: str) -> None:
        self._loud = deque(loud)  # "#" for sound, "." for silence

    def step(self, size: int, inputs: Sequence[RowInput]) -> list[RowOutput]:
        sound = noise(1, 1)[0] if self._loud.popleft() == "#" else bytes(2 * FRAME)
        return [RowOutput(3, sound) for _ in inputs]


def test_a_response_opens_with_sound_and_closes_with_silence() -> None:
    """Silence before it is not sent; the pause in it is; it closes after 640 ms (eight frames) of silence."""

    async def main() -> None:
        async with engine_of(1) as (engine, _, backend):
            backend._lockstep = Script("..##..##" + "." * 10 + "#.")  # type: ignore[assignment]
            caller = await talk(engine, "a", [bytes(2 * FRAME)] * 20, 0.0)
            heard = "".join("s" if kind == "spoke" else "|" for kind in caller.kinds())
        assert heard == "s" * 6 + "s" * 7 + "|" + "ss"

    run_virtual(main(), limit_s=60)


def test_silence_is_told_after_a_cancel_too() -> None:
    """The client has cancelled; that the model has stopped since is how the protocol knows when to listen again."""

    async def main() -> None:
        async with engine_of(1) as (engine, _, backend):
            backend._lockstep = Script("#" + "." * 8)  # type: ignore[assignment]
            listener, frame = Caller(), bytes(2 * FRAME)
            session = engine.open("a", SessionSetup(), listener)
            session.push_audio(frame, 0.0)
            await listener.until("spoke")
            session.cancel("resp_1")
            session.push_audio(frame * 8, 0.0)
            await listener.until("fell_silent")

    run_virtual(main(), limit_s=60)


def test_a_caller_without_a_slot_is_told() -> None:
    """Were the door to let in one too many, that call fails and the others go on."""

    async def main() -> None:
        async with engine_of(1) as (engine, _, _):
            async with asyncio.TaskGroup() as group:
                first = group.create_task(talk(engine, "first", noise(1, 6), 0.0))
                second = group.create_task(talk(engine, "second", noise(2, 1), 0.1))
            assert ("failed", "engine_unavailable") in second.result().facts
            assert first.result().kinds() == ["spoke"] * 5

    run_virtual(main(), limit_s=60)
