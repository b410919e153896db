"""The server under the ramp: a frame-locked model whose ticks a tiny Llama computes, behind one door or the other."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.frontend import as_toml
from bench.server_process import ServerProcess, free_port, metronome

TICK_S = 0.2
PREFILL, DECODE = 10, 5  # tokens per tick: 75 a second
WINDOW, SLACK, HEADER = 768, 128, 32  # tokens: full after 12 s
FILL_S = 14.0
LAYERS = 4
CEILING = 400


def configuration(folder: Path, model: Path, kind: str) -> Path:
    """A deployment on the tiny model behind a door of this kind."""
    table = {
        "model": {
            "id": "sim-duplex",
            "llm": str(model),
            "name": "tiny",
            "vad": "none",  # what is ramped up is the engine
            "stt": "none",
            "tick_ms": round(TICK_S * 1000),
            "prefill_per_tick": PREFILL,
            "decode_per_tick": DECODE,
        },
        "engine": {
            "max_sessions": CEILING,
            "inbox_s": 2.0,
            "vllm": {"max_model_len": 1024, "kv_cache_gib": 1.0, "max_num_batched_tokens": 2048},
            "kv": {"window_tokens": WINDOW, "slack_tokens": SLACK, "header_tokens": HEADER},
        },
        "admission": {"kind": kind, "calibrate_s": 20.0, "remember": False},
        "log": {"level": "warning"},
    }
    path = folder / f"{kind}.toml"
    path.write_text(as_toml(table) + "\n", encoding="utf-8")
    return path


@contextmanager
def serving(folder: Path, model: Path, kind: str) -> Iterator[ServerProcess]:
    """A server of that kind, until the block ends."""
    port = free_port()
    config = str(configuration(folder, model, kind))
    command = metronome("serve", "--config", config, "--port", str(port))
    with ServerProcess(command, port, folder / f"{kind}.log") as process:
        process.wait_ready(progress=lambda waited_s, note: None)
        yield process
