"""What is particular to vLLM: its limits, its pool when full, its death. One small engine for all."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.backend_driver import BackendDriver
from support.tiny_llama import VOCAB, write_tiny_llama
from vllm_adapter.resident_kv import check_integrity

from engine.backend import EngineDead
from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.environment import EngineUnavailable
from engine.vllm_adapter.settings import VllmSettings
from engine.work import Drop, Sampling, TickBatch

pytestmark = pytest.mark.vllm

PROMPT = tuple(range(20, 170))  # five blocks
OTHER = tuple(range(300, 450))


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmBackend]:
    folder = write_tiny_llama(tmp_path_factory.mktemp("model"), layers=2)
    built = VllmBackend(
        VllmSettings(
            str(folder),
            "float32",
            max_model_len=256,
            max_num_seqs=4,
            total_blocks=12,
            kv_cache_gib=0.1,
        )
    )
    yield built
    built.shutdown()


@pytest.fixture
def driver(backend: VllmBackend) -> Iterator[BackendDriver]:
    driver = BackendDriver(backend)
    yield driver
    driver.close_all()
    assert backend.snapshot().held_blocks == 0


def test_what_the_pool_holds_is_told(backend: VllmBackend) -> None:
    """Blocks that sessions can use: vLLM's null block is not one of them."""
    pool = backend.snapshot()
    assert (pool.block_size, pool.total_blocks, pool.free_blocks) == (32, 12, 12)
    assert (backend.max_context, backend.vocab_size, backend.can_drop) == (256, VOCAB, True)


@pytest.mark.parametrize(
    ("token_ids", "sampling"),
    [
        ((5, VOCAB), Sampling()),  # would crash the embedding, and with it every session
        ((5, -1), Sampling()),
        (PROMPT, Sampling(temperature=-1.0)),
        (PROMPT, Sampling(temperature=1.0, top_p=0.0)),
    ],
)
def test_what_vllm_could_not_take_never_reaches_it(
    driver: BackendDriver, token_ids: tuple[int, ...], sampling: Sampling
) -> None:
    """An error chunk, and the engine lives."""
    assert driver.run(driver.append("a", token_ids, sampling=sampling))["a"].error
    assert driver.decode("b", PROMPT, 2)


def test_more_sessions_than_slots_are_refused(driver: BackendDriver) -> None:
    """vLLM would let the fifth wait in silence for one of the four to end."""
    for name in "abcd":
        driver.decode(name, (50,))
    assert "4 sessions" in str(driver.run(driver.append("e", PROMPT))["e"].error)
    driver.step(closes=("a",))
    assert driver.decode("e", PROMPT)


def test_a_full_pool_makes_a_session_wait(driver: BackendDriver) -> None:
    """It yields nothing and stays busy, which the caller can see; room for it lets it go on."""
    expected = driver.decode("c", OTHER[:90], 3)
    driver.step(closes=("c",))
    driver.decode("a", PROMPT + OTHER[:50])
    driver.decode("b", range(600, 680))
    assert driver.backend.snapshot().free_blocks == 2
    assert driver.step(driver.append("c", OTHER[:90], 3)) == ()
    assert driver.step() == ()
    assert driver.backend.busy
    assert driver.run(closes=("b",))["c"].token_ids == expected


def test_a_preempted_session_resumes_as_it_was(driver: BackendDriver) -> None:
    """Two answers outgrow the pool; vLLM takes one's KV, and computes it again when there is room."""
    alone = []
    for name, prompt in (("x", PROMPT), ("y", OTHER)):
        alone.append(driver.decode(name, prompt, 60))
        driver.step(closes=(name,))
    tokens: dict[str, list[int]] = {"a": [], "b": []}
    chunks = driver.step(driver.append("a", PROMPT, 60), driver.append("b", OTHER, 60))
    while not any(chunk.finished for chunk in chunks):
        for chunk in chunks:
            tokens[chunk.session_id] += chunk.token_ids
        chunks = driver.step()
    for chunk in chunks:
        tokens[chunk.session_id] += chunk.token_ids
    first = next(chunk.session_id for chunk in chunks if chunk.finished)
    second = "b" if first == "a" else "a"
    assert len(tokens[second]) < 60, "nothing was preempted"
    tokens[second] += driver.run(closes=(first,))[second].token_ids
    assert [tuple(tokens["a"]), tuple(tokens["b"])] == alone


