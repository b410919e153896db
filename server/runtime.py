"""The server, composed and run.

    build(config)          parts out of the configuration, in the order they need each other
    Runtime.serve(socket)  engine, front end, warm-up and drain as tasks of one group, until asked to exit

Ending, in this order: the door closes, calls drain, uvicorn closes its sockets, the step in flight finishes, the
backend is freed and its threads are joined.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from secrets import token_bytes

import uvicorn

from admission.port import AdmissionPort
from admission.waiting import WaitingLine
from engine.backend import EngineDead
from engine.clock import Clock, LoopClock
from engine.engine import Engine
from protocol.ids import IdFactory
from server.admitting import Deployment, open_door
from server.app import App, Surface
from server.assembly import build_engine, plateau_blocks, session_defaults, turn_budget_s
from server.auth import KeyRing
from server.client_secrets import ClientSecrets, SecretDesk
from server.config import Config, ConfigError, api_keys, environment, set_thread_environment
from server.connection import Limits, Machine
from server.dials import Readings
from server.draining import DrainingServer, handshake_protocol
from server.gatekeeper import Ears, Gatekeeper
from server.health import Health, Phase
from server.lifeline import Lifeline
from server.listening import addresses
from server.metrics import Metrics
from server.readiness import Readiness
from server.realtime import DoorPolicy, RealtimeDoor
from server.reload import Reload
from server.waiting_room import WaitingRoom
from server.warmup import Muted
from server.websocket import CallSocket

_log = logging.getLogger(__name__)
# What a person who started the server must see at any log level.
_announce = logging.getLogger("metronome")

_LAG_PERIOD_S = 0.1
_CLOSE_SOCKETS_S = 5  # for uvicorn, once all calls have ended


@dataclass(frozen=True, slots=True)
class Parts:
    """What a runtime is made of."""

    config: Config
    clock: Clock
    engine: Engine
    observer: Muted
    metrics: Metrics
    admission: AdmissionPort
    keeper: Gatekeeper | None  # of an admission that learns
    door: RealtimeDoor
    app: App
    health: Health
    reload: Reload
    plateau_blocks: int  # KV blocks that one session holds at most; 0: no plateau


async def build(config: Config, read: Callable[[], Config] | None = None) -> "Runtime":
    """A runtime whose engine has started: nothing is served yet. `read`: the configuration as it is now, for SIGHUP.

    Raises:
        ConfigError, WeightsError, SpeechUnavailable, EngineUnavailable: as the parts do.
    """
    set_thread_environment(config.engine.vllm.threads)
    clock = LoopClock()
    metrics = Metrics(config.model.public_name, config.model.tick_ms / 1000)
    ears = Ears(metrics)
    observer = Muted(ears)
    _announce.info("loading %s", config.model.public_name)
    engine, executor = build_engine(config, clock, observer)
    _announce.info("starting the engine")
    kv = await engine.start()
    spec, ring, health = engine.model.spec, KeyRing(api_keys(config, environment())), Health()
    try:
        admission, keeper = await open_door(Deployment(config, engine, executor, kv, clock), ears)
    except (ConfigError, EngineDead):
        await engine.stop()
        raise
    line = WaitingLine(admission, config.admission.wait_s, config.admission.waiting_places)
    room = WaitingRoom(line, clock, metrics)
    limits = Limits(outbox_s=config.server.outbox_s, max_session_s=config.server.max_session_s)
    secrets = ClientSecrets(token_bytes(32))
    defaults = session_defaults(config, spec)
    policy = DoorPolicy(
        paths=config.server.paths,
        ring=ring,
        allowed_origins=config.server.allowed_origins,
        model=spec.id,
        tick_s=spec.tick_ms / 1000,
        defaults=defaults,
        secrets=secrets,
    )
    door = RealtimeDoor(policy, Machine(engine, clock, metrics, limits), room, _unix_now)
    surface = Surface(
        spec=spec,
        ring=ring,
        health=health,
        admission=room,
        metrics=metrics,
        created=int(_unix_now()),
        desk=SecretDesk(secrets, spec.id, defaults, IdFactory()),
        clock=clock,
        unix_now=_unix_now,
        allowed_origins=config.server.allowed_origins,
        keeper=keeper,
        room=room,
    )
    app = App(surface, door)
    learning = None if keeper is None else keeper.controller
    return Runtime(
        Parts(
            config=config,
            clock=clock,
            engine=engine,
            observer=observer,
            metrics=metrics,
            admission=room,
            keeper=keeper,
            door=door,
            app=app,
            health=health,
            reload=Reload(read or (lambda: config), config, ring, learning),
            plateau_blocks=plateau_blocks(config, engine.model, kv),
        )
    )


def _unix_now() -> float:
    """Wall-clock time, for what clients are told; nothing is ever measured with it."""
    return datetime.now(UTC).timestamp()


class Runtime:
    """One deployment in this process. Implements `server.metrics.Gauges`."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._exit = asyncio.Event()
        engine, health, clock = parts.engine, parts.health, parts.clock
        self._lifeline = Lifeline(
            engine, parts.admission, health, clock, parts.config.engine.on_death
        )
        self._readiness = Readiness(
            engine,
            clock,
            health,
            parts.admission,
            parts.observer,
            self._lifeline,
            parts.config.model.voice,
            turn_budget_s(parts.config, engine.model.spec),
        )
        # Set once the server has listened and warmed up, in budget or not.
        self.warm = self._readiness.warm
        parts.metrics.gauges = self

    def request_exit(self) -> None:
        """Drain, then return from `serve`."""
        self._exit.set()

    def readings(self) -> Readings:
        """The machine's dials, for a scrape."""
        engine, admission, keeper = self.parts.engine, self.parts.admission, self.parts.keeper
        return Readings(
            sessions=admission.active,
            limit=admission.limit,
            kv=engine.snapshot().kv,
            engine_up=engine.alive,
            engine_stalled=engine.stalled,
            draining=self.parts.health.phase is Phase.DRAINING,
            lag=engine.lag(),
            wall_s=engine.wall_s,
            reserved_blocks=admission.active * self.parts.plateau_blocks,
            restarts=self._lifeline.restarts,
            faults=engine.faults.counts,
            admission=None if keeper is None else keeper.readings(),
            waiting=len(self.parts.door.room),
        )

    async def serve(self, sock: socket.socket) -> None:
        """Serve on a bound socket until asked to exit by a signal or `request_exit`."""
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            # A signal handler may interrupt the loop anywhere.
            loop.call_soon_threadsafe(self.request_exit)

        server = DrainingServer(uvicorn_config(self.parts.config, self.parts.app), on_signal)
        async with asyncio.TaskGroup() as group:
            engine = group.create_task(self._run_engine())
            helpers = [
                group.create_task(self._watch_lag()),
                group.create_task(self._warm_up(server)),
                group.create_task(self._announce(sock.getsockname()[1])),
                group.create_task(self._exit_when_asked(server)),
                group.create_task(self.parts.door.room.run()),
            ]
            if self.parts.keeper is not None:
                helpers.append(group.create_task(self.parts.keeper.run()))
            await server.serve(sockets=[sock])
            for helper in helpers:
                helper.cancel()
            self._lifeline.request_stop()
            await engine
        await self.parts.engine.stop()

    async def _run_engine(self) -> None:
        await self._lifeline.run()
        if self.parts.health.phase is Phase.DEAD:
            self.request_exit()

    async def _watch_lag(self) -> None:
        """How late a timer fires is how late every frame is."""
        clock, due = self.parts.clock, self.parts.clock.now()
        while True:
            due += _LAG_PERIOD_S
            await clock.sleep_until(due)
            now = clock.now()
            self.parts.metrics.loop_lag(max(0.0, now - due))
            self.parts.health.stalled = self.parts.engine.stalled
            due = max(
                due, now - _LAG_PERIOD_S
            )  # after a long stall: one observation, not a hundred

    async def _exit_when_asked(self, server: DrainingServer) -> None:
        await self._exit.wait()
        parts = self.parts
        parts.admission.close("draining")
        if parts.health.phase is not Phase.DEAD:
            parts.health.become(Phase.DRAINING, "shutting down")
        await parts.door.calls.drain(parts.config.server.drain_s)
        server.should_exit = True

    async def _warm_up(self, server: DrainingServer) -> None:
        await server.listening.wait()
        await self._readiness.run()

    async def _announce(self, port: int) -> None:
        """Once calls are taken, say where."""
        await self.warm.wait()
        parts, spec = self.parts, self.parts.engine.model.spec
        quality = f"{spec.quality} quality, " if spec.quality else ""
        _announce.info("%s: %sup to %d calls", spec.id, quality, parts.admission.limit)
        call, page = addresses(parts.config.server, port)
        _announce.info("Metronome is listening on %s (open %s in a browser)", call, page)


def uvicorn_config(config: Config, app: App) -> uvicorn.Config:
    """uvicorn, with what was measured for calls (docs on operations)."""
    server = config.server
    return uvicorn.Config(
        app,
        http=handshake_protocol(server.handshake_timeout_s),
        ws=CallSocket,
        ws_max_size=server.ws_max_bytes,
        ws_ping_interval=server.ping_interval_s,
        ws_ping_timeout=server.ping_timeout_s,
        # On, it costs 3 to 12 times the CPU per frame, for a fifth fewer bytes of base64.
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        ssl_certfile=server.ssl_certfile,
        ssl_keyfile=server.ssl_keyfile,
        timeout_graceful_shutdown=_CLOSE_SOCKETS_S,
    )
