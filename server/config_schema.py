"""The shape of a deployment: one frozen dataclass per table of the TOML file, with its limits.

Defaults live here and nowhere else. A field's limits are in its metadata, so that one reader
(`server/config.py`) can check every key, name all problems at once, and print the address of each.
What only holds between keys is checked by `__post_init__`, so that a section built in code is as
safe as one read from a file.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from engine.models.moshi_names import TINY_RANDOM_ID, moshi_location
from server.config_section import Problem, Section, between, shaped

_MIMI_FRAME_MS = 80


@dataclass(frozen=True, slots=True)
class ServerConfig(Section):
    """[server]: the socket, who may use it, and how long things may take."""

    host: str = shaped("127.0.0.1", r"\S+", "an address or host name")
    port: int = between(8000, 0, 65535)  # 0: any free port
    paths: tuple[str, ...] = shaped(
        ("/v1/realtime", "/realtime"), r"/[\w./-]*", "a list of paths that start with '/'"
    )
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    api_keys_file: str | None = None
    allow_anonymous: bool = False
    allowed_origins: tuple[str, ...] = shaped(
        (),
        r"\*|[a-z][a-z0-9+.-]*://[^/\s]+",
        "a list of origins like 'https://example.org', or '*'",
    )
    ws_max_bytes: int = between(25_165_824, 65_536, 268_435_456)
    outbox_s: float = between(30.0, 1.0, 600.0)
    handshake_timeout_s: float = between(10.0, 0.1, 300.0)
    drain_s: float = between(25.0, 0.0, 86_400.0)
    max_session_s: float = between(3600.0, 1.0, 604_800.0)
    history_audio_bytes: int = between(3_000_000, 0, 1_000_000_000)
    ping_interval_s: float = between(20.0, 1.0, 3600.0)
    ping_timeout_s: float = between(60.0, 1.0, 3600.0)

    def pair_problems(self) -> Iterator[Problem]:
        if self.ssl_keyfile and not self.ssl_certfile:
            yield Problem("ssl_keyfile", "needs ssl_certfile as well")
        if self.ssl_certfile and not self.ssl_keyfile:
            yield Problem("ssl_certfile", "needs ssl_keyfile as well")
        if not self.paths:
            yield Problem("paths", "must name at least one path")


_WEIGHTLESS = ("sim", "sim-duplex", TINY_RANDOM_ID)
_LONG_TICK_MS = (
    1000  # beside such a tick, what of a Silero frame waits for the next one does not matter
)

ModelFamily = Literal["cascade", "sim", "sim-duplex", "moshi"]


@dataclass(frozen=True, slots=True)
class ModelConfig(Section):
    """[model]: which model answers, and the parts it is built from."""

    id: str = shaped(
        "embedded", r"\S+", "'embedded', 'sim', 'sim-duplex', 'moshi:…', a folder or a hub id"
    )
    name: str = ""  # what clients see; empty: the id
    llm: str = shaped("embedded:smollm2-135m", r"\S+", "'embedded:…', a folder or a hub id")
    vad: str = shaped("embedded:silero-vad", r"\S+", "'embedded:…' or a folder")
    stt: str = shaped("embedded:moonshine-tiny-en", r"\S+", "'embedded:…' or a folder")
    tts: str = shaped("embedded:hibari", r"\S+", "'embedded:…' or a folder")
    instructions: str = ""  # of a session whose client sends none; empty: the model's own
    voice: str = shaped("heart", r"\S+", "the name of a voice")
    tick_ms: int = between(160, 10, 10_000)
    decode_per_tick: int = between(4, 1, 256)
    image_tokens: int = between(256, 0, 1280)  # of an image, at most, where the model sees
    prefill_per_tick: int = between(2, 1, 4096)  # sim-duplex only: tokens that a tick of audio is

    @property
    def family(self) -> ModelFamily:
        """Which model family `id` belongs to: a folder or hub id is the LLM of a cascade."""
        if self.id == "sim":
            return "sim"
        if moshi_location(self.id) is not None:
            return "moshi"
        return "sim-duplex" if self.id == "sim-duplex" else "cascade"

    @property
    def llm_id(self) -> str:
        """The LLM of a cascade."""
        return self.llm if self.id == "embedded" else self.id

    @property
    def vad_id(self) -> str:
        """The voice activity detector: of a model without weights a simulated one, unless another is named."""
        return self._simulated_unless_named("vad")

    @property
    def stt_id(self) -> str:
        """The transcriber, likewise."""
        return self._simulated_unless_named("stt")

    def _simulated_unless_named(self, part: str) -> str:
        named: str = getattr(self, part)
        return "sim" if self.id in _WEIGHTLESS and named == getattr(ModelConfig(), part) else named

    @property
    def public_name(self) -> str:
        """The name that `/v1/models` and every session show; of a folder, its last part."""
        is_path = self.id.startswith(("/", ".", "~"))
        return self.name or (self.id.rstrip("/").rsplit("/", 1)[-1] if is_path else self.id)

    def pair_problems(self) -> Iterator[Problem]:
        changed = {f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default}
        unused = {"llm"} if self.id not in ("embedded", "sim-duplex") else set()
        unused |= {"tts"} if self.family != "cascade" else set()
        unused |= {"vad", "stt"} if self.family == "sim" else set()
        for key in sorted(changed & unused):
            yield Problem(key, f"has no use with id = {self.id!r}; set one or the other")
        # 80 ms is Voxtral's, beside which turns are found in frames of their own.
        uneven = self.tick_ms % 32 and self.tick_ms < _LONG_TICK_MS and self.tick_ms != 80
        if self.family == "cascade" and self.vad == "embedded:silero-vad" and uneven:
            yield Problem(
                "tick_ms", f"must be a multiple of 32 (one Silero frame), not {self.tick_ms}"
            )
        if self.family == "moshi" and self.tick_ms != _MIMI_FRAME_MS:
            yield Problem(
                "tick_ms", f"must be {_MIMI_FRAME_MS} (one Mimi frame), not {self.tick_ms}"
            )


@dataclass(frozen=True, slots=True)
class VllmConfig(Section):
    """[engine.vllm]: handed to the in-process vLLM engine."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    block_size: int = between(32, 1, 1024)
    max_model_len: int = between(2048, 64, 10_000_000)
    kv_cache_gib: float | None = between(1.0, 0.001, 10_000.0)
    gpu_memory_utilization: float | None = between(None, 0.05, 0.99)
    max_num_batched_tokens: int = between(256, 1, 1_000_000)
    enforce_eager: bool = True
    threads: int = between(1, 0, 1024)  # 0: leave OMP_NUM_THREADS alone
    load_format: Literal["auto", "dummy"] = "auto"  # "dummy": random weights, to measure or test
    trust_remote_code: bool = False  # run Python that comes with the checkpoint

    def pair_problems(self) -> Iterator[Problem]:
        if (self.kv_cache_gib is None) == (self.gpu_memory_utilization is None):
            yield Problem(
                "kv_cache_gib", "set either this or gpu_memory_utilization (0 unsets this)"
            )


