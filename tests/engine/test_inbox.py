"""The bounded inbox."""

from engine.inbox import MAX_MARKS, ClearMark, CommitMark, FrameInbox
from engine.work import Frame


def frame(seq: int, size: int = 10) -> Frame:
    return Frame(seq, bytes(size), float(seq), seq + 1.0)


def test_frames_and_marks_come_out_in_order() -> None:
    """A commit is met only after the audio before it."""
    inbox = FrameInbox(100)
    inbox.put(frame(0))
    assert inbox.mark(CommitMark("item_1"))
    inbox.put(frame(1))
    assert [inbox.pop(), inbox.pop(), inbox.pop()] == [frame(0), CommitMark("item_1"), frame(1)]
    assert inbox.head() is None


def test_room_is_counted_in_bytes() -> None:
    """An append that does not fit whole is refused whole; room comes back as frames are heard."""
    inbox = FrameInbox(25)
    inbox.put(frame(0))
    assert inbox.has_room(15)
    assert not inbox.has_room(16)
    inbox.pop()
    assert inbox.has_room(25)
    assert inbox.queued_bytes == 0


def test_frame_locked_models_lose_the_oldest_and_count_it() -> None:
    """With drop_oldest the newest audio always gets in."""
    inbox = FrameInbox(25, drop_oldest=True)
    gone = [f for seq in range(4) for f in inbox.put(frame(seq))]
    assert [f.seq for f in gone] == [0, 1]
    assert inbox.dropped == 2
    assert [f.seq for f in inbox.frames()] == [2, 3]


def test_marks_are_bounded_too() -> None:
    """A client cannot fill memory with commits."""
    inbox = FrameInbox(10)
    assert all(inbox.mark(ClearMark()) for _ in range(MAX_MARKS))
    assert not inbox.mark(ClearMark())
    inbox.clear()
    assert inbox.mark(ClearMark())
    assert len(inbox) == 1
