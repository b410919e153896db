"""Random lives of several sessions on one engine: nothing leaks, nothing mixes, nothing drifts.

One layer in float32, so that whatever happened to a session, its next tokens must be those of its logical context
prefilled from nothing.
"""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.backend_driver import BackendDriver
from support.tiny_llama import write_tiny_llama
from vllm_adapter.resident_kv import check_integrity

from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings
from engine.work import Drop

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

BLOCK = 32
LIMIT = 512

NAMES = st.sampled_from(["a", "b", "c", "d"])
ACTIONS = st.one_of(
    st.tuples(st.just("append"), NAMES, st.integers(1, 90), st.integers(1, 6)),
    st.tuples(st.just("decode"), NAMES, st.just(0), st.integers(1, 40)),
    st.tuples(st.just("rewind"), NAMES, st.integers(0, 300), st.integers(0, 20)),
    st.tuples(st.just("drop"), NAMES, st.integers(0, 4), st.integers(1, 6)),
    st.tuples(st.just("close"), NAMES, st.just(0), st.just(0)),
)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmBackend]:
    folder = write_tiny_llama(tmp_path_factory.mktemp("model"), layers=1)
    built = VllmBackend(
        VllmSettings(
            str(folder),
            "float32",
            max_model_len=LIMIT,
            max_num_seqs=8,
            total_blocks=96,
            kv_cache_gib=0.1,
        )
    )
    yield built
    built.shutdown()


class Lives:
    """The logical contexts that the backend is supposed to hold."""

    def __init__(self, backend: VllmBackend) -> None:
        self.driver = BackendDriver(backend)
        self.contexts: dict[str, list[int]] = {}

    def act(self, action: str, name: str, first: int, second: int) -> None:
        """Do one thing to one session, if it makes sense."""
        context = self.contexts.get(name)
        if action == "close":
            self.driver.step(closes=(name,))
            self.contexts.pop(name, None)
        elif action == "append":
            self._append(name, len(context or ()), self._script(len(context or ()), first), second)
        elif context is None:
            return
        elif action == "decode":
            self._append(name, len(context), [], second)
        elif action == "rewind":
            keep = min(first, len(context))
            self._append(name, keep, [700 + i for i in range(second or (keep == 0))], 2)
        else:
            stop = min(first + second, (len(context) - 1) // BLOCK) * BLOCK
            if stop > first * BLOCK:
                self.driver.step(drops=(Drop(name, first * BLOCK, stop),))
                del context[first * BLOCK : stop]

    def _script(self, start: int, count: int) -> list[int]:
        """The same tokens at the same position for all, so that sessions share their beginnings."""
        return [10 + (start + i) * 37 % 600 for i in range(count)]

    def _append(self, name: str, keep: int, token_ids: list[int], decode: int) -> None:
        chunk = self.driver.run(
            self.driver.append(
                name, token_ids, decode, keep_tokens=keep if name in self.contexts else None
            )
        )[name]
        if keep + len(token_ids) + decode > LIMIT:
            assert chunk.error
            del self.contexts[name]
            return
        assert chunk.error is None, chunk.error
        kept = self.contexts.get(name, [])[:keep]
        self.contexts[name] = [*kept, *token_ids, *chunk.token_ids]
        assert chunk.context_tokens == len(self.contexts[name])

    def compare_with_prefills(self) -> None:
        """Every session goes on as a fresh one with its context would."""
        for name, context in self.contexts.items():
            if len(context) + 4 > LIMIT:
                continue
            again = self.driver.decode(f"fresh {name}", [*context, 5], 3)
            assert self.driver.decode(name, [5], 3) == again, name


@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(ACTIONS, min_size=4, max_size=24))
def test_blocks_are_conserved_and_contexts_exact(
    backend: VllmBackend, actions: list[tuple[str, str, int, int]]
) -> None:
    """After every action each block is free or held by a table, and in the end every context is what it should be."""
    lives = Lives(backend)
    try:
        for action in actions:
            lives.act(*action)
            check_integrity(backend)
        lives.compare_with_prefills()
        check_integrity(backend)
    finally:
        lives.driver.close_all()
    assert backend.snapshot().held_blocks == 0
