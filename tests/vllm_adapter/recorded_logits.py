"""Compares what sessions are about to say: the logits themselves, on forced tokens, so that nothing can diverge."""

from typing import Any

import pytest
from support.backend_driver import BackendDriver
from support.tiny_llama import VOCAB

from engine.vllm_adapter.backend import VllmBackend
from engine.work import Drop, Sampling, TokenRules

BLOCK = 32

# Largest difference of two logits, in units of the largest logit (or 1): a grid of floats is relative. In bfloat16 a
# last place of the key, changed, comes out as 0.2 to 0.8 % of the logits, because every rounding behind it falls anew.
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 4e-3}


class Logits(BackendDriver):
    """A driver that also keeps the logits each token was drawn from."""

    def __init__(self, backend: VllmBackend, patch: pytest.MonkeyPatch) -> None:
        super().__init__(backend)
        self._rows: list[Any] = []
        model = backend._core.model
        compute = model.compute_logits

        def record(*args: Any, **kwargs: Any) -> Any:
            logits = compute(*args, **kwargs)
            self._rows.append(logits.float().clone())
            return logits

        patch.setattr(model, "compute_logits", record)

    def rows(self, session_id: str, token_ids: list[int], decode: int, **fields: Any) -> Any:
        """Logits (decode, vocab) of the next tokens of this session, stepped alone; what is then drawn is forced."""
        import torch

        self._rows.clear()
        for number, token in enumerate(spread(decode, 1000)):
            forced = Sampling(rules=TokenRules(first=token))
            fields = fields if number == 0 else {}
            self.decode(session_id, token_ids if number == 0 else (), sampling=forced, **fields)
        return torch.cat(self._rows)


def spread(count: int, seed: int, vocab: int = VOCAB) -> list[int]:
    """Token ids that differ from one another."""
    return [(seed * 7919 + i * 104_729) % (vocab - 10) + 10 for i in range(count)]


def grow(driver: Logits, session_id: str) -> list[int]:
    """A session of 12 ticks of 20 tokens in and 3 out; its whole context."""
    history: list[int] = []
    for tick in range(12):
        chunk = spread(20, tick)
        history += [*chunk, *driver.decode(session_id, chunk, 3)]
    return history


def difference(live: Any, fresh: Any) -> float:
    """The largest difference, in units of the largest logit or 1."""
    assert live.shape == fresh.shape
    return float((live - fresh).abs().max()) / max(1.0, float(fresh.abs().max()))


def compare_drop(backend: VllmBackend, patch: pytest.MonkeyPatch) -> tuple[float, float]:
    """Difference from a fresh prefill after a drop, and after one that leaves keys where they were."""
    driver = Logits(backend, patch)
    history = grow(driver, "live")
    assert grow(driver, "unmoved") == history
    driver.step(drops=(Drop("live", BLOCK, 4 * BLOCK),))
    shift = backend._shift
    assert shift is not None
    with patch.context() as unmoved:
        unmoved.setattr(shift, "apply", lambda moves: None)
        driver.step(drops=(Drop("unmoved", BLOCK, 4 * BLOCK),))
    left = history[:BLOCK] + history[4 * BLOCK :]
    fresh = driver.rows("fresh", left + spread(10, 99), 6)
    live, wrong = (driver.rows(name, spread(10, 99), 6) for name in ("live", "unmoved"))
    driver.close_all()
    return difference(live, fresh), difference(wrong, fresh)
