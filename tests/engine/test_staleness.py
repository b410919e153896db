"""What a frame-locked call leaves out when it is behind, and that it does so in a full house only."""

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from support.sim_engine import RATE, Caller, Recorder, running

from engine.models.base import SessionSetup
from engine.models.sim import SimDuplex, SimDuplexSettings
from engine.settings import EngineSettings
from engine.sim_backend import SimBackend, SimCost
from engine.staleness import TickTimes
from engine.virtual_time import run_virtual
from engine.work import StepResult, TickBatch

TICK_S = 0.2
FRAME = bytes(int(TICK_S * RATE) * 2)
SETUP = SessionSetup(instructions="be brief")
LIGHT, FULL = 4, 24  # sessions
HICCUP_S = 0.5
ON_ITS_WAY_S = 0.004  # a frame, from the socket to the engine


def usually(seconds: float, period_s: float = 1.0) -> TickTimes:
    """Of a session whose ticks have taken so long for a while."""
    times = TickTimes(period_s)
    for _ in range(40):
        times.took(seconds)
    return times


def test_a_session_that_knows_nothing_leaves_nothing_out() -> None:
    """Audio that waited for a prompt, or for the first ticks, is heard."""
    assert not TickTimes(1.0).is_hopeless(5.0)


def test_where_ticks_are_short_everything_is_heard() -> None:
    assert not usually(0.45).is_hopeless(30.0)


def test_where_ticks_are_long_a_tick_is_left_out_if_it_cannot_be_in_time() -> None:
    times = usually(0.8)
    assert not times.is_hopeless(0.15)
    assert times.is_hopeless(0.25)


def test_one_hiccup_says_little_of_what_ticks_take() -> None:
    """However long it was: it counts for one period."""
    times = usually(0.1)
    times.took(30.0)
    assert not times.is_hopeless(0.7)


@given(st.lists(st.floats(0, 100), max_size=60), st.floats(0.02, 2))
def test_a_frame_that_has_just_come_is_never_left_out(took: list[float], period_s: float) -> None:
    times = TickTimes(period_s)
    for seconds in took:
        times.took(seconds)
    assert not times.is_hopeless(0.05 * period_s)


def test_an_overload_that_lasted_does_not_silence_a_call_for_good() -> None:
    """Where every frame comes to be heard late, one is begun now and then, and tells what ticks take by now."""
    times = usually(5.0)
    assert not times.is_hopeless(0.05)  # just come
    left_out = 0
    while times.is_hopeless(0.4):
        times.left_out()
        left_out += 1
        assert left_out < 50


class Disturbed(SimBackend):
    """One step, once there is a hiccup, takes `HICCUP_S`; and every one as many times longer as `slowness` says."""

    hiccup = False
    slowness = 1.0

    def step(self, batch: TickBatch) -> StepResult:
        result = super().step(batch)
        seconds = HICCUP_S if self.hiccup else self.slowness * result.engine_s
        self.hiccup = False
        return StepResult(result.chunks, seconds, result.kv)


async def _talk(session: object, frames: int, offset_s: float) -> None:
    loop = asyncio.get_running_loop()
    start = loop.time() + offset_s
    for index in range(frames):
        await asyncio.sleep(start + index * TICK_S - loop.time())
        session.push_audio(FRAME, loop.time() - ON_ITS_WAY_S)  # type: ignore[attr-defined]


def disturbed(sessions: int, *disturbances: tuple[int, str, float], skip: bool) -> Recorder:
    """What became of 60 ticks of each. A disturbance: at which tick which attribute of the backend gets what value."""
    kept: list[Recorder] = []

    async def main() -> None:
        # With everybody in every step a tick of the full house takes 0.96 of its period, by turns half of it.
        backend = Disturbed(SimCost(fixed_s=0.006, session_s=0.00175))
        model = SimDuplex(SimDuplexSettings(tick_ms=round(1000 * TICK_S), decode_per_tick=4))
        settings = EngineSettings(inbox_s=2.0, skip_late_ticks=skip)
        async with running(model, backend=backend, settings=settings) as (engine, recorder, _):
            kept.append(recorder)
            talking = []
            for index in range(sessions):
                session = engine.open(f"s{index}", SETUP, Caller())
                talking.append(_talk(session, 60, index * TICK_S / sessions))
            for tick, name, value in disturbances:
                asyncio.get_running_loop().call_later(tick * TICK_S, setattr, backend, name, value)
            await asyncio.gather(*talking)
            await asyncio.sleep(4)

    run_virtual(main(), 60)
    recorder = kept[0]
    assert sum(recorder.outcomes("frame").values()) == 60 * sessions
    return recorder


def after_a_hiccup(sessions: int, *, skip: bool) -> Counter[str]:
    """What became of the ticks, with one hiccup at the tenth."""
    return Counter(disturbed(sessions, (10, "hiccup", True), skip=skip).outcomes("frame"))


def test_a_full_house_is_back_in_time_a_few_ticks_after_a_hiccup() -> None:
    """The hiccup is two and a half ticks long: more cannot be saved."""
    counts = after_a_hiccup(FULL, skip=True)
    assert counts["dropped"] > 0
    assert FULL * 2 <= counts["late"] + counts["dropped"] <= FULL * 6


def test_working_off_what_waits_makes_everybody_late_for_long() -> None:
    """What the rule is for: the same house without it."""
    counts = after_a_hiccup(FULL, skip=False)
    assert counts["dropped"] == 0
    assert counts["late"] > FULL * 20


def test_a_light_house_hears_everything_late() -> None:
    counts = after_a_hiccup(LIGHT, skip=True)
    assert counts["dropped"] == 0
    assert 0 < counts["late"] <= LIGHT * 5


def test_a_full_house_speaks_again_once_an_overload_is_over() -> None:
    """Eight seconds in which nobody is in time are no reason to begin nothing any more."""
    overload = (5, "slowness", 2.0), (45, "slowness", 1.0)
    recorder = disturbed(FULL, *overload, skip=True)
    start = min(tick.ready_at for tick in recorder.ticks)
    during = [t for t in recorder.ticks if 15 <= (t.ready_at - start) / TICK_S < 45]
    after = [t for t in recorder.ticks if (t.ready_at - start) / TICK_S >= 50]
    assert sum(t.outcome != "on_time" for t in during) > len(during) / 2
    assert len(after) >= 9 * FULL
    assert Counter(t.outcome for t in after).keys() == {"on_time"}
