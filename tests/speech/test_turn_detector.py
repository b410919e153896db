"""Turns in a stream of speech probabilities."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.models.base import (
    IdleTimeout,
    Signal,
    SpeechPaused,
    SpeechStarted,
    SpeechStopped,
    TurnDetection,
)
from engine.speech.turn_detector import Phase, TurnDetector

_SETTINGS = TurnDetection(prefix_padding_ms=96, silence_duration_ms=320)


def signals(detector: TurnDetector, *runs: tuple[float, int]) -> list[Signal]:
    """What happens over runs of (probability, frames)."""
    pushed = [detector.push(value) for value, frames in runs for _ in range(frames)]
    return [signal for signal in pushed if signal is not None]


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([(0.0, 100)], []),
        ([(0.0, 10), (0.9, 2), (0.0, 30)], []),  # a click
        (
            [(0.0, 10), (0.9, 10), (0.0, 10)],
            [SpeechStarted(320 - 96), SpeechPaused(640), SpeechStopped(640, 960)],
        ),
        ([(0.9, 5)], [SpeechStarted(0)]),  # no padding before the call began
        (  # between exit and threshold: goes on, but would not have begun
            [(0.4, 10), (0.6, 5), (0.4, 20), (0.3, 10)],
            [SpeechStarted(224), SpeechPaused(35 * 32), SpeechStopped(35 * 32, 45 * 32)],
        ),
        (  # the pause is told once per silence, and again after speech resumed
            [(0.9, 5), (0.0, 8), (0.9, 5), (0.0, 9)],
            [SpeechStarted(0), SpeechPaused(160), SpeechPaused(18 * 32)],
        ),
        (  # the next turn's padding does not reach into the turn before it (160 + 200 ms of tail)
            [(0.9, 5), (0.0, 10), (0.9, 5)],
            [SpeechStarted(0), SpeechPaused(160), SpeechStopped(160, 480), SpeechStarted(384)],
        ),
    ],
)
def test_turns(runs: list[tuple[float, int]], expected: list[Signal]) -> None:
    """Speech, silence, clicks, hesitation and pauses give these signals at these positions."""
    assert signals(TurnDetector(_SETTINGS), *runs) == expected


def test_padding_stops_at_the_turn_before() -> None:
    """Padding longer than the silence between two turns begins where the first turn's audio ends."""
    detector = TurnDetector(TurnDetection(prefix_padding_ms=5000, silence_duration_ms=320))
    found = signals(detector, (0.9, 5), (0.0, 10), (0.9, 5))
    assert found[-1] == SpeechStarted(360)


def test_a_short_silence_setting_stops_without_a_pause() -> None:
    """Where the turn ends before a pause could be told, only its end is."""
    detector = TurnDetector(TurnDetection(silence_duration_ms=100))
    assert signals(detector, (0.9, 5), (0.0, 9)) == [SpeechStarted(0), SpeechStopped(160, 288)]


def test_an_endless_turn_is_cut_and_goes_on_as_the_next() -> None:
    """Speech beyond the longest turn ends it; what follows is a turn of its own, without a gap."""
    detector = TurnDetector(_SETTINGS, max_turn_ms=1000)
    found = signals(detector, (0.9, 50))
    assert found[:3] == [SpeechStarted(0), SpeechStopped(1024, 1024), SpeechStarted(1024)]


def test_idle_timeout_counts_from_the_end_of_playback() -> None:
    """The caller is missed once, after the answer was heard and nobody spoke for the time set."""
    detector = TurnDetector(TurnDetection(idle_timeout_ms=1000))
    assert signals(detector, (0.0, 100)) == []
    detector.arm_idle(4000)
    assert signals(detector, (0.0, 100)) == [IdleTimeout(4000, 5024)]
    assert signals(detector, (0.0, 100)) == []


@pytest.mark.parametrize("interruption", ["speech", "answer", "setting"])
def test_idle_timeout_is_called_off(interruption: str) -> None:
    """Speech, a new answer, or switching detection off ends the wait."""
    detector = TurnDetector(TurnDetection(idle_timeout_ms=1000))
    detector.arm_idle(0)
    if interruption == "speech":
        assert signals(detector, (0.9, 3)) == [SpeechStarted(0)]
        detector.reset(0)
    elif interruption == "answer":
        detector.disarm_idle()
    else:
        detector.configure(TurnDetection(enabled=False, idle_timeout_ms=1000))
    assert signals(detector, (0.0, 100)) == []


def test_switching_detection_off_forgets_the_turn() -> None:
    """No end is told for speech under way when push to talk begins."""
    detector = TurnDetector(_SETTINGS)
    signals(detector, (0.9, 5))
    detector.configure(TurnDetection(enabled=False))
    assert detector.phase is Phase.QUIET
    detector.skip(10)
    assert detector.now_ms == 15 * 32


def test_forgotten_frames_begin_no_turn() -> None:
    """Frames before a position that was forgotten while they were on their way count as silence."""
    detector = TurnDetector(_SETTINGS)
    detector.reset(320)
    assert signals(detector, (0.9, 10)) == []
    assert signals(detector, (0.9, 3)) == [SpeechStarted(320)]


_SEMANTIC = TurnDetection(eagerness="high")  # 1200 ms at most


def test_until_the_words_are_known_the_longest_silence_counts() -> None:
    """The setting for plain silence has no say."""
    detector = TurnDetector(_SEMANTIC)
    found = signals(detector, (0.9, 5), (0.0, 37))
    assert found == [SpeechStarted(0), SpeechPaused(160)]
    assert signals(detector, (0.0, 1)) == [SpeechStopped(160, 43 * 32)]


