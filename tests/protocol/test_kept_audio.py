"""Items read back with the audio they were spoken in."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.realtime_peer import USAGE, Peer

from protocol.audio_format import AudioFormat
from protocol.kept_audio import MAX_CLIP_BYTES, AudioShelf, Tape


def ramp(ms: int, start: int = 0) -> bytes:
    """pcm16 at 24 kHz in which every millisecond can be told from its neighbours."""
    return b"".join((start + i).to_bytes(2, "little") * 24 for i in range(ms))


def hears(peer: Peer, pcm: bytes, chunk_ms: int = 20) -> None:
    """The client streams audio."""
    size = chunk_ms * 48
    for at in range(0, len(pcm), size):
        peer.sends(
            "input_audio_buffer.append", audio=base64.b64encode(pcm[at : at + size]).decode()
        )


def turn(peer: Peer, start_ms: int, stop_ms: int) -> str:
    """A spoken turn, found by voice activity; its answer is cancelled."""
    peer.did(peer.connection.speech_started(start_ms))
    item_id: str = peer.did(peer.connection.speech_stopped(stop_ms))[0].item_id  # type: ignore[union-attr]
    peer.sends("response.cancel")
    peer.events()
    return item_id


def part(peer: Peer, item_id: str) -> dict[str, Any]:
    """The content of an item as it is read back."""
    peer.sends("conversation.item.retrieve", item_id=item_id)
    read: dict[str, Any] = peer.only_event()["item"]["content"][0]
    return read


def audio(peer: Peer, item_id: str) -> bytes | None:
    """Its audio; None if there is none."""
    read = part(peer, item_id).get("audio")
    return None if read is None else base64.b64decode(read)


def answer(peer: Peer, *pieces: bytes, **response: Any) -> str:
    """A spoken answer; its item."""
    order = peer.asks(**response)
    for index, piece in enumerate(pieces):
        peer.connection.response_text(order.response_id, f"word{index} ")
        peer.connection.response_audio(order.response_id, piece)
    peer.did(peer.connection.response_ended(order.response_id, "completed", USAGE, None))
    item_id: str = peer.events()[-1]["response"]["output"][0]["id"]
    return item_id


@pytest.fixture
def peer() -> Peer:
    peer = Peer()
    peer.events()
    return peer


def test_a_turn_is_read_back_as_it_was_spoken(peer: Peer) -> None:
    """From where speech began, padding included, to where it ended; with its words once they are known."""
    said = ramp(2000)
    hears(peer, said)
    item_id = turn(peer, 310, 1450)
    assert audio(peer, item_id) == said[310 * 48 : 1450 * 48]
    peer.connection.transcribed(item_id, "words", 1.14)
    read = part(peer, item_id)
    assert (read["type"], read["transcript"]) == ("input_audio", "words")
    assert "audio" in read


def test_push_to_talk_is_read_back_from_commit_to_commit(peer: Peer) -> None:
    """What was appended since the last commit, or since the buffer was cleared."""
    peer.updates(audio={"input": {"turn_detection": None}})
    items = []
    for start in (0, 1000):
        hears(peer, ramp(500, start))
        items.append(peer.sends("input_audio_buffer.commit")[0].item_id)  # type: ignore[union-attr]
    hears(peer, ramp(300, 7000))
    peer.sends("input_audio_buffer.clear")
    hears(peer, ramp(200, 2000))
    items.append(peer.sends("input_audio_buffer.commit")[0].item_id)  # type: ignore[union-attr]
    peer.events()
    assert [audio(peer, item) for item in items] == [
        ramp(500),
        ramp(500, 1000),
        ramp(200, 2000),
    ]


def test_no_other_event_carries_audio_of_an_item(peer: Peer) -> None:
    """Items that are added or done hold their words alone."""
    hears(peer, ramp(1000))
    peer.did(peer.connection.speech_started(0))
    peer.did(peer.connection.speech_stopped(900))
    items = [event["item"] for event in peer.events() if "item" in event]
    assert items
    assert all("audio" not in p for item in items for p in item["content"])


def test_an_answer_is_read_back_as_far_as_it_was_heard(peer: Peer) -> None:
    """All of it, until it is truncated; a truncation past its end, or a later one, brings nothing back."""
    item_id = answer(peer, ramp(400), ramp(600, 400))
    assert audio(peer, item_id) == ramp(1000)
    for ms in (5000, 650, 900):
        peer.sends("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=ms)
        peer.events()
    assert audio(peer, item_id) == ramp(650)
    assert part(peer, item_id)["transcript"].split() == ["word0"]


def test_what_comes_after_a_truncation_was_not_heard(peer: Peer) -> None:
    """An answer that is truncated while it is given keeps its beginning only."""
    order = peer.asks()
    peer.connection.response_audio(order.response_id, ramp(500))
    item_id = next(e["item"]["id"] for e in peer.events() if "item" in e)
    peer.sends("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=600)
    peer.connection.response_audio(order.response_id, ramp(500, 500))
    peer.events()
    assert audio(peer, item_id) == ramp(500)


def test_a_long_answer_that_was_soon_interrupted_is_there(peer: Peer) -> None:
    """Too long to be sent in one event it has no audio; what was heard of it fits."""
    long_ms = MAX_CLIP_BYTES // 48 + 1000
    item_id = answer(peer, *(ramp(500, at) for at in range(0, long_ms, 500)))
    assert audio(peer, item_id) is None
    peer.sends("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=3000)
    peer.events()
    assert audio(peer, item_id) == ramp(3000)


def test_the_oldest_audio_is_forgotten_first() -> None:
    """Past the budget an item keeps its words and loses its audio; the newest one has it."""
    peer = Peer(max_audio_bytes=2 * 48 * 2500)
    items = [answer(peer, ramp(1000)) for _ in range(3)]
    assert [audio(peer, item) is not None for item in items] == [False, True, True]
    assert part(peer, items[0])["transcript"].strip() == "word0"
    peer.sends("conversation.item.delete", item_id=items[1])
    peer.events()
    items.append(answer(peer, ramp(1000)))
    assert [audio(peer, item) is not None for item in items[2:]] == [True, True]


def test_a_deployment_may_keep_no_audio() -> None:
    """With a budget of nothing items are words."""
    peer = Peer(max_audio_bytes=0)
    hears(peer, ramp(1000))
    assert audio(peer, turn(peer, 100, 900)) is None
    assert audio(peer, answer(peer, ramp(500))) is None


def test_where_nobody_tells_turns_no_callers_audio_is_kept() -> None:
    """Answers are kept as ever."""
    peer = Peer(keeps_caller=False)
    hears(peer, ramp(1000))
    assert audio(peer, turn(peer, 100, 900)) is None
    assert audio(peer, answer(peer, ramp(500))) is not None


def test_g711_is_read_back_as_g711(peer: Peer) -> None:
    """Audio is in the session's format, byte for byte; after a change of format older audio is not told."""
    peer.updates(
        audio={
            "input": {"format": {"type": "audio/pcmu"}},
            "output": {"format": {"type": "audio/pcma"}},
        }
    )
    said = bytes(range(256)) * 32  # 1,024 ms
    peer.sends("input_audio_buffer.append", audio=base64.b64encode(said).decode())
    asked = turn(peer, 128, 640)
    assert audio(peer, asked) == said[128 * 8 : 640 * 8]
    said_back = answer(peer, bytes(2 * 800))
    assert audio(peer, said_back) == AudioFormat.A_LAW.from_pcm(bytes(2 * 800))
    peer.updates(audio={"input": {"format": {"type": "audio/pcm"}}})
    assert audio(peer, asked) is None


