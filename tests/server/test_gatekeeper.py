"""The admission controller among the server's parts: what it hears, keeps, measures, and says on the wire."""

import asyncio
import json
import logging
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.doors import nobody_waits
from support.fake_asgi import FakeSocket
from support.sim_engine import cascade, duplex, running

from admission.controller import Controller
from admission.learned import Learned
from admission.port import Lease, Rejection, Request
from admission.settings import AdmissionSettings, Quotas, SessionShape
from engine.clock import LoopClock
from engine.executor import SimExecutor
from engine.observer import NullObserver, StepStats, TickStats
from engine.sim_backend import SimBackend, SimCost
from engine.virtual_time import run_virtual
from engine.work import KvSnapshot, StepResult, TickBatch
from protocol.ids import IdFactory
from protocol.session_config import SessionDefaults
from server.admitting import cores, known_law, quotas_of, settings_of, state_key
from server.app import Surface, build_http
from server.auth import KeyRing, tenant_of
from server.calibrate import Bench, CalibrationFailed, Effort, TickShape, calibrate
from server.client_secrets import ClientSecrets, SecretDesk
from server.config import AdmissionConfig, Config, default_config_path, load_config
from server.connection import Limits, Machine
from server.dials import Readings
from server.gatekeeper import Ears, Gatekeeper, Memory
from server.health import Health
from server.metrics import Metrics
from server.realtime import DoorPolicy, RealtimeDoor

SHAPE = SessionShape(0.08, 0.08, 1, 1024, 30, 32)
KV = KvSnapshot(32, 10_000, 9_000, 32_000, 10)


def _controller(**changes: Any) -> Controller:
    return Controller(AdmissionSettings(SHAPE, 64, **changes))


# -- ears -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "measured", "total", "missed", "endless"),
    [
        ("on_time", True, 1, 0, False),
        ("late", True, 1, 1, False),
        ("late", False, 1, 1, True),
        ("empty", True, 1, 1, True),
        ("dropped", False, 1, 1, True),
        ("on_time", False, 0, 0, False),  # the beat's verdict on speech: in time, but no latency
    ],
)
def test_a_tick_without_output_is_infinitely_late(
    outcome: Any, measured: bool, total: int, missed: int, endless: bool
) -> None:
    """Truth only: late or empty when owed is a miss, and what brought nothing has no finite latency."""
    ears = Ears(NullObserver())
    ears.controller = controller = _controller()
    late_s = 0.04 if outcome == "on_time" else 0.1
    ears.tick(TickStats("frame", outcome, 1.0, 1.0 + late_s, 1.08, measured=measured))
    window = controller.tempo.window.current
    assert (window.total, window.missed) == (total, missed)
    assert (window.quantile(0.5) == inf) == endless


def test_latency_is_a_share_of_the_ticks_own_budget() -> None:
    """Half of eighty milliseconds is as far as half of a second."""
    ears = Ears(NullObserver())
    ears.controller = controller = _controller()
    ears.tick(TickStats("frame", "on_time", 1.0, 1.04, 1.08))
    ears.tick(TickStats("frame", "on_time", 1.0, 1.5, 2.0))
    assert controller.tempo.window.current.mean == pytest.approx(0.5)


def test_steps_reach_the_cost_model_with_the_host_time_around_them() -> None:
    """What a session waits for is both."""
    ears = Ears(NullObserver())
    ears.controller = controller = _controller()
    for _ in range(10):
        ears.step(StepStats(5, 0.01, 0.005, 0.0, KV))
    controller.tempo.outlook.cost.fit((10, 32_000), 0.5)
    assert controller.tempo.outlook.cost.median_s == pytest.approx(0.015)


# -- memory ------------------------------------------------------------------------


def _state(key: str = "k") -> Learned:
    controller = _controller()
    for n in (1, 4, 16):
        for _ in range(20):
            controller.observe_step(n, 0.004 + 0.001 * n, n, n * 1024.0)
        controller.tempo.outlook.cost.fit((n, n * 1024.0), 0.0)
    return controller.learned(key)


