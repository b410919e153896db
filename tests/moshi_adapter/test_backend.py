"""The backend's contract, as far as a model without a growing context can keep it."""

from collections.abc import Iterator

import numpy as np
import pytest
from moshi_adapter.streams import FRAME, alone, append, noise, tick, tiny

from engine.backend import EngineDead
from engine.moshi_adapter.backend import MoshiBackend
from engine.moshi_adapter.settings import TINY_RANDOM, MoshiSettings
from engine.work import Drop, TickBatch

pytestmark = [pytest.mark.models, pytest.mark.slow]
SLOTS = 3
PCM = noise(3, 8)


@pytest.fixture(scope="module")
def shared() -> MoshiBackend:
    return tiny(SLOTS)


@pytest.fixture
def backend(shared: MoshiBackend) -> Iterator[MoshiBackend]:
    """Whatever a test does, closing its sessions leaves the house empty."""
    empty = shared.snapshot()
    yield shared
    shared.step(TickBatch(closes=tuple(shared._table.seats)))
    assert shared.snapshot() == empty


def test_the_first_frame_opens_a_session_and_gives_nothing(backend: MoshiBackend) -> None:
    """The model is one frame behind: sound and a text token come from the second frame on."""
    first = tick(backend, {"a": PCM[0]})["a"]
    second = tick(backend, {"a": PCM[1]})["a"]
    assert (first.token_ids, first.pcm, first.context_tokens) == ((), b"", 1)
    assert (len(second.token_ids), len(second.pcm), second.context_tokens) == (1, 2 * FRAME, 2)
    assert first.finished
    assert second.finished


def test_results_carry_the_epoch_of_their_append(backend: MoshiBackend) -> None:
    """So that a session can tell what it asked for last."""
    chunk = backend.step(TickBatch((append("a", PCM[0], epoch=7),))).chunks[0]
    assert chunk.epoch == 7


def test_a_step_finishes_every_append(backend: MoshiBackend) -> None:
    """Never busy: one frame in, one out."""
    tick(backend, {"a": PCM[0], "b": PCM[1]})
    assert not backend.busy


