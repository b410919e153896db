"""No session ever sees another's tokens: a model that tells which tokens it attends to looks around in each."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.backend_driver import BackendDriver
from support.tiny_llama import CANARIES, write_canary

from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings
from engine.work import Drop, Sampling, TokenRules

pytestmark = pytest.mark.vllm

BLOCK = 32
HEADER = [*range(1, 33)]  # the same for all, a block
A, B, C = ([*range(start, start + 12)] for start in (40, 60, 80))  # each session's canaries
SILENT = Sampling(rules=TokenRules(first=0))  # what is drawn says nothing


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmBackend]:
    folder = write_canary(tmp_path_factory.mktemp("model"))
    built = VllmBackend(
        VllmSettings(
            str(folder),
            "float32",
            max_model_len=512,
            max_num_seqs=8,
            total_blocks=32,
            kv_cache_gib=0.1,
        )
    )
    yield built
    built.shutdown()


class Eyes(BackendDriver):
    """What each session saw when it drew its last token."""

    def __init__(self, backend: VllmBackend, patch: pytest.MonkeyPatch) -> None:
        super().__init__(backend)
        self.seen: dict[str, set[int]] = {}
        model, runner = backend._core.model, backend._core._runner
        compute = model.compute_logits

        def record(*args: Any, **kwargs: Any) -> Any:
            logits = compute(*args, **kwargs)
            for request_id, row in zip(runner.input_batch.req_ids, logits, strict=True):
                name = backend._owners[request_id]
                self.seen[name] = set((row > 1e-3).nonzero().flatten().tolist()) - {0}
            return logits

        patch.setattr(model, "compute_logits", record)

    def tell(self, session_id: str, token_ids: list[int], **fields: Any) -> Any:
        return self.append(session_id, token_ids, sampling=SILENT, **fields)


@pytest.fixture
def eyes(backend: VllmBackend, monkeypatch: pytest.MonkeyPatch) -> Iterator[Eyes]:
    eyes = Eyes(backend, monkeypatch)
    yield eyes
    eyes.close_all()
    assert backend.snapshot().held_blocks == 0


@pytest.mark.parametrize("together", [True, False], ids=["batched", "in turns"])
def test_two_sessions_see_themselves_only(eyes: Eyes, together: bool) -> None:
    """With a header they share, appended to, cut back and rewound: exactly their own tokens."""
    own = {"a": A, "b": B}

    def ask(**tokens: list[int]) -> None:
        appends = [eyes.tell(name, ids) for name, ids in tokens.items()]
        for batch in [appends] if together else [[append] for append in appends]:
            eyes.run(*batch)

    ask(a=HEADER + A[:4], b=HEADER + B[:4])
    assert eyes.seen == {name: {*HEADER, *ids[:4]} for name, ids in own.items()}
    ask(a=A[4:8] * 10, b=B[4:8] * 10)
    assert eyes.seen == {name: {*HEADER, *ids[:8]} for name, ids in own.items()}
    eyes.step(drops=(Drop("a", 0, BLOCK), Drop("b", BLOCK, 2 * BLOCK)))
    ask(a=A[8:9], b=B[8:9])
    assert eyes.seen == {"a": {*A[:9]}, "b": {*HEADER, *B[4:9]}}
    eyes.run(eyes.tell("a", A[9:], keep_tokens=4), eyes.tell("b", B[9:], keep_tokens=BLOCK))
    assert eyes.seen == {"a": {*A[:4], *A[9:]}, "b": {*HEADER, *B[9:]}}


def test_a_rewind_inside_a_shared_block_stays_private(eyes: Eyes) -> None:
    """Two sessions hold the same blocks; what one writes over its part is not seen by the other."""
    for name in ("a", "b"):
        eyes.run(eyes.tell(name, HEADER + A * 6))
    eyes.run(eyes.tell("a", B * 4, keep_tokens=BLOCK + 5))
    eyes.run(eyes.tell("b", C[:1]))
    assert eyes.seen == {"a": {*HEADER, *A[:5], *B}, "b": {*HEADER, *A, C[0]}}


def test_what_others_left_in_the_pool_is_never_seen(eyes: Eyes) -> None:
    """Blocks that were full of another's tokens are given out again."""
    everything = [*range(1, CANARIES)]
    for name in ("x", "y", "z"):
        eyes.run(eyes.tell(name, everything * 2))
    assert eyes.seen["z"] == set(everything)
    eyes.step(closes=("x", "y", "z"))
    eyes.run(*(eyes.tell(name, ids * 5) for name, ids in (("a", A), ("b", B), ("c", C))))
    assert {name: eyes.seen[name] for name in "abc"} == {"a": {*A}, "b": {*B}, "c": {*C}}
    eyes.step(drops=(Drop("b", 0, BLOCK),), closes=("c",))
    eyes.run(eyes.tell("b", []), eyes.tell("a", []))
    assert (eyes.seen["a"], eyes.seen["b"]) == ({*A}, {*B})