def test_a_state_is_kept_per_key(tmp_path: Path) -> None:
    """And found by nobody else."""
    memory = Memory(tmp_path, "k")
    assert memory.load() is None
    memory.save(_state())
    assert memory.load() == _state()
    assert Memory(tmp_path, "other").load() is None


def test_a_broken_file_is_a_cold_start(tmp_path: Path) -> None:
    """Neither garbage nor a folder in its place stops the server."""
    memory = Memory(tmp_path, "k")
    memory.path.parent.mkdir(parents=True)
    memory.path.write_bytes(b"\xff\xfe{")
    assert memory.load() is None


def test_a_cache_that_cannot_be_written_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Serving goes on."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way", encoding="utf-8")
    memory = Memory(blocked, "k")
    for _ in range(3):
        memory.save(_state())
    assert len([r for r in caplog.records if "cannot be kept" in r.message]) == 1


def test_what_was_learned_survives_the_keeper(tmp_path: Path) -> None:
    """It is saved when the server goes down."""

    async def main() -> None:
        async with running(duplex()) as (engine, _, _backend):
            controller = Controller(AdmissionSettings(SHAPE, 64), _state())
            memory = Memory(tmp_path, "k")
            keeper = Gatekeeper(controller, engine, LoopClock(), memory)
            task = asyncio.create_task(keeper.run())
            await asyncio.sleep(3)
            assert memory.load() is None
            task.cancel()
            await asyncio.wait([task])
            assert memory.load() is not None

    run_virtual(main())


# -- what it is told ------------------------------------------------------------------


def test_quotas_come_from_the_configuration() -> None:
    """A default, exceptions, and who is premium."""
    config = Config(
        admission=AdmissionConfig(
            tenant_sessions=3, quotas=("t_a=40",), premium=("t_b",), reserved_sessions=2
        )
    )
    quotas = quotas_of(config)
    assert (quotas.of("t_a"), quotas.of("t_c")) == (40, 3)
    assert (quotas.premium, quotas.reserved) == (frozenset({"t_b"}), 2)


def test_a_frame_locked_model_is_paced_and_a_turn_based_one_is_not() -> None:
    """Only where ticks are made of steps does their latency follow from the engine's."""
    config = load_config(default_config_path("sim"))
    kv = KvSnapshot(32, 65_536, 65_536, 0, 0)
    paced = settings_of(config, replace(duplex().spec, prefill_per_tick=2), kv, 512, 40)
    assert paced.paced
    assert paced.shape.plateau_tokens == 1280
    assert paced.shape.fill_s == pytest.approx(1280 / 3 * 0.08, rel=0.01)
    assert paced.shape.full_share == 1
    settled = settings_of(config, replace(duplex().spec, prefill_per_tick=2), kv, 512, 40, 1000)
    assert (settled.shape.plateau_tokens, settled.shape.plateau_blocks) == (1000, 40)
    assert settled.shape.fill_s == pytest.approx(1000 / 3 * 0.08, rel=0.01)
    assert settled.shape.full_share == 0.9
    extent = settings_of(config, replace(duplex().spec, prefill_per_tick=2), kv, 512, 40, 1280)
    assert extent.shape.full_share == 1
    spoken = settings_of(config, cascade().spec, kv, 512, 40)
    assert not spoken.paced
    assert Controller(spoken).limit == 512


def test_a_model_that_hears_all_needs_more_to_spare() -> None:
    """Whether late ticks are left out is known to the door."""
    kv = KvSnapshot(32, 65_536, 65_536, 0, 0)
    config = load_config(default_config_path("sim"))
    patient = replace(config, engine=replace(config.engine, skip_late_ticks=False))
    spec = replace(duplex().spec, prefill_per_tick=2)
    assert settings_of(config, spec, kv, 512, 40).skips_late
    assert not settings_of(patient, spec, kv, 512, 40).skips_late
    assert not settings_of(config, replace(spec, transcribes=True), kv, 512, 40).skips_late


