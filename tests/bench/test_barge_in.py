"""What the barge-in benchmark makes of the server's events."""

from typing import Any

import pytest

from bench.barge_in import Interruption, Ledger, figures
from bench.scrape import Scrape


def _audio(response_id: str) -> dict[str, Any]:
    return {"type": "response.output_audio.delta", "response_id": response_id, "delta": "AA=="}


def _done(response_id: str, status: str, reason: str | None = None) -> dict[str, Any]:
    details = None if reason is None else {"type": "cancelled", "reason": reason}
    return {
        "type": "response.done",
        "response": {"id": response_id, "status": status, "status_details": details},
    }


STARTED = {"type": "input_audio_buffer.speech_started"}


def test_audio_after_the_word_that_speech_began_is_counted_by_answer() -> None:
    """From the onset and from the server's word; the next answer's audio is not the last one's."""
    ledger = Ledger()
    ledger.take(_audio("r1"), 1.0)
    ledger.interrupts(2.0)
    ledger.take(STARTED, 2.1)
    ledger.take(_audio("r1"), 2.25)
    ledger.take(_done("r1", "cancelled", "turn_detected"), 2.3)
    ledger.take(_audio("r2"), 4.0)
    (found,) = ledger.interruptions
    assert found.reason == "turn_detected"
    assert found.after_told_ms == pytest.approx(150)
    assert found.after_onset_ms == pytest.approx(250)
    assert (ledger.answer, ledger.begun) == ("r2", 2)


def test_an_answer_that_is_over_cannot_be_interrupted() -> None:
    """The caller's words are then a question like the first."""
    ledger = Ledger()
    ledger.take(_audio("r1"), 1.0)
    ledger.take(_done("r1", "completed"), 1.5)
    ledger.interrupts(2.0)
    assert ledger.interruptions == []


def test_silence_after_the_onset_is_no_delay() -> None:
    """Audio that came before the caller spoke outlives nothing."""
    quiet = Interruption("r1", onset_at=2.0, told_at=2.1, last_audio_at=None)
    assert (quiet.after_told_ms, quiet.after_onset_ms) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("late_s", "held", "met"), [(0.2, 0, True), (0.22, 0, False), (0.0, 1, False)]
)
def test_late_audio_and_blocks_left_behind_miss_the_target(
    late_s: float, held: int, met: bool
) -> None:
    """One tick and 50 ms are allowed, and no block."""
    cut = Interruption("r1", 1.0, 1.0, 1.0 + late_s, "turn_detected")
    left = Scrape({}, held, 100, 0)
    found = figures([Ledger([cut])], left, tick_ms=160, wanted=1)
    assert all(figure.met is not False for figure in found) is met


def test_without_a_single_cut_the_target_is_missed_and_nothing_breaks() -> None:
    """There are no latencies to show then."""
    found = figures([Ledger()], Scrape({}, 0, 100, 0), tick_ms=160, wanted=50)
    assert [figure.name for figure in found if figure.met is False] == ["answers cut off by speech"]
