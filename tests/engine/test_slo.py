"""What counts as a miss."""

import pytest

from engine.slo import Obligation, Playhead, TickLedger


def test_late_and_empty_are_misses_and_a_run_ends_with_its_length() -> None:
    """Two misses in a row are reported by the on-time tick that ends them."""
    ledger = TickLedger()
    late = ledger.judge("listen", 0.0, 1.2, 1.0, fresh=True)
    empty = ledger.judge("speak", 1.0, 1.1, 2.0, fresh=False)
    good = ledger.judge("listen", 2.0, 2.5, 3.0, fresh=True)
    assert [late.outcome, empty.outcome, good.outcome] == ["late", "empty", "on_time"]
    assert [late.miss_run, empty.miss_run, good.miss_run] == [0, 0, 2]
    assert (ledger.owed, ledger.missed, ledger.miss_run) == (3, 2, 0)


def test_a_fast_empty_answer_is_still_a_miss() -> None:
    """Latency alone cannot make a tick good (the silent collapse of arXiv 2607.02640)."""
    assert TickLedger().judge("frame", 0.0, 0.001, 1.0, fresh=False).outcome == "empty"


def test_latency_is_arrival_to_done() -> None:
    """Latency counts from the last byte of the audio."""
    assert TickLedger().judge("frame", 1.0, 1.25, 2.0, fresh=True).latency_s == pytest.approx(0.25)


def test_the_playhead_runs_on_while_nothing_comes() -> None:
    """Audio sent late starts playing when it arrives, not when it should have."""
    head = Playhead()
    assert head.ahead_s(5.0) == 0.0
    head.extend(10.0, 1.0)
    assert head.ahead_s(10.4) == pytest.approx(0.6)
    assert head.ahead_s(11.5) == pytest.approx(-0.5)
    head.extend(11.5, 2.0)
    assert head.ahead_s(11.5) == pytest.approx(2.0)
    assert head.sent_s == pytest.approx(3.0)


def test_an_answer_owes_nothing_before_its_first_output_is_due() -> None:
    """Then it is empty, tick after tick, and has been owed since."""
    owed = Obligation(10.0, speaks=True)
    assert owed.verdict(9.9, 0.1) is None
    assert owed.owed_since(9.9, 0.1) is None
    assert owed.verdict(10.1, 0.1) == "empty"
    assert owed.owed_since(10.5, 0.1) == 10.0


def test_voice_owes_a_playback_frontier_a_tick_ahead() -> None:
    """On time while enough was sent; late if what came is too little; empty if nothing did."""
    owed = Obligation(10.0, speaks=True)
    owed.playhead.extend(9.0, 2.0)
    owed.came(9.0)
    assert owed.verdict(10.8, 0.1) == "on_time"
    assert owed.owed_since(10.8, 0.1) is None
    assert owed.verdict(10.95, 0.1) == "empty"
    owed.playhead.extend(10.98, 0.05)
    owed.came(10.98)
    assert owed.verdict(11.0, 0.1) == "late"
    assert owed.owed_since(12.0, 0.1) == pytest.approx(11.05 - 0.1)


def test_text_owes_something_new_each_tick() -> None:
    """Tokens without whole words count, but are no first output."""
    owed = Obligation(10.0, speaks=False)
    owed.moved()
    assert owed.verdict(10.1, 0.1) == "late"
    owed.came(10.15)
    assert owed.verdict(10.2, 0.1) == "on_time"
    owed.moved()
    assert owed.verdict(10.3, 0.1) == "on_time"
    assert owed.verdict(10.4, 0.1) == "empty"
    assert owed.first_at == 10.15
    assert owed.owed_since(10.4, 0.1) == 10.25