def test_out_of_band_answers_are_not_kept(peer: Peer) -> None:
    """Nobody could read them back, so they take nothing of the budget."""
    order = peer.asks(conversation="none")
    peer.connection.response_audio(order.response_id, ramp(500))
    peer.did(peer.connection.response_ended(order.response_id, "completed", USAGE, None))
    assert peer.connection._conversation.shelf.bytes_kept == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=60))
def test_the_shelf_never_holds_more_than_its_bound(steps: list[tuple[int, int]]) -> None:
    """Whatever is added, cut and forgotten, the count is what the clips hold, and within the bound."""
    shelf = AudioShelf(1000)
    clips = [shelf.clip(AudioFormat.MU_LAW) for _ in range(3)]
    for which, amount in steps:
        if which == 3:
            clips[amount % 3].cut(amount // 8)
        elif amount == 7:
            clips[which].forget()
        else:
            clips[which].add(bytes(amount))
        assert shelf.bytes_kept == sum(clip._kept for clip in clips) <= 1000


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.data())
def test_the_tape_reads_what_was_recorded(sizes: list[int], data: st.DataObject) -> None:
    """However it was appended: the stretch asked for, or nothing if its beginning is gone."""
    tape, whole = Tape(2000), bytearray()
    for index, samples in enumerate(sizes):
        piece = bytes([index, samples % 256]) * samples
        tape.append(piece, AudioFormat.PCM)
        whole += piece
    start = data.draw(st.integers(0, tape.end))
    stop = data.draw(st.integers(start, tape.end))
    read = b"".join(tape.read(start, stop))
    assert read in (b"", bytes(whole[2 * start : 2 * stop]))
    assert read or start == stop or 2 * (tape.end - start) > 2000 - 600


def test_a_huge_append_leaves_only_its_end_on_the_tape() -> None:
    """A whole recording in one event does not stay in memory."""
    tape = Tape(100_000)
    tape.append(bytes(15 * 1024 * 1024), AudioFormat.PCM)
    assert sum(map(len, tape._pieces)) <= 100_000
