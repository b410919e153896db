"""The event loop of the server process, and the clock on it."""

import asyncio

import pytest

from engine.clock import LoopClock

pytest.importorskip("uvloop", reason="no wheel for this platform")

from server.loop import FineLoop


def test_its_time_is_not_rounded_to_milliseconds() -> None:
    """Of a hundred looks at a clock that counts in nanoseconds hardly any falls on a whole millisecond."""
    loop = FineLoop()
    try:
        looks = [loop.time() * 1000 for _ in range(100)]
    finally:
        loop.close()
    assert looks == sorted(looks)
    assert sum(look != round(look) for look in looks) > 50


def test_nobody_is_woken_before_the_instant() -> None:
    """Timers are rounded to milliseconds, also down; the clock makes up for it."""

    async def main() -> list[float]:
        clock, early = LoopClock(), list[float]()
        for tenths in range(1, 40):
            instant = clock.now() + tenths * 1e-4
            await clock.sleep_until(instant)
            early.append(instant - clock.now())
        return early

    with asyncio.Runner(loop_factory=FineLoop) as runner:
        assert max(runner.run(main())) <= 1e-6


def test_its_timers_count_from_its_own_time() -> None:
    """`call_at` and `asyncio.timeout` are told instants of `time`."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout_at(loop.time() + 0.01):
                await asyncio.sleep(60)

    with asyncio.Runner(loop_factory=FineLoop) as runner:
        runner.run(main())