def test_the_key_of_a_state_names_model_device_engine_and_window() -> None:
    """Any other of them is another machine."""
    config = load_config(None, {"model.id": "sim"})
    slow = load_config(None, {"model.id": "sim", "engine.sim.fixed_s": 0.05})
    keys = {
        state_key(config, duplex().spec, SHAPE),
        state_key(slow, duplex().spec, SHAPE),  # a simulated engine is the law it is given
        state_key(config, duplex(160).spec, replace(SHAPE, tick_s=0.16)),
        state_key(config, replace(duplex().spec, id="other"), SHAPE),
        state_key(config, duplex().spec, replace(SHAPE, plateau_tokens=2048)),
    }
    assert len(keys) == 5
    assert cores() >= 1


def test_a_simulated_engine_needs_no_measuring() -> None:
    """Its law is in the configuration; the state says how many sessions that law carries."""
    config = load_config(default_config_path("tml-200ms"))
    kv = KvSnapshot(32, 65_536, 65_536, 0, 0)
    spec = replace(duplex(200).spec, prefill_per_tick=5, decode_per_tick=5)
    settings = settings_of(config, spec, kv, 256, 160)
    state = known_law(config, settings, "k")
    sim = config.engine.sim
    per_session = sim.session_s + 2 * sim.token_s + sim.resident_s * settings.shape.plateau_tokens
    crowded = (0.2 / 5 - sim.fixed_s) / per_session
    assert 0.6 * crowded < state.served < crowded
    controller = Controller(settings, state)
    assert controller.limit == int(state.served)


# -- measuring ---------------------------------------------------------------------------


def _measured(cost: SimCost, effort: Effort, **shape: Any) -> tuple[Learned, SimBackend]:
    async def main() -> tuple[Learned, SimBackend]:
        backend, clock = SimBackend(cost, total_blocks=4000), LoopClock()
        executor = SimExecutor(backend, clock)
        await executor.start()
        settings = AdmissionSettings(replace(SHAPE, **shape), 100, pool_blocks=4000, paced=True)
        tick = TickShape(64, 2, int(settings.shape.steps_per_tick))
        bench = Bench(executor, clock, tick, settings.shape.tick_s)
        return await calibrate(bench, settings, effort, "k"), backend

    return run_virtual(main())


COST = SimCost(fixed_s=0.01, session_s=5e-4, token_s=1e-5, resident_s=5e-7)


def test_the_engine_is_measured_at_full_window() -> None:
    """The law it is found to have is its own, and what it is found to carry is nearly what it does."""
    state, backend = _measured(COST, Effort(600, soaks=True), steps_per_tick=2)
    controller = Controller(AdmissionSettings(replace(SHAPE, steps_per_tick=2), 100), state)
    per_session = 5e-4 + 1e-5 * 2 + 5e-7 * 1024
    crowded = (0.08 / 2 - 0.01) / per_session
    assert 0.7 * crowded < controller.tempo.outlook.capacity < crowded
    assert 0.6 * crowded < state.served < crowded
    assert backend.snapshot().sessions == 0


def test_steps_that_were_timed_are_no_load_that_was_served() -> None:
    """Without fleets served for a while there is a law and no evidence: the door starts below what the law allows."""
    state, _ = _measured(COST, Effort(600, soaks=False), steps_per_tick=2)
    assert (state.served, state.proven) == (0, 0)
    controller = Controller(AdmissionSettings(replace(SHAPE, steps_per_tick=2), 100), state)
    allowed = controller.tempo.outlook.capacity
    assert controller.tempo.shown == pytest.approx(controller.settings.temper.trust * allowed)


