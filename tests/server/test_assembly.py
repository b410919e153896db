"""What is made of a configuration before the first call: how many sessions fit, and what is said about it."""

from dataclasses import replace

import msgspec
import pytest
from support.sim_engine import cascade

from engine.work import KvSnapshot
from server.assembly import (
    _needs_embedded,
    places,
    plateau_blocks,
    session_blocks,
    session_defaults,
)
from server.config import ConfigError, default_config_path, load_config

CONFIG = load_config(default_config_path("sim"))
POOL = KvSnapshot(
    block_size=32, total_blocks=100_000, free_blocks=100_000, resident_tokens=0, sessions=0
)


def test_a_session_is_reserved_what_its_worst_tick_costs() -> None:
    """Audio, answer and, where the model sees, an image beside them."""
    model = cascade()
    blind = replace(model.spec, prefill_per_tick=30, decode_per_tick=2)
    model.spec = blind
    reserved = plateau_blocks(CONFIG, model, POOL)
    model.spec = replace(blind, prefill_per_image=3 * POOL.block_size)
    assert plateau_blocks(CONFIG, model, POOL) == reserved + 3
    assert not session_defaults(CONFIG, blind).sees_images
    assert session_defaults(CONFIG, model.spec).sees_images


def test_a_header_longer_than_what_is_reserved_for_it_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It would shorten every session's window in silence."""
    model, reserved = cascade(), CONFIG.engine.kv.header_tokens
    model.spec = replace(model.spec, header_tokens=reserved)
    places(CONFIG, model, POOL)
    assert "header" not in caplog.text
    model.spec = replace(model.spec, header_tokens=reserved + 1)
    places(CONFIG, model, POOL)
    assert (
        f"has {reserved + 1} tokens and engine.kv.header_tokens reserves {reserved}" in caplog.text
    )


def test_answers_beside_conversations_are_reserved_for() -> None:
    """Each takes the place of a call, in how many may be in and in what admission may promise."""
    model = cascade()
    plateau = plateau_blocks(CONFIG, model, POOL)
    beside = CONFIG.engine.out_of_band
    assert beside == 2
    pool = msgspec.structs.replace(POOL, total_blocks=5 * plateau)
    assert session_blocks(CONFIG, model, pool) == 3 * plateau
    assert places(CONFIG, model, pool) == 3
    with pytest.raises(ConfigError, match=r"engine\.out_of_band"):
        places(CONFIG, model, msgspec.structs.replace(POOL, total_blocks=3 * plateau - 1))
    model.spec = replace(model.spec, decides_turns=True)  # a frame-locked model gives none
    assert session_blocks(CONFIG, model, pool) == 5 * plateau


@pytest.mark.parametrize(
    ("overrides", "needed"),
    [
        ({"model.id": "moshi:./m"}, True),
        ({"model.id": "moshi:./m", "model.vad": "none", "model.stt": "none"}, False),
        ({"model.id": "moshi-tiny-random"}, False),
    ],
)
def test_who_listens_beside_moshi_needs_weights(overrides: dict[str, str], needed: bool) -> None:
    """The embedded ones, which are then verified before the model is loaded."""
    config = load_config(None, {"model.tick_ms": 80, **overrides})
    assert _needs_embedded(config) is needed


def test_voices_are_the_models_where_it_has_some() -> None:
    """A session may choose among them; of other models there is the deployment's one."""
    spec = cascade().spec
    assert session_defaults(CONFIG, spec).voices == (CONFIG.model.voice,)
    assert session_defaults(CONFIG, replace(spec, voices=("a", "b"))).voices == ("a", "b")