def test_a_drop_without_room_for_copies_ends_that_session_only(driver: BackendDriver) -> None:
    """Shared blocks must be copied before they move; in a full pool there is no room for that."""
    long = PROMPT + OTHER[:70]
    expected = driver.decode("a", long, 4)
    driver.step(closes=("a",))
    driver.decode("b", long)
    first = driver.decode("c", long)
    driver.decode("d", OTHER[:120])
    assert driver.backend.snapshot().free_blocks == 0
    chunks = driver.step(drops=(Drop("b", 32, 64),))
    assert [(c.session_id, c.finished, bool(c.error)) for c in chunks] == [("b", True, True)]
    assert first + driver.decode("c", (), 3) == expected


def test_what_follows_a_rewind_can_be_shared(driver: BackendDriver) -> None:
    """Sessions hold equal beginnings once, those that were rewritten too."""
    driver.decode("a", PROMPT)
    driver.decode("a", OTHER, keep_tokens=40)
    held = driver.backend.snapshot().held_blocks
    driver.decode("b", PROMPT[:40] + OTHER)
    assert driver.backend.snapshot().held_blocks == held + 1


def test_what_follows_a_drop_is_never_shared(driver: BackendDriver, backend: VllmBackend) -> None:
    """It still carries what was dropped; a session with the same tokens must compute its own."""
    tokens = [*PROMPT, *driver.decode("a", PROMPT)]
    driver.step(drops=(Drop("a", 32, 96),))
    del tokens[32:96]
    driver.decode("a", OTHER[:120])
    check_integrity(backend)
    held = driver.backend.snapshot().held_blocks
    driver.decode("b", tokens + list(OTHER[:70]))
    assert driver.backend.snapshot().held_blocks == held + 4  # of five: the header is shared
    check_integrity(backend)


def test_a_session_draws_from_the_seed_it_names(driver: BackendDriver) -> None:
    """A seed given after the first append counts too."""
    free, drawn = Sampling(), Sampling(temperature=1.5, seed=11)
    texts = []
    for name in ("a", "b"):
        driver.decode(name, PROMPT, 1, sampling=free)
        texts.append(driver.decode(name, (), 8, sampling=drawn))
    other = driver.decode("a", (), 8, keep_tokens=151, sampling=Sampling(temperature=1.5, seed=12))
    assert texts[0] == texts[1] != other


class TestDeath:
    """Last, because it ends the shared engine."""

    def test_a_failing_step_kills_the_backend(
        self, backend: VllmBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """EngineDead with vLLM's error as its cause, then and ever after; shutting down still works."""

        def fail() -> None:
            raise KeyError("lost request")

        append = BackendDriver(backend).append("a", PROMPT, 4)
        backend.step(TickBatch((append,)))
        monkeypatch.setattr(backend._core._core, "step", fail)
        with pytest.raises(EngineDead, match="lost request") as death:
            backend.step(TickBatch())
        assert isinstance(death.value.__cause__, KeyError)
        assert not backend.busy
        with pytest.raises(EngineDead):
            backend.step(TickBatch())
        backend.shutdown()
        backend.shutdown()
        with pytest.raises(EngineDead):
            backend.step(TickBatch())

    @pytest.mark.slow
    def test_a_model_that_vllm_does_not_know_is_a_one_line_error(self, tmp_path: Path) -> None:
        """It names the folder and the reason."""
        (tmp_path / "config.json").write_text('{"model_type": "no such thing"}')
        with pytest.raises(EngineUnavailable, match=f"{tmp_path}.*no such thing") as failure:
            VllmBackend(VllmSettings(str(tmp_path)))
        assert "\n" not in str(failure.value)
