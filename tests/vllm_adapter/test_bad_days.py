"""Awkward moments for a session whose window is due to move; one layer, so that a prefill can check every context."""

import random
from collections.abc import Iterator

import pytest
from support.backend_driver import BackendDriver
from support.tiny_llama import write_tiny_llama
from vllm_adapter.recorded_logits import spread
from vllm_adapter.resident_kv import check_integrity

from engine.kv_policy import KvPolicy
from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings
from engine.work import Drop

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

BLOCK = 32
MAX_CONTEXT = 1024
POLICY = KvPolicy("anchored", window_tokens=64, slack_tokens=64)
HEADER = 40  # tokens
DUE = Drop("a", 2 * BLOCK, 5 * BLOCK)
LONG = spread(230, 1)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmBackend]:
    folder = write_tiny_llama(tmp_path_factory.mktemp("model"), layers=1)
    built = VllmBackend(
        VllmSettings(
            str(folder),
            "float32",
            max_model_len=MAX_CONTEXT,
            max_num_seqs=220,
            total_blocks=1600,
            kv_cache_gib=0.4,
        )
    )
    yield built
    built.shutdown()


@pytest.fixture
def driver(backend: VllmBackend) -> Iterator[BackendDriver]:
    driver = BackendDriver(backend)
    yield driver
    driver.close_all()
    check_integrity(backend)
    assert backend.snapshot().held_blocks == 0


@pytest.mark.parametrize("keep", [10, BLOCK, 70, 100, 134])
def test_a_barge_in_while_a_drop_is_due(driver: BackendDriver, keep: int) -> None:
    """Both come in one step: first the middle goes, then the tail, and what is left is exact."""
    context = [*LONG, *driver.decode("a", LONG)]
    del context[DUE.start : DUE.stop]
    again = driver.append("a", spread(9, 5), 4, keep_tokens=keep)
    chunk = driver.run(again, drops=(DUE,))["a"]
    assert chunk.token_ids == driver.decode("fresh", [*context[:keep], *spread(9, 5)], 4)


def test_a_drop_while_the_session_still_decodes_is_passed_over(driver: BackendDriver) -> None:
    """Its KV is in use. (The engine holds drops back until the append is complete; this is the second lock.)"""
    expected = driver.decode("fresh", LONG, 6)
    driver.step(driver.append("a", LONG, 6))
    chunks = driver.run(drops=(DUE,))
    assert chunks["a"].token_ids == expected[1:]
    assert chunks["a"].context_tokens == len(LONG) + 6


@pytest.mark.parametrize("together", [True, False], ids=["in one step", "one after the other"])
def test_a_session_closed_between_drop_and_next_chunk(
    driver: BackendDriver, backend: VllmBackend, together: bool
) -> None:
    """It leaves nothing, its neighbour notices nothing, and its id can be used again."""
    expected = driver.decode("fresh", LONG[:100], 5)
    driver.decode("a", LONG)
    first = driver.decode("b", LONG[:100], 2)
    if together:
        driver.step(drops=(DUE,), closes=("a",))
    else:
        driver.step(drops=(DUE,))
        driver.step(closes=("a",))
    check_integrity(backend)
    assert backend.snapshot().sessions == 2
    assert first + driver.decode("b", (), 3) == expected
    assert driver.decode("a", LONG[:100], 5) == expected


class Windowed:
    """One session under the policy: after every append what the policy wants gone is dropped."""

    def __init__(self, driver: BackendDriver, header: int, session_id: str = "a") -> None:
        self.driver, self.header, self.id = driver, header, session_id
        self.limit = POLICY.limit(header, MAX_CONTEXT)
        self.context: list[int] = []

    def append(self, token_ids: list[int]) -> None:
        self.context += [*token_ids, *self.driver.decode(self.id, token_ids, 2)]
        cut = POLICY.cut(len(self.context), self.header, self.limit, BLOCK)
        if cut is not None:
            self.driver.step(drops=(Drop(self.id, *cut),))
            del self.context[slice(*cut)]
        assert len(self.context) <= self.limit

    def is_exact(self) -> bool:
        again = self.driver.decode(f"fresh {self.id}", [*self.context, 5], 3)
        return self.driver.decode(self.id, [5], 3) == again


def test_a_header_longer_than_the_window(driver: BackendDriver) -> None:
    """The header stays whole, the window behind it moves as ever."""
    session = Windowed(driver, header=300)
    header = spread(300, 2)
    session.append(header)
    for tick in range(12):
        session.append(spread(25, 3 + tick))
        assert session.context[:300] == header
    assert session.is_exact()


def test_a_chunk_larger_than_the_slack(driver: BackendDriver) -> None:
    """It is taken whole, and cut back afterwards: the newest tokens of it are the window."""
    session = Windowed(driver, HEADER)
    session.append(spread(HEADER, 2))
    for size in (200, 20, 400, 500):
        session.append(spread(size, size))
    assert session.is_exact()


def test_a_chunk_that_cannot_fit_ends_that_session_only(driver: BackendDriver) -> None:
    """A clear error; what it held is free again."""
    expected = driver.decode("b", LONG[:60], 3)
    driver.decode("a", LONG)
    driver.step(drops=(DUE,))
    chunk = driver.run(driver.append("a", spread(MAX_CONTEXT, 3)))["a"]
    assert str(MAX_CONTEXT) in str(chunk.error)
    assert driver.decode("c", LONG[:60], 3) == expected


def test_two_hundred_sessions_churn_for_two_thousand_ticks(
    driver: BackendDriver, backend: VllmBackend
) -> None:
    """They come, grow past their windows, are interrupted and go; nothing leaks, and the contexts stay exact."""
    chance = random.Random(7)
    names = [f"session {number}" for number in range(200)]
    contexts: dict[str, list[int]] = {}
    header = spread(HEADER, 2)
    limit = POLICY.limit(HEADER, MAX_CONTEXT)
    drops: list[Drop] = []
    for tick in range(2000):
        active, closes = chance.sample(names, 5), []
        if chance.random() < 0.3:
            closes.append(active.pop())
            contexts.pop(closes[0], None)
        appends = []
        for name in active:
            length = len(contexts.get(name, ()))
            keep = chance.randrange(HEADER, length) if length and chance.random() < 0.2 else length
            tokens = spread(chance.randrange(10, 60), tick) if length else header
            contexts[name] = contexts.get(name, [])[:keep] + tokens
            appends.append(driver.append(name, tokens, keep_tokens=keep if length else None))
        drops = [drop for drop in drops if drop.session_id in contexts]
        for chunk in driver.step(*appends, drops=tuple(drops), closes=tuple(closes)):
            assert chunk.finished
            assert chunk.error is None
            contexts[chunk.session_id] += chunk.token_ids
            assert chunk.context_tokens == len(contexts[chunk.session_id])
        drops = []
        for name in active:
            cut = POLICY.cut(len(contexts[name]), HEADER, limit, BLOCK)
            if cut is not None:
                drops.append(Drop(name, *cut))
                del contexts[name][slice(*cut)]
        if tick % 200 == 199:
            driver.step(drops=tuple(drops))
            drops = []
            check_integrity(backend)
            name = active[0]
            again = driver.decode("fresh", [*contexts[name], 5], 3)
            assert driver.decode(name, [5], 3, epoch=1) == again
            contexts[name] += [5, *again]
            driver.step(closes=("fresh",))
    held = backend.snapshot().held_blocks
    assert held <= len(contexts) * POLICY.plateau_blocks(HEADER, 60, BLOCK)
