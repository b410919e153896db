"""What every backend promises, run against the simulator, vLLM with a tiny model, and vLLM with the embedded one.

The backend is built once per kind and shared by the tests below; each test closes what it opened and the pool must be
as it was.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.backend_driver import BackendDriver
from support.tiny_llama import write_tiny_llama

from engine.backend import Backend
from engine.sim_backend import SimBackend, SimCost
from engine.weights.paths import EmbeddedFiles, embedded_dir
from engine.work import Drop, Sampling, TickBatch

MAX_CONTEXT = 1024
BLOCK = 32
PROMPT = tuple(range(20, 90))  # spans three blocks
OTHER = tuple(range(200, 245))


def _vllm(model: Path) -> Backend:
    from engine.vllm_adapter.backend import VllmBackend
    from engine.vllm_adapter.settings import VllmSettings

    # float32, so that the order of sums in a larger batch cannot turn one greedy choice into another.
    return VllmBackend(
        VllmSettings(
            str(model),
            "float32",
            max_model_len=MAX_CONTEXT,
            max_num_seqs=8,
            total_blocks=128,
            kv_cache_gib=0.4,
        )
    )


def _build(kind: str, folder: Path) -> Backend:
    if kind == "sim":
        return SimBackend(SimCost(), block_size=BLOCK, total_blocks=128, max_context=MAX_CONTEXT)
    if kind == "tiny":
        return _vllm(write_tiny_llama(folder / "tiny", layers=2))
    weights = EmbeddedFiles(embedded_dir()).llm
    if not (weights / "config.json").exists():
        pytest.skip(
            f"the embedded language model is not in {weights}: run `metronome models fetch`"
        )
    return _vllm(weights)


@pytest.fixture(
    scope="module",
    params=[
        "sim",
        pytest.param("tiny", marks=pytest.mark.vllm),
        pytest.param("embedded", marks=[pytest.mark.vllm, pytest.mark.embedded, pytest.mark.slow]),
    ],
)
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Backend]:
    built = _build(request.param, tmp_path_factory.mktemp("model"))
    yield built
    built.shutdown()


@pytest.fixture
def driver(backend: Backend) -> Iterator[BackendDriver]:
    baseline = backend.snapshot()
    driver = BackendDriver(backend)
    yield driver
    driver.close_all()
    assert backend.snapshot() == baseline
    assert not backend.busy


class TestAppend:
    def test_an_append_opens_a_session(self, driver: BackendDriver) -> None:
        """An unknown session id opens that session, and its KV shows in the pool."""
        before = driver.backend.snapshot()
        chunk = driver.run(driver.append("a", PROMPT, epoch=7))["a"]
        after = driver.backend.snapshot()
        assert (chunk.epoch, chunk.finished, chunk.error) == (7, True, None)
        assert chunk.context_tokens == len(PROMPT) + 1
        assert (before.sessions, after.sessions) == (0, 1)
        assert before.free_blocks - after.free_blocks == 3
        assert after.resident_tokens >= len(PROMPT)

    def test_the_quota_bounds_the_chunk(self, driver: BackendDriver) -> None:
        """As many tokens as asked for, one at a time at the most, and `finished` exactly with the last."""
        chunks = list(driver.step(driver.append("a", PROMPT, 5)))
        while driver.backend.busy:
            chunks += driver.step()
        assert [chunk.finished for chunk in chunks] == [False] * 4 + [True]
        assert sum(len(chunk.token_ids) for chunk in chunks) == 5
        assert not chunks[-1].stopped

    def test_an_empty_append_goes_on_decoding(self, driver: BackendDriver) -> None:
        """Five tokens, then five more of an empty append, are the ten of one long append."""
        first = driver.decode("a", PROMPT, 5)
        second = driver.decode("a", (), 5)
        assert first + second == driver.decode("b", PROMPT, 10)

    def test_the_context_is_everything_appended_and_sampled(self, driver: BackendDriver) -> None:
        """A second append continues from the first one's tokens, its last sampled one too."""
        first = driver.decode("a", PROMPT, 4)
        second = driver.decode("a", OTHER, 4)
        assert second == driver.decode("b", PROMPT + first + OTHER, 4)

    def test_kv_stays_resident_between_appends(self, driver: BackendDriver) -> None:
        """An idle session keeps its blocks while others come and go."""
        driver.run(driver.append("a", PROMPT, 2))
        held = driver.backend.snapshot().held_blocks
        driver.run(driver.append("b", OTHER, 2))
        driver.step(closes=("b",))
        assert driver.backend.snapshot().held_blocks == held

    def test_busy_while_an_append_is_unfinished(self, driver: BackendDriver) -> None:
        """`busy` from the append until its last token."""
        seen = [driver.backend.busy]
        driver.step(driver.append("a", PROMPT, 2))
        seen.append(driver.backend.busy)
        driver.step()
        seen.append(driver.backend.busy)
        assert seen == [False, True, False]

    def test_sampling_is_repeatable_with_a_seed(self, driver: BackendDriver) -> None:
        """The same seed draws the same tokens, across two appends too."""
        drawn = Sampling(temperature=1.0, top_p=0.9, seed=3)
        first = driver.decode("a", PROMPT, 6, sampling=drawn) + driver.decode(
            "a", (), 6, sampling=drawn
        )
        again = driver.decode("b", PROMPT, 6, sampling=drawn) + driver.decode(
            "b", (), 6, sampling=drawn
        )
        assert first == again


