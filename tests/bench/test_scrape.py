"""Numbers are read out of the server's exposition text."""

from bench.scrape import read

TEXT = """\
# TYPE metronome_ticks_total counter
metronome_ticks_total{model="m",outcome="on_time"} 12.0
metronome_ticks_total{model="m",outcome="late"} 1.0
metronome_ticks_total{model="m",outcome="empty"} 0.0
metronome_ticks_total{model="m",outcome="dropped"} 0.0
# TYPE metronome_kv_blocks gauge
metronome_kv_blocks{state="free"} 100.0
metronome_kv_blocks{state="resident"} 7.0
# TYPE metronome_sessions_active gauge
metronome_sessions_active{model="m"} 3.0
"""


def test_ticks_blocks_and_sessions_are_found() -> None:
    """Everything that a benchmark prints is read; what is absent is zero."""
    found = read(TEXT)
    assert dict(found.ticks) == {"on_time": 12, "late": 1, "empty": 0, "dropped": 0}
    assert (found.kv_held, found.kv_free, found.sessions) == (7, 100, 3)
    assert read("").ticks["on_time"] == 0


def test_the_difference_of_two_scrapes_is_what_happened_between() -> None:
    """Counters are cumulative; a turn's ticks are a difference."""
    later = read(TEXT.replace('"on_time"} 12.0', '"on_time"} 20.0'))
    assert later.ticks_since(read(TEXT))["on_time"] == 8
    assert later.ticks_since(read(TEXT))["late"] == 0
