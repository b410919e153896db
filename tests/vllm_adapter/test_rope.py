"""Rotations against vLLM's own rotary modules, one per scheme."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from engine.vllm_adapter.rope import NotRotary, Rotation, turn  # noqa: E402  after the skips

pytestmark = pytest.mark.vllm

HEAD = 64
POSITIONS = 4096

SCHEMES: dict[str, dict[str, Any]] = {
    "neox": {},
    "gptj": {"is_neox_style": False},
    "partial": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    "partial-gptj": {
        "is_neox_style": False,
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25},
    },
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0}},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        }
    },
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
        }
    },
    "dynamic": {
        "rope_parameters": {
            "rope_type": "dynamic",
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
        }
    },
    "mrope": {"rope_parameters": {"rope_type": "default", "mrope_section": [8, 12, 12]}},
}


def make_rope(scheme: str, dtype: Any) -> Any:
    """vLLM's module for the scheme."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope

    with set_current_vllm_config(VllmConfig()):
        return get_rope(HEAD, POSITIONS, dtype=dtype, **SCHEMES[scheme])


def keys_at(rope: Any, keys: Any, positions: Any) -> Any:
    """What the module makes of `keys` (n, HEAD) at these positions."""
    flat = keys.clone()
    _, rotated = rope(positions, flat.clone(), flat)
    return rotated.float()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_moving_is_exact(scheme: str, dtype: str, tolerance: float) -> None:
    """Keys moved from p to q are the keys that the module makes at q."""
    rope = make_rope(scheme, getattr(torch, dtype))
    rotation = Rotation(rope, POSITIONS)
    torch.manual_seed(5)
    keys = torch.rand(4, HEAD).mul(2).sub(1).to(getattr(torch, dtype))
    before, after = torch.tensor([1500, 1600, 1700, 1800]), torch.tensor([1499, 1568, 1060, 300])
    moved = keys_at(rope, keys, before)
    factors = rotation.between(before, after)
    first, second = turn(moved[:, rotation.first], moved[:, rotation.second], factors)
    moved[:, rotation.first], moved[:, rotation.second] = first, second
    assert float((moved - keys_at(rope, keys, after)).abs().max()) < tolerance


def test_the_wrong_pairing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that pairs dimensions otherwise than it says is refused."""
    rope = make_rope("neox", torch.float32)
    forward = type(rope).forward_static
    monkeypatch.setattr(rope, "is_neox_style", False)
    monkeypatch.setattr(
        type(rope),
        "__call__",
        lambda self, positions, query, key: forward(
            positions, query, key, HEAD, HEAD, self.cos_sin_cache, True
        ),
    )
    with pytest.raises(NotRotary, match="off by"):
        Rotation(rope, POSITIONS)


def test_a_module_that_turns_otherwise_than_its_table_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table that the module does not use is no guide, and that is found out."""
    rope = make_rope("neox", torch.float32)
    forward, used = type(rope).forward_static, rope.cos_sin_cache
    monkeypatch.setattr(
        type(rope),
        "__call__",
        lambda self, positions, query, key: forward(
            positions // 2, query, key, HEAD, HEAD, used, True
        ),
    )
    with pytest.raises(NotRotary, match="off by"):
        Rotation(rope, POSITIONS)


def test_a_module_without_a_plain_table_is_refused() -> None:
    """A scheme that keeps several tables, or none, says so."""
    with pytest.raises(NotRotary, match="no plain table"):
        Rotation(object(), POSITIONS)