def test_every_session_is_in_every_step_of_a_probe() -> None:
    """Begun one group per step, as calls are that know nothing of each other: each step reads for some of them."""

    async def main() -> tuple[list[float], list[int]]:
        backend, clock = SimBackend(COST, total_blocks=4000), LoopClock()
        executor, started = SimExecutor(backend, clock), list[int]()
        await executor.start()
        bench = Bench(executor, clock, TickShape(64, 2, 3), 0.08)
        await bench.grow(6, 100)
        step = executor.step

        async def counted(batch: TickBatch) -> StepResult:
            started.append(len(batch.appends))
            return await step(batch)

        executor.step = counted  # type: ignore[method-assign]
        return await bench.crowded_s(6, 4), started

    seconds, started = run_virtual(main())
    assert len(seconds) == 4
    assert started[:15] == [2] * 15
    assert set(started[15:]) == {0}
    step_s = 0.01 + 6 * 5e-4 + (6 + 2 * 2) * 1e-5 + 6 * 100 * 5e-7
    assert seconds == pytest.approx([3 * step_s] * 4, rel=0.03)


def test_sessions_at_full_window_grow_and_are_cut_back_as_calls_are() -> None:
    """By their slack, each at its own moment; in the mean they hold what was asked for, and none of them more."""

    async def main() -> list[KvSnapshot]:
        backend, clock = SimBackend(COST, total_blocks=4000), LoopClock()
        executor = SimExecutor(backend, clock)
        await executor.start()
        bench = Bench(executor, clock, TickShape(64, 5, 3, slack=64, block=16), 0.08)
        await bench.grow(20, 400)
        seen = list[KvSnapshot]()
        for _ in range(20):
            await bench.crowded_s(20, 1)
            seen.append(backend.snapshot())
        return seen

    seen = run_virtual(main())
    held = [kv.resident_tokens / 20 for kv in seen]
    assert sum(held) / len(held) == pytest.approx(400, abs=12)
    assert max(held) - min(held) < 64  # not all at once
    assert max(kv.held_blocks for kv in seen) <= 20 * (-(-(400 + 32 + 8) // 16) + 1)


def test_measuring_takes_no_longer_than_it_may() -> None:
    """What is known by then is what there is."""
    state, backend = _measured(COST, Effort(3.0, soaks=True))
    assert state.calibrated
    assert backend.snapshot().sessions == 0


def test_a_backend_that_refuses_a_probe_ends_the_measuring() -> None:
    """Its own words are in the error, and nothing is left behind."""

    async def main() -> None:
        clock = LoopClock()
        backend = SimBackend(COST, total_blocks=4000, max_context=500)
        executor = SimExecutor(backend, clock)
        await executor.start()
        settings = AdmissionSettings(SHAPE, 10, pool_blocks=4000)
        bench = Bench(executor, clock, TickShape(64, 2, 1), SHAPE.tick_s)
        with pytest.raises(CalibrationFailed, match="would pass 500 tokens"):
            await calibrate(bench, settings, Effort(600, soaks=False), "k")
        assert backend.snapshot().sessions == 0

    run_virtual(main())


# -- on the wire -------------------------------------------------------------------------


def _scope(key: str) -> dict[str, Any]:
    return {
        "type": "websocket",
        "path": "/v1/realtime",
        "query_string": b"model=sim",
        "headers": [(b"authorization", f"Bearer {key}".encode())],
        "extensions": {"websocket.http.response": {}},
    }


def test_a_tenant_over_its_quota_is_told_429(caplog: pytest.LogCaptureFixture) -> None:
    """With Retry-After and the code that clients know; the decision is one line in the log."""
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with running(cascade()) as (engine, _, _backend):
            quotas = Quotas(by_tenant={tenant_of("sk-1"): 1})
            controller = _controller(paced=False, quotas=quotas)
            held = controller.try_admit(0.0, Request(tenant_of("sk-1"), 0.16))
            assert isinstance(held, Lease)
            policy = DoorPolicy(
                ("/v1/realtime",),
                KeyRing(["sk-1"]),
                (),
                "sim",
                0.16,
                SessionDefaults(),
                ClientSecrets(b"k"),
            )
            machine = Machine(engine, LoopClock(), Metrics("sim", 0.16), Limits())
            door = RealtimeDoor(
                policy, machine, nobody_waits(controller, machine.metrics), lambda: 0.0
            )
            socket = FakeSocket()
            socket.knock()
            await door(_scope("sk-1"), socket.receive, socket.send)
            assert socket.response is not None
            assert socket.response["status"] == 429
            assert json.loads(socket.body)["error"]["code"] == "rate_limit_exceeded"
            headers = {name.decode(): value for name, value in socket.response["headers"]}
            assert int(headers["retry-after"]) >= 1

    run_virtual(main())
    (line,) = [r.getMessage() for r in caplog.records if "decision=rejected" in r.getMessage()]
    assert f"tenant={tenant_of('sk-1')}" in line
    assert "reason=quota bound=quota used=2 of=1" in line


def _keeper(controller: Controller) -> Gatekeeper:
    class Idle:
        """An engine that has not stepped."""

        def snapshot(self) -> Any:
            raise AssertionError("nobody asks")

    return Gatekeeper(controller, Idle(), LoopClock(), None)  # type: ignore[arg-type]


def test_debug_admission_says_which_bound_binds() -> None:
    """To whoever has a key."""

    async def main() -> None:
        controller = _controller(pool_blocks=64)
        for _ in range(3):
            controller.try_admit(0.0, Request(tick_s=0.08))
        surface = Surface(
            spec=duplex().spec,
            ring=KeyRing(["sk-1"]),
            health=Health(),
            admission=controller,
            metrics=Metrics("sim", 0.08),
            created=0,
            desk=SecretDesk(ClientSecrets(b"k"), "sim", SessionDefaults(), IdFactory()),
            clock=LoopClock(),
            unix_now=lambda: 0.0,
            keeper=_keeper(controller),
        )
        transport = httpx.ASGITransport(build_http(surface))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get("/debug/admission")).status_code == 401
            key = {"authorization": "Bearer sk-1"}
            found = (await client.get("/debug/admission", headers=key)).json()
            assert (found["active"], found["binding"]) == (1, "kv")
            kv = next(bound for bound in found["bounds"] if bound["name"] == "kv")
            assert (kv["used"], kv["limit"], kv["unit"]) == (32, 60, "blocks")

    asyncio.run(main())


def test_the_dials_of_admission_are_scraped() -> None:
    """Limits by kind, the share of each bound in use, and which one binds."""

    async def main() -> str:
        controller = _controller(pool_blocks=64)
        controller.try_admit(0.0, Request(tick_s=0.08))
        metrics = Metrics("sim", 0.08)

        class Dials:
            def readings(self) -> Readings:
                return Readings(
                    1, 1, None, True, False, False, admission=_keeper(controller).readings()
                )

        metrics.gauges = Dials()
        return metrics.render().decode()

    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(asyncio.run(main()))
        for sample in family.samples
    }
    assert samples["metronome_admission_limit", "effective"] == 1
    assert samples["metronome_admission_limit", "aimd"] == 8
    assert samples["metronome_admission_binding", "kv"] == 1
    assert samples["metronome_admission_binding", "aimd"] == 0
    assert samples["metronome_admission_projected_load", "kv"] == pytest.approx(32 / 60)
    assert samples["metronome_admission_decisions_total", "admitted"] == 1


def test_a_closed_door_that_reopens_lets_people_in_again() -> None:
    """After the engine was restarted; a draining one stays closed."""
    controller = _controller()
    controller.close("engine_down")
    assert isinstance(controller.try_admit(0.0, Request(tick_s=0.08)), Rejection)
    controller.reopen("draining")
    assert controller.closed == "engine_down"
    controller.reopen("engine_down")
    assert isinstance(controller.try_admit(0.0, Request(tick_s=0.08)), Lease)