class TestIsolation:
    def test_sessions_in_one_batch_do_not_see_each_other(self, driver: BackendDriver) -> None:
        """Two sessions stepped together give what each gives alone."""
        alone = driver.decode("a", PROMPT, 6), driver.decode("b", OTHER, 6)
        both = driver.run(driver.append("c", PROMPT, 6), driver.append("d", OTHER, 6))
        assert (both["c"].token_ids, both["d"].token_ids) == alone

    def test_a_session_joins_a_running_batch(self, driver: BackendDriver) -> None:
        """A session that starts while another decodes disturbs neither."""
        alone = driver.decode("a", PROMPT, 8), driver.decode("b", OTHER, 4)
        early = driver.step(driver.append("c", PROMPT, 8)) + driver.step()
        both = driver.run(driver.append("d", OTHER, 4))
        joined = sum((chunk.token_ids for chunk in early), ()) + both["c"].token_ids
        assert (joined, both["d"].token_ids) == alone


class TestStop:
    def test_a_stop_token_ends_the_chunk(self, driver: BackendDriver) -> None:
        """It is the last token of the chunk and stays part of the context."""
        free = driver.decode("a", PROMPT, 6)
        stop = free[3]
        chunk = driver.run(driver.append("b", PROMPT, 6, stop_token_ids=(stop,)))["b"]
        assert chunk.stopped
        assert chunk.token_ids[-1] == stop
        assert len(chunk.token_ids) == chunk.token_ids.index(stop) + 1 <= 4
        assert chunk.context_tokens == len(PROMPT) + len(chunk.token_ids)
        after = driver.decode("b", OTHER, 3)
        assert after == driver.decode("c", PROMPT + chunk.token_ids + OTHER, 3)

    def test_stop_tokens_belong_to_one_append(self, driver: BackendDriver) -> None:
        """The next append may sample what would have stopped the last one."""
        free = driver.decode("a", PROMPT, 8)
        chunk = driver.run(driver.append("b", PROMPT, 8, stop_token_ids=(free[0],)))["b"]
        rest = driver.run(driver.append("b", (), 8 - len(chunk.token_ids)))["b"]
        assert chunk.stopped
        assert not rest.stopped
        assert len(rest.token_ids) == 8 - len(chunk.token_ids)


