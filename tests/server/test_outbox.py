"""The outbox: order, both bounds, and how a writer that makes no progress shows."""

from server.outbox import Outbox


def _drained(outbox: Outbox) -> list[str]:
    texts = []
    while (batch := outbox.pop()) is not None:
        texts += batch
        outbox.sent()
    return texts


def test_pop_gives_batches_in_the_order_of_push() -> None:
    """What went in first comes out first, batches whole."""
    outbox = Outbox(10, 1000)
    outbox.push(["a", "b"])
    outbox.push(["c"])
    assert _drained(outbox) == ["a", "b", "c"]


def test_push_refuses_past_the_seconds_bound_and_queues_nothing() -> None:
    """Audio beyond capacity_s is refused; what was queued before is untouched."""
    outbox = Outbox(1.0, 10**6)
    assert outbox.push(["x"], 0.6)
    assert outbox.push(["y"], 0.4)
    assert not outbox.push(["z"], 0.01)
    assert (outbox.audio_s, _drained(outbox)) == (1.0, ["x", "y"])


def test_push_refuses_past_the_size_bound() -> None:
    """Text counts too: a client may ask for endless events without audio."""
    outbox = Outbox(10, 10)
    assert outbox.push(["12345"])
    assert not outbox.push(["123456"])
    assert outbox.push(["12345"])
    assert outbox.size == 10


def test_an_empty_outbox_takes_a_batch_larger_than_its_bound() -> None:
    """One event may be larger than the bound: its reader is not slow."""
    outbox = Outbox(1.0, 10)
    assert outbox.push(["x" * 1000], 5.0)
    assert not outbox.push(["y"])


def test_room_comes_back_as_batches_are_popped() -> None:
    """Bounds are on what waits, not on what ever passed."""
    outbox = Outbox(1.0, 100)
    for _ in range(1000):
        assert outbox.push(["x"], 0.9)
        _drained(outbox)
    assert (outbox.audio_s, outbox.size, len(outbox)) == (0.0, 0, 0)


def test_stalled_counts_from_the_first_look_at_a_batch_that_does_not_move() -> None:
    """Seconds without progress while something waits."""
    outbox = Outbox(10, 1000)
    outbox.push(["a"])
    assert outbox.stalled_s(100.0) == 0.0
    assert outbox.stalled_s(103.0) == 3.0
    outbox.push(["b"])
    assert outbox.stalled_s(104.0) == 4.0


def test_stalled_starts_anew_after_progress() -> None:
    """One batch accepted by the socket is progress."""
    outbox = Outbox(10, 1000)
    outbox.push(["a"])
    outbox.push(["b"])
    outbox.stalled_s(100.0)
    outbox.pop()
    outbox.sent()
    assert outbox.stalled_s(103.0) == 0.0
    assert outbox.stalled_s(104.5) == 1.5


def test_a_batch_in_the_writers_hands_still_counts_as_waiting() -> None:
    """The writer blocks in send with an empty queue: that is how a dead reader looks."""
    outbox = Outbox(10, 1000)
    outbox.push(["a"])
    outbox.pop()
    outbox.stalled_s(0.0)
    assert outbox.stalled_s(6.0) == 6.0


def test_an_empty_outbox_is_never_stalled() -> None:
    """Silence is not slowness."""
    outbox = Outbox(10, 1000)
    outbox.push(["a"])
    outbox.stalled_s(0.0)
    _drained(outbox)
    assert outbox.stalled_s(9.0) == 0.0
    assert outbox.stalled_s(99.0) == 0.0


def test_len_counts_texts() -> None:
    """What a closing connection never sent."""
    outbox = Outbox(10, 1000)
    outbox.push(["a", "b"])
    outbox.push(["c"])
    assert len(outbox) == 3