def test_what_the_words_ask_for_ends_the_turn_even_if_it_is_over_already() -> None:
    """At the next frame at the soonest."""
    detector = TurnDetector(_SEMANTIC)
    signals(detector, (0.9, 5), (0.0, 10))
    detector.settle(detector.voiced_ms, 320)
    assert signals(detector, (0.0, 1)) == [SpeechStopped(160, 16 * 32)]


def test_words_that_were_overtaken_decide_nothing() -> None:
    """Neither those of a shorter turn, nor the right ones once speech has gone on."""
    detector = TurnDetector(_SEMANTIC)
    signals(detector, (0.9, 5), (0.0, 8))
    words_of = detector.voiced_ms
    signals(detector, (0.9, 2))
    detector.settle(words_of, 320)
    assert signals(detector, (0.0, 12)) == [SpeechPaused(15 * 32)]
    detector.settle(detector.voiced_ms, 1000)
    signals(detector, (0.9, 1))
    assert signals(detector, (0.0, 36)) == [SpeechPaused(28 * 32)]


def _spoken_to() -> TurnDetector:
    """A detector while an answer is being made."""
    detector = TurnDetector(_SEMANTIC)
    detector.disarm_idle()
    return detector


def test_a_backchannel_under_an_answer_is_never_told() -> None:
    """Only the pause is, so that somebody finds the words; dismissed, it was nothing."""
    detector = _spoken_to()
    assert signals(detector, (0.9, 10), (0.0, 7)) == [SpeechPaused(320)]
    assert detector.dismiss(detector.voiced_ms)
    assert signals(detector, (0.0, 60)) == []
    assert detector.phase is Phase.QUIET


def test_speech_that_goes_on_interrupts() -> None:
    """After 640 ms, told from where it began."""
    detector = _spoken_to()
    assert signals(detector, (0.0, 5), (0.9, 19)) == []
    assert signals(detector, (0.9, 1)) == [SpeechStarted(0)]
    assert not detector.dismiss(detector.voiced_ms)


def test_words_that_want_the_floor_interrupt() -> None:
    """A short "stop" is told as soon as it is known to be one, and ends as any turn."""
    detector = _spoken_to()
    signals(detector, (0.9, 10), (0.0, 8))
    detector.settle(detector.voiced_ms, 320)
    assert signals(detector, (0.0, 3)) == [SpeechStarted(0), SpeechStopped(320, 20 * 32)]


def test_a_doubtful_turn_without_words_is_forgotten() -> None:
    """After the longest silence; nothing was told, so nothing has to end."""
    detector = _spoken_to()
    assert signals(detector, (0.9, 10), (0.0, 60)) == [SpeechPaused(320)]
    assert detector.phase is Phase.QUIET


def test_a_reply_at_the_end_of_an_answer_is_no_backchannel() -> None:
    """With a second or less of playback to come, "yes" may well answer what was asked."""
    detector = _spoken_to()
    detector.arm_idle(1500)
    signals(detector, (0.9, 10), (0.0, 7))
    assert not detector.dismiss(detector.voiced_ms)
    detector.arm_idle(1600)
    assert detector.dismiss(detector.voiced_ms)


def test_doubt_ends_with_the_playback_and_with_the_setting() -> None:
    """Speech after the answer was heard is a turn at once; so is doubtful speech once silence alone decides."""
    detector = _spoken_to()
    detector.arm_idle(300)
    assert signals(detector, (0.0, 10), (0.9, 3)) == [SpeechStarted(20)]
    detector = _spoken_to()
    signals(detector, (0.9, 10))
    detector.configure(_SETTINGS)
    assert signals(detector, (0.0, 10)) == [
        SpeechStarted(0),
        SpeechPaused(320),
        SpeechStopped(320, 20 * 32),
    ]


def test_without_eagerness_every_sound_interrupts() -> None:
    """Plain voice activity knows no backchannels."""
    detector = TurnDetector(_SETTINGS)
    detector.disarm_idle()
    assert signals(detector, (0.9, 3)) == [SpeechStarted(0)]


_PROBABILITIES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.36, 0.45, 0.6, 1.0]), st.integers(1, 20)), max_size=40
)


@settings(deadline=None)
@given(_PROBABILITIES, st.integers(0, 1000), st.integers(50, 1000))
def test_turns_are_whole_and_apart(
    runs: list[tuple[float, int]], padding_ms: int, silence_ms: int
) -> None:
    """Starts and stops alternate, every stop follows its start, turns do not overlap, nothing is lost."""
    detector = TurnDetector(TurnDetection(True, 0.5, padding_ms, silence_ms), max_turn_ms=5000)
    begun, last_stop, kept = False, 0, 0
    for value, frames in runs:
        for _ in range(frames):
            signal = detector.push(value)
            if isinstance(signal, SpeechStarted):
                assert not begun
                assert last_stop <= signal.at_ms <= detector.now_ms
                assert signal.at_ms >= kept  # its audio was never given up
                begun = True
            elif isinstance(signal, SpeechStopped):
                assert begun
                assert detector.start_ms < signal.at_ms <= signal.decided_ms == detector.now_ms
                begun, last_stop = False, signal.at_ms
            kept = max(kept, detector.keep_from_ms)
    trailing = signals(detector, (0.0, 40))
    assert sum(isinstance(s, SpeechStopped) for s in trailing) == int(begun)
