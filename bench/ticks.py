"""`metronome bench ticks`: does a tick cost more the longer a call lasts?

One call with a model that hears: a second of audio per tick into the resident context, a window that moves, 1,000
ticks; and one with a transcriber, 80 ms per tick. What is timed is the whole engine step, encoder included, in CPU
time, so that neighbours on the machine do not count. A neighbour still slows a core by half, so of each 100 ticks the
quickest tenth is shown. That must not grow, nor what vLLM keeps. The model has random weights and the shape of
`--model` (a folder with config.json and tokenizer.json), or is tiny.
"""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.report import Figure, Report, at_most, parser, progress
from bench.tiny_audio import HEARING, write_voxtral
from engine.models.audio_chat import AudioChatMl
from engine.models.audio_format import AudioFormat
from engine.models.base import AudioChunk, SessionSetup
from engine.models.families import family_of, read_config, windows_of
from engine.models.tekken import Tekken
from engine.models.voxtral import KvSpace, VoxtralRealtime
from engine.speech.mel import StreamingMel
from engine.speech.ports import SPEECH_RATE
from engine.vllm_adapter.backend import VllmBackend
from engine.vllm_adapter.settings import VllmSettings
from engine.work import Append, Drop, TickBatch

TICKS, QUICK_TICKS, STRETCH = 1000, 200, 100
WINDOW, SLACK, BLOCK = 1024, 128, 32
LONGEST = 4096  # tokens of a transcriber's context
LIMIT = 1.5  # times what a tick costs once the window has filled, for the last stretch
_SETTLE = 60  # ticks until the window has moved for the first time


@dataclass
class Listener:
    """A call that only listens, at the level of the backend."""

    backend: VllmBackend
    audio: AudioFormat
    context: int = 0  # tokens, without the one that nobody asked for

    def tick(self, chunk: AudioChunk) -> float:
        """Append a second; seconds of CPU time it took."""
        drops: tuple[Drop, ...] = ()
        if self.context + len(chunk.token_ids) > WINDOW + SLACK:
            gone = (self.context - WINDOW) // BLOCK * BLOCK
            drops = (Drop("call", 0, gone),)
            self.context -= gone
        keep = self.context if self.context else None
        append = Append(
            "call", 0, chunk.token_ids, 1, 0.0, keep_tokens=keep, features=chunk.features
        )
        started = time.process_time()
        self.backend.step(TickBatch((append,), drops))
        while self.backend.busy:
            self.backend.step(TickBatch())
        self.context += len(chunk.token_ids)
        return time.process_time() - started


def measure(folder: Path, ticks: int) -> list[Figure]:
    """The quickest tenth of each stretch of 100 ticks."""
    config = read_config(folder)
    family = family_of(config)
    if family is None or family.format is None:
        raise SystemExit(f"{folder} holds no turn-based model that hears")
    audio = family.format(config, AudioChatMl(folder).control)
    settings = VllmSettings(
        str(folder), "float32", max_model_len=2048, kv_cache_gib=0.1, load_format="dummy"
    )
    backend = VllmBackend(settings)
    call, rng, took = Listener(backend, audio), np.random.default_rng(0), []
    mel = StreamingMel(audio.bins)
    for _ in range(ticks):
        mel.push((0.1 * rng.standard_normal(SPEECH_RATE)).astype(np.float32))
        took.append(call.tick(audio.item(mel.take(mel.ready), mel.floor)))
    (session,) = backend._sessions.values()
    held = backend._core.held_features(session.request_id)
    resident = backend.snapshot().resident_tokens
    backend.shutdown()
    return _figures(family.name, [1000 * s for s in took], held, resident)


def measure_transcriber(folder: Path, ticks: int) -> list[Figure]:
    """The same of Voxtral realtime, whose context grows by a token a tick up to `LONGEST`, in windows of its own."""
    space = KvSpace(LONGEST, BLOCK)
    model = VoxtralRealtime("voxtral", Tekken(folder), windows_of(folder), space)
    settings = VllmSettings(
        str(folder), "float32", max_model_len=LONGEST, kv_cache_gib=0.1, load_format="dummy"
    )
    backend = VllmBackend(replace(settings, mistral=True))
    state, context = model.open(SessionSetup(input_rate=SPEECH_RATE)), 0
    sound = (3000 * np.random.default_rng(0).standard_normal(SPEECH_RATE)).astype("<i2")
    took = []
    for tick in range(ticks):
        pcm = np.roll(sound, tick * SPEECH_RATE // 7)[: SPEECH_RATE * 80 // 1000].tobytes()
        (heard,) = model.hear([(state, pcm)])
        chunk = heard.chunk
        if chunk is None:
            continue
        keep = 0 if chunk.replaces is None else context - chunk.replaces
        append = Append(
            "call", 0, chunk.token_ids, 1, 0.0, keep_tokens=keep, features=chunk.features
        )
        started = time.process_time()
        (written,) = backend.step(TickBatch((append,))).chunks
        took.append(time.process_time() - started)
        model.decode(state, written.token_ids)
        context = written.context_tokens
    (session,) = backend._sessions.values()
    held = backend._core.held_features(session.request_id)
    blocks = backend.snapshot().held_blocks
    backend.shutdown()
    name = "Voxtral realtime"
    return [
        *_stretches(name, [1000 * s for s in took]),
        at_most(f"{name}: features vLLM keeps", held, "", 1),
        at_most(f"{name}: blocks held", blocks, "", model.spec.blocks_per_session),
    ]


def _figures(name: str, took: list[float], held: int, resident: int) -> list[Figure]:
    return [
        *_stretches(name, took),
        at_most(f"{name}: features vLLM keeps", held, "", 0),
        at_most(f"{name}: tokens resident", resident, "", WINDOW + SLACK + 1),
    ]


def _stretches(name: str, took: list[float]) -> list[Figure]:
    stretches = [took[i : i + STRETCH] for i in range(0, len(took), STRETCH)]
    quickest = [float(np.percentile(stretch, 10)) for stretch in stretches]
    settled = float(np.percentile(took[_SETTLE : _SETTLE + STRETCH], 10))
    figures = [
        Figure(f"{name}: ticks {i * STRETCH}-{(i + 1) * STRETCH}", round(quick, 2), "ms")
        for i, quick in enumerate(quickest)
    ]
    return [
        *figures,
        at_most(f"{name}: last / settled", round(quickest[-1] / settled, 2), "x", LIMIT),
    ]


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; 1 with --check if a target is missed."""
    command = parser("ticks", "Cost of a tick as a call goes on.")
    command.add_argument("--model", type=Path, metavar="FOLDER", help="shape; default: tiny ones")
    options = command.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ticks = QUICK_TICKS if options.quick else TICKS
    report = Report("ticks", argv)
    with tempfile.TemporaryDirectory() as scratch:
        folders = [options.model]
        if options.model is None:
            folders = [write(Path(scratch) / name) for name, write in HEARING.items()]
        for folder in folders:
            progress(folder.name)
            report.add(*measure(folder, ticks))
        if options.model is None:
            progress("voxtral")
            report.add(*measure_transcriber(write_voxtral(Path(scratch) / "voxtral"), ticks))
    report.publish(options.json)
    return 1 if options.check and report.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