def test_all_due_sessions_share_one_pass(
    backend: MoshiBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three sessions in a batch: the language model runs once."""
    calls, step = [], backend._lockstep._gen.step
    monkeypatch.setattr(
        backend._lockstep._gen, "step", lambda codes: (calls.append(1), step(codes))[1]
    )
    tick(backend, {"a": PCM[0], "b": PCM[1], "c": PCM[2]})
    assert len(calls) == 1


def test_slots_are_blocks_and_frames_are_tokens(backend: MoshiBackend) -> None:
    """The pool counts slots, and never more frames than the ring holds."""
    for k in range(30):
        tick(backend, {"a": PCM[k % 8], **({"b": PCM[0]} if k < 2 else {})})
    kv = backend.snapshot()
    assert (kv.block_size, kv.total_blocks, kv.free_blocks) == (24, SLOTS, SLOTS - 2)
    assert (kv.resident_tokens, kv.sessions) == (24 + 2, 2)


def test_a_full_house_refuses_the_next_and_nobody_else(backend: MoshiBackend) -> None:
    """The fourth session gets an error that says so; the other three are answered in the same step."""
    tick(backend, {"a": PCM[0], "b": PCM[0], "c": PCM[0]})
    chunks = tick(backend, {"a": PCM[1], "b": PCM[1], "c": PCM[1], "d": PCM[1]})
    assert chunks["d"].error == "all 3 slots are taken"
    assert all(len(chunks[name].pcm) == 2 * FRAME for name in "abc")
    assert backend.snapshot().sessions == 3


def test_a_slot_left_in_a_step_is_free_in_the_same_step(backend: MoshiBackend) -> None:
    """Closes come first; and a closed id may come back at once, from nothing."""
    tick(backend, {"a": PCM[0], "b": PCM[0], "c": PCM[0]})
    chunks = tick(backend, {"d": PCM[1], "a": PCM[1]}, closes=("a", "b"))
    assert chunks["d"].error is None
    assert (chunks["a"].error, chunks["a"].context_tokens) == (None, 1)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"token_ids": (5,)}, "takes sound"),
        ({"pcm": PCM[0][:-2]}, "a frame has 3840 bytes, not 3838"),
        ({"pcm": b""}, "a frame has 3840 bytes"),
        ({"keep_tokens": 1}, "cannot be taken back"),
        ({"keep_tokens": -1}, "cannot be taken back"),
    ],
)
def test_an_illegal_append_ends_its_session_only(
    backend: MoshiBackend, fields: dict[str, object], why: str
) -> None:
    """An error chunk for it, its slot free, and the neighbour's stream as alone."""
    expected = alone(PCM[:4])
    for k in range(2):
        tick(backend, {"bad": PCM[k], "good": PCM[k]})
    wrong = {"session_id": "bad", "epoch": 4, "token_ids": (), "decode": 1, "deadline": 0.0}
    wrong |= {"pcm": PCM[2], **fields}
    batch = TickBatch((type(append("", b""))(**wrong), append("good", PCM[2])))
    chunks = {chunk.session_id: chunk for chunk in backend.step(batch).chunks}
    assert why in (chunks["bad"].error or "")
    assert (chunks["bad"].epoch, chunks["bad"].finished) == (4, True)
    assert backend.snapshot().sessions == 1
    good = tick(backend, {"good": PCM[3]})["good"]
    assert good.token_ids == tuple(expected.words[-1:])
    difference = np.frombuffer(good.pcm, "<i2").astype(int) - expected.samples[-FRAME:]
    assert np.abs(difference).max() <= 1


def test_two_appends_of_one_session_in_a_step_end_it(backend: MoshiBackend) -> None:
    """A frame is under way until its step is over."""
    chunks = backend.step(TickBatch((append("a", PCM[0]), append("a", PCM[1])))).chunks
    assert [chunk.error for chunk in chunks] == ["an append is still under way"]
    assert backend.snapshot().sessions == 0


def test_keeping_all_that_was_heard_is_no_rewind(backend: MoshiBackend) -> None:
    """`keep_tokens` of the whole context changes nothing."""
    tick(backend, {"a": PCM[0]})
    whole = type(append("", b""))("a", 0, (), 1, 0.0, keep_tokens=1, pcm=PCM[1])
    assert backend.step(TickBatch((whole,))).chunks[0].context_tokens == 2


def test_unknown_sessions_may_be_closed_and_dropped(backend: MoshiBackend) -> None:
    """They may have gone in the same breath; and nothing can ever be dropped."""
    assert not backend.can_drop
    assert backend.step(TickBatch((), (Drop("nobody", 0, 1),), ("nobody",))).chunks == ()


def test_engine_time_is_measured() -> None:
    """`engine_s` is what the step took on the given timer."""
    readings = iter((10.0, 10.5))
    settings = MoshiSettings(TINY_RANDOM, slots=1, device="cpu")
    backend = MoshiBackend(settings, timer=lambda: next(readings))
    assert backend.step(TickBatch()).engine_s == 0.5


def test_an_error_inside_a_step_is_the_end_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a step may have been taken by every stream: none can go on."""
    backend = tiny(slots=1)

    def broken(codes: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(backend._lockstep._gen, "step", broken)
    with pytest.raises(EngineDead, match="RuntimeError: out of memory"):
        tick(backend, {"a": PCM[0]})
    with pytest.raises(EngineDead, match="the engine is dead"):
        backend.step(TickBatch())


def test_shutdown_is_idempotent() -> None:
    """Shut, it holds nobody, and may be shut again."""
    backend = tiny(slots=1)
    tick(backend, {"a": PCM[0]})
    backend.shutdown()
    backend.shutdown()
    assert backend.snapshot().sessions == 0
    with pytest.raises(EngineDead, match="the engine is down"):
        backend.step(TickBatch())


def test_sampling_is_repeatable_with_a_seed() -> None:
    """Two backends with one seed draw the same; another seed draws otherwise."""

    def words(seed: int) -> list[tuple[int, ...]]:
        backend = MoshiBackend(MoshiSettings(TINY_RANDOM, slots=1, device="cpu", seed=seed))
        return [tick(backend, {"a": pcm})["a"].token_ids for pcm in PCM]

    assert words(1) == words(1)
    assert words(1) != words(2)
