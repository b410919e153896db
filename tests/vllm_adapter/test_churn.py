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

# Weighted so that sessions live long enough to be dropped from and rewound.
KINDS = ("append",) * 5 + ("decode",) * 2 + ("rewind",) * 2 + ("drop",) * 4 + ("close",)
ACTIONS = st.tuples(
    st.sampled_from(KINDS), st.sampled_from("abc"), st.integers(0, 99), st.integers(0, 99)
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
        """Do one thing to one session, if it makes sense; `first` and `second` say how much, in percent."""
        context = self.contexts.get(name)
        if action == "append" or context is None:
            length = len(context or ())
            self._append(name, length, self._script(length, 20 + first), 1 + second % 5)
        elif action == "close":
            self.driver.step(closes=(name,))
            del self.contexts[name]
        elif action == "decode":
            self._append(name, len(context), [], 1 + second % 12)
        elif action == "rewind":
            keep = len(context) * (first + 1) // 100
            again = [700 + i for i in range(second % 20)]
            self._append(name, keep, again if keep else [700], 2)
        else:
            blocks = (len(context) - 1) // BLOCK
            start = blocks * first // 200 * BLOCK
            stop = start + (blocks * BLOCK - start) * second // 100 // BLOCK * BLOCK
            self.driver.step(drops=(Drop(name, start, stop),))
            del context[start:stop]

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
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(ACTIONS, min_size=20, max_size=40))
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