@dataclass(frozen=True, slots=True)
class KvConfig(Section):
    """[engine.kv]: what is kept of a call's context."""

    policy: Literal["anchored", "recycle", "unbounded", "sliding"] = "anchored"
    window_tokens: int = between(1024, 16, 10_000_000)
    slack_tokens: int = between(256, 1, 1_000_000)
    header_tokens: int = between(512, 1, 1_000_000)

    def pair_problems(self) -> Iterator[Problem]:
        if self.policy != "unbounded" and self.slack_tokens > self.window_tokens:
            yield Problem("slack_tokens", f"must be at most window_tokens ({self.window_tokens})")


@dataclass(frozen=True, slots=True)
class SimConfig(Section):
    """[engine.sim]: what the simulated engine pretends to cost, and how large its pool is."""

    fixed_s: float = between(0.008, 0.0, 10.0)  # a step costs this …
    session_s: float = between(0.0002, 0.0, 1.0)  # … this for every session in it …
    token_s: float = between(2e-5, 0.0, 1.0)  # … this for every token computed …
    resident_s: float = between(5e-8, 0.0, 0.001)  # … and this for every token read from the cache
    total_blocks: int = between(16_384, 1, 100_000_000)
    block_size: int = between(32, 1, 1024)
    max_context: int = between(32_768, 64, 10_000_000)