class TestRewind:
    @pytest.mark.parametrize("keep", [1, 31, 32, 33, 64, 69, 70])
    def test_a_rewind_equals_a_fresh_prefill(self, driver: BackendDriver, keep: int) -> None:
        """Cut to `keep` tokens and appended to, a session goes on as if the tail had never been there."""
        driver.decode("a", PROMPT, 5)
        chunk = driver.run(driver.append("a", OTHER, 5, keep_tokens=keep))["a"]
        assert chunk.context_tokens == keep + len(OTHER) + 5
        assert chunk.token_ids == driver.decode("b", PROMPT[:keep] + OTHER, 5)

    @pytest.mark.parametrize("generated", [0, 1, 3, 5])
    def test_a_rewind_into_generated_tokens(self, driver: BackendDriver, generated: int) -> None:
        """Some of what was sampled stays and decoding goes on from there, with nothing new appended."""
        sampled = driver.decode("a", PROMPT, 5)
        keep = len(PROMPT) + generated
        again = driver.decode("a", (), 5, keep_tokens=keep)
        assert again == driver.decode("b", PROMPT + sampled[:generated], 5)

    def test_a_rewind_to_nothing_starts_over(self, driver: BackendDriver) -> None:
        """`keep_tokens` 0 forgets all, and the session lives on."""
        driver.decode("a", PROMPT, 5)
        chunk = driver.run(driver.append("a", OTHER, 4, keep_tokens=0))["a"]
        assert chunk.context_tokens == len(OTHER) + 4
        assert chunk.token_ids == driver.decode("b", OTHER, 4)

    def test_a_rewind_frees_blocks(self, driver: BackendDriver) -> None:
        """The cut tail's whole blocks go back to the pool."""
        driver.decode("a", PROMPT + OTHER + PROMPT, 1)
        held = driver.backend.snapshot().held_blocks
        driver.decode("a", (), 1, keep_tokens=40)
        assert driver.backend.snapshot().held_blocks == 2 < held

    def test_a_neighbour_with_the_same_start_is_unharmed(self, driver: BackendDriver) -> None:
        """Sessions may share the KV of an equal start; rewriting one must not reach the other."""
        expected = driver.decode("a", PROMPT, 8)
        first = driver.decode("b", PROMPT, 4)
        driver.decode("c", PROMPT, 4)
        driver.decode("c", OTHER, 4, keep_tokens=40)
        assert first + driver.decode("b", (), 4) == expected
        assert driver.decode("d", PROMPT, 8) == expected


class TestDrop:
    def test_a_drop_shortens_the_context_and_frees_its_blocks(self, driver: BackendDriver) -> None:
        """Two whole blocks go; the session decodes on with the shorter context."""
        if not driver.backend.can_drop:
            pytest.skip("this backend cannot drop exactly")
        long = PROMPT + OTHER + PROMPT
        before = driver.run(driver.append("a", long))["a"].context_tokens
        held = driver.backend.snapshot().held_blocks
        driver.step(drops=(Drop("a", BLOCK, 3 * BLOCK),))
        assert driver.backend.snapshot().held_blocks == held - 2
        chunk = driver.run(driver.append("a", OTHER, 4))["a"]
        assert chunk.error is None
        assert chunk.context_tokens == before - 2 * BLOCK + len(OTHER) + 4

    def test_a_rewind_behind_a_drop_equals_a_fresh_prefill(self, driver: BackendDriver) -> None:
        """Cut back into the header, a session carries nothing of what was dropped."""
        if not driver.backend.can_drop:
            pytest.skip("this backend cannot drop exactly")
        driver.decode("a", PROMPT + OTHER + PROMPT)
        driver.step(drops=(Drop("a", BLOCK, 3 * BLOCK),))
        assert driver.decode("a", OTHER, 5, keep_tokens=BLOCK - 2) == driver.decode(
            "b", PROMPT[: BLOCK - 2] + OTHER, 5
        )

    def test_a_drop_does_not_reach_a_neighbour_with_the_same_start(
        self, driver: BackendDriver
    ) -> None:
        """What one session forgets and moves, another that shares it keeps as it was."""
        if not driver.backend.can_drop:
            pytest.skip("this backend cannot drop exactly")
        long = PROMPT + OTHER + PROMPT
        expected = driver.decode("a", long, 6)
        first = driver.decode("b", long, 3)
        driver.decode("c", long, 3)
        driver.step(drops=(Drop("c", BLOCK, 3 * BLOCK),))
        driver.decode("c", OTHER, 3)
        assert first + driver.decode("b", (), 3) == expected
        assert driver.decode("d", long, 6) == expected

    def test_dropping_an_unknown_session_is_ignored(self, driver: BackendDriver) -> None:
        """The session may have been closed in the same breath."""
        assert driver.step(drops=(Drop("nobody", 0, BLOCK),)) == ()


