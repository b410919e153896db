"""Drops and rewinds against fresh prefills, on one layer, where a key depends on its token and position alone."""

from collections.abc import Iterator

import pytest
from support.tiny_llama import write_tiny_llama
from vllm_adapter.recorded_logits import TOLERANCE, Logits, difference, grow, spread

from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings
from engine.work import Drop

pytestmark = pytest.mark.vllm

BLOCK = 32


@pytest.fixture(
    scope="module",
    params=["float32", "bfloat16"],
)
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[VllmBackend, float]]:
    dtype = request.param
    folder = write_tiny_llama(tmp_path_factory.mktemp("model"), layers=1)
    backend = VllmBackend(
        VllmSettings(str(folder), dtype, max_model_len=1024, total_blocks=96, kv_cache_gib=0.1)
    )
    yield backend, TOLERANCE[dtype]
    backend.shutdown()


@pytest.fixture
def driver(built: tuple[VllmBackend, float], monkeypatch: pytest.MonkeyPatch) -> Iterator[Logits]:
    driver = Logits(built[0], monkeypatch)
    baseline = built[0].snapshot()
    yield driver
    driver.close_all()
    assert built[0].snapshot() == baseline


def test_a_drop_equals_a_fresh_prefill(driver: Logits, built: tuple[VllmBackend, float]) -> None:
    """After the middle is dropped, logits are those of the shortened list prefilled from nothing."""
    history = grow(driver, "live")
    driver.step(drops=(Drop("live", BLOCK, 4 * BLOCK),))
    live = driver.rows("live", spread(10, 99), 6)
    fresh = driver.rows("fresh", history[:BLOCK] + history[4 * BLOCK :] + spread(10, 99), 6)
    assert difference(live, fresh) < built[1]


def test_the_drop_mattered(driver: Logits, built: tuple[VllmBackend, float]) -> None:
    """The comparison can fail: without the drop, or with keys left where they were, logits are far off."""
    history = grow(driver, "live")
    whole = driver.rows("whole", history + spread(10, 99), 1)
    patch = pytest.MonkeyPatch()
    with patch.context() as unmoved:
        unmoved.setattr(built[0]._shift, "apply", lambda moves: None)
        driver.step(drops=(Drop("live", BLOCK, 4 * BLOCK),))
    live = driver.rows("live", spread(10, 99), 1)
    fresh = driver.rows("fresh", history[:BLOCK] + history[4 * BLOCK :] + spread(10, 99), 1)
    assert difference(live, fresh) > 10 * built[1]
    assert difference(whole, fresh) > 10 * built[1]


def test_repeated_drops_stay_exact(driver: Logits, built: tuple[VllmBackend, float]) -> None:
    """Keys that are moved several times are as good as keys that never moved."""
    history: list[int] = []
    for tick in range(24):
        chunk = spread(20, tick)
        history += [*chunk, *driver.decode("live", chunk, 3)]
        if len(history) > 200:
            driver.step(drops=(Drop("live", BLOCK, 3 * BLOCK),))
            del history[BLOCK : 3 * BLOCK]
    live = driver.rows("live", spread(10, 99), 4)
    fresh = driver.rows("fresh", history + spread(10, 99), 4)
    assert difference(live, fresh) < built[1]


def test_drops_of_several_sessions_in_one_step(
    driver: Logits, built: tuple[VllmBackend, float]
) -> None:
    """Each with a length of its own, one of them twice."""
    histories = {name: grow(driver, name) for name in ("a", "b", "c")}
    drops = (Drop("a", 0, BLOCK), Drop("b", 64, 192), Drop("c", 32, 64), Drop("c", 64, 128))
    driver.step(drops=drops)
    for drop in drops:
        del histories[drop.session_id][drop.start : drop.stop]
    for name, history in histories.items():
        live = driver.rows(name, spread(5, 7), 2)
        fresh = driver.rows(f"fresh {name}", history + spread(5, 7), 2)
        assert difference(live, fresh) < built[1], name


def test_shared_blocks_are_copied_before_they_move(
    driver: Logits, built: tuple[VllmBackend, float]
) -> None:
    """Two sessions with the same history share its blocks; a drop in one is exact and leaves the other exact."""
    history = spread(230, 3)
    driver.decode("a", history)
    driver.decode("b", history)
    held = driver.backend.snapshot().held_blocks
    assert held < 2 * 8, "nothing was shared"
    driver.step(drops=(Drop("a", BLOCK, 2 * BLOCK),))
    sampled = driver.decode("c", history)
    short = [*history[:BLOCK], *history[2 * BLOCK :], *sampled]
    assert difference(driver.rows("a", [5], 3), driver.rows("d", [*short, 5], 3)) < built[1]
    assert (
        difference(driver.rows("b", [5], 3), driver.rows("e", [*history, *sampled, 5], 3))
        < built[1]
    )


@pytest.mark.parametrize("keep", [20, 96, 101, 275])
def test_a_rewind_equals_a_fresh_prefill(
    driver: Logits, built: tuple[VllmBackend, float], keep: int
) -> None:
    """Cut inside a block, at one's edge, within appended and within sampled tokens."""
    history = grow(driver, "live")
    live = driver.rows("live", spread(10, 98), 4, keep_tokens=keep)
    fresh = driver.rows("fresh", history[:keep] + spread(10, 98), 4)
    assert difference(live, fresh) < built[1]


def test_a_rewind_after_a_drop(driver: Logits, built: tuple[VllmBackend, float]) -> None:
    """A moved window can be cut like any other tail."""
    history = grow(driver, "live")
    driver.step(drops=(Drop("live", BLOCK, 4 * BLOCK),))
    del history[BLOCK : 4 * BLOCK]
    live = driver.rows("live", [], 4, keep_tokens=117)
    fresh = driver.rows("fresh", history[:117], 4)
    assert difference(live, fresh) < built[1]


def test_unaligned_drops_are_rounded_inward(
    driver: Logits, built: tuple[VllmBackend, float]
) -> None:
    """Only whole blocks within the range go; a range without one changes nothing."""
    history = grow(driver, "live")
    driver.step(drops=(Drop("live", BLOCK - 1, 3 * BLOCK + 5),))
    del history[BLOCK : 3 * BLOCK]
    driver.step(drops=(Drop("live", BLOCK + 1, 3 * BLOCK - 1),))
    live = driver.rows("live", [5], 2)
    fresh = driver.rows("fresh", [*history, 5], 2)
    assert difference(live, fresh) < built[1]