@dataclass(frozen=True, slots=True)
class MoshiConfig(Section):
    """[engine.moshi]: the in-process Moshi engine; `engine.max_sessions` is its number of slots."""

    device: str = shaped("cuda", r"cpu|cuda(:\d+)?", "'cpu', 'cuda' or 'cuda:N'")
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    context_frames: int | None = between(None, 1, 1_000_000)
    temperature: float = between(0.8, 0.0, 10.0)
    text_temperature: float = between(0.7, 0.0, 10.0)
    prompted: bool = False  # calls begin with a role and a voice: PersonaPlex
    voices: str | None = None  # folder of voice prompts
    prompt_frames: int = between(16, 1, 4096)
    silence_dbfs: float = between(-55.0, -120.0, 0.0)
    close_after_ms: int = between(640, 80, 60_000)

    def pair_problems(self) -> Iterator[Problem]:
        if self.voices and not self.prompted:
            yield Problem("voices", "has no use without prompted = true")


OnDeath = Literal["exit", "restart"]


@dataclass(frozen=True, slots=True)
class EngineConfig(Section):
    """[engine]: how many calls, and how much of each is held."""

    max_sessions: int = between(8, 1, 100_000)
    pool_threads: int = between(2, 1, 256)
    inbox_s: float = between(120.0, 1.0, 3600.0)
    skip_late_ticks: bool = True  # frame-locked models in a full house
    lead_s: float = between(4.0, 0.1, 60.0)
    max_response_tokens: int = between(256, 1, 100_000)
    out_of_band: int = between(2, 0, 10_000)  # answers beside conversations, all calls together
    on_death: OnDeath = "exit"
    vllm: VllmConfig = field(default_factory=VllmConfig)
    kv: KvConfig = field(default_factory=KvConfig)
    sim: SimConfig = field(default_factory=SimConfig)
    moshi: MoshiConfig = field(default_factory=MoshiConfig)


@dataclass(frozen=True, slots=True)
class AdmissionConfig(Section):
    """[admission]: who may enter, and how carefully."""

    kind: Literal["aimd", "static"] = "aimd"
    calibrate_s: float = between(10.0, 0.0, 3600.0)  # 0: never measure at start
    remember: bool = True  # keep what was learned in the cache folder
    budget_ms: int | None = between(None, 1, 60_000)  # from audio complete to output
    tenant_sessions: int = between(0, 0, 100_000)  # per key at once; 0: no quota
    quotas: tuple[str, ...] = shaped(
        (), r"[^=\s]+=[1-9]\d{0,6}", "a list of entries like 't_0123456789ab=40'"
    )
    premium: tuple[str, ...] = shaped((), r"\S+", "a list of tenants")
    reserved_sessions: int = between(0, 0, 100_000)  # that only premium tenants may take
    wait_s: float = between(0.0, 0.0, 60.0)  # at the door, for a place; 0: refuse at once
    waiting_places: int = between(512, 1, 100_000)  # callers who may wait at a time


@dataclass(frozen=True, slots=True)
class TurnDetectionConfig(Section):
    """[turn_detection]: of a session whose client does not say."""

    enabled: bool = True
    threshold: float = between(0.5, 0.0, 1.0)
    prefix_padding_ms: int = between(300, 0, 5000)
    silence_duration_ms: int = between(500, 50, 10_000)
    idle_timeout_ms: int | None = between(None, 5000, 30_000)  # the range the API documents


@dataclass(frozen=True, slots=True)
class LogConfig(Section):
    """[log]: how much, and for whom."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


@dataclass(frozen=True, slots=True)
class Config(Section):
    """A whole deployment."""

    server: ServerConfig = field(default_factory=ServerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    turn_detection: TurnDetectionConfig = field(default_factory=TurnDetectionConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def pair_problems(self) -> Iterator[Problem]:
        if self.admission.reserved_sessions >= self.engine.max_sessions:
            yield Problem(
                "admission.reserved_sessions",
                f"must be below engine.max_sessions ({self.engine.max_sessions})",
            )
        if self.model.family == "moshi":
            return  # a ring of its own, and no policy
        kv, vllm = self.engine.kv, self.engine.vllm
        simulated = self.model.family != "cascade"
        max_context = self.engine.sim.max_context if simulated else vllm.max_model_len
        where = "engine.sim.max_context" if simulated else "engine.vllm.max_model_len"
        need = kv.window_tokens + kv.slack_tokens
        if kv.policy != "unbounded" and need >= max_context:
            yield Problem(
                "engine.kv.window_tokens",
                f"must leave room for the instructions: window + slack = {need} tokens, "
                f"but {where} = {max_context}",
            )