class TestClose:
    def test_close_frees_everything(self, driver: BackendDriver) -> None:
        """Waiting or decoding, a closed session leaves nothing behind and says nothing more."""
        baseline = driver.backend.snapshot()
        driver.run(driver.append("a", PROMPT, 2))
        driver.step(driver.append("b", OTHER, 50))
        assert driver.step(closes=("a", "b")) == ()
        assert driver.backend.snapshot() == baseline
        assert not driver.backend.busy

    def test_closing_an_unknown_session_is_ignored(self, driver: BackendDriver) -> None:
        """Twice closed is closed."""
        assert driver.step(closes=("nobody", "nobody")) == ()

    def test_a_closed_id_can_be_used_again_at_once(self, driver: BackendDriver) -> None:
        """Close and reopen in one batch start from nothing."""
        expected = driver.decode("a", OTHER, 4)
        driver.decode("b", PROMPT, 2)
        chunk = driver.run(driver.append("b", OTHER, 4), closes=("b",))["b"]
        assert chunk.token_ids == expected


class TestRefusal:
    @pytest.mark.parametrize(
        ("token_ids", "fields"),
        [
            (PROMPT * 20, {}),  # longer than max_context
            (PROMPT, {"decode": MAX_CONTEXT}),  # would grow past it
            ((), {"keep_tokens": 0}),  # nothing to decode from
            (OTHER, {"keep_tokens": 500}),  # more than there is
            (OTHER, {"keep_tokens": -1}),
        ],
    )
    def test_an_illegal_append_ends_its_session_only(
        self, driver: BackendDriver, token_ids: tuple[int, ...], fields: dict[str, int]
    ) -> None:
        """An error chunk for it, its KV freed, and the neighbour's tokens as ever."""
        expected = driver.decode("a", PROMPT, 6)
        driver.step(closes=("a",))
        driver.decode("bad", PROMPT)
        driver.step(driver.append("good", PROMPT, 6))
        chunks = driver.step(driver.append("bad", token_ids, epoch=4, **fields))
        refused = next(chunk for chunk in chunks if chunk.session_id == "bad")
        assert refused.error
        assert (refused.epoch, refused.finished, refused.token_ids) == (4, True, ())
        assert driver.backend.snapshot().sessions == 1
        good = driver.run()["good"]
        assert good.context_tokens == len(PROMPT) + 6
        assert good.token_ids == expected[2:]

    def test_an_empty_first_append_is_refused(self, driver: BackendDriver) -> None:
        """There is nothing to decode from."""
        assert driver.run(driver.append("a", ()))["a"].error
        assert driver.backend.snapshot().sessions == 0

    def test_a_second_append_while_one_is_unfinished_is_refused(
        self, driver: BackendDriver
    ) -> None:
        """It ends that session; a neighbour decodes on."""
        driver.step(driver.append("a", PROMPT, 8), driver.append("b", OTHER, 4))
        chunks = driver.run(driver.append("a", OTHER))
        assert chunks["a"].error
        assert chunks["a"].token_ids == ()
        assert chunks["b"].error is None
        assert driver.backend.snapshot().sessions == 1

    def test_a_session_may_fill_its_context_to_the_last_token(self, driver: BackendDriver) -> None:
        """Exactly max_context is legal; one more is not."""
        limit = driver.backend.max_context
        fill = tuple(20 + i % 200 for i in range(limit - 2))
        assert driver.run(driver.append("a", fill, 2))["a"].context_tokens == limit
        assert driver.run(driver.append("a", ()))["a"].error


class TestLifecycle:
    """Last, because it ends the shared backend."""

    def test_shutdown_is_idempotent(self, backend: Backend) -> None:
        """A backend is idle once shut, and may be shut again."""
        backend.step(TickBatch((BackendDriver(backend).append("a", PROMPT, 4),)))
        backend.shutdown()
        backend.shutdown()
        assert not backend.busy
