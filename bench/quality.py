"""`metronome bench quality`: what a bounded context costs a real model in understanding.

SmolLM2-135M reads a long English text on the real engine, once under each KV policy, and every token is scored where it
stands: after the chat header, token by token in the order of the text, dropped and renumbered as in a call. Compared
are the same tokens everywhere. Then it is asked about instructions that its header gave it long ago.
"""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.kv_backend import quiet
from bench.kv_output import NoPlot, check_plot, draw, kv_parser, write_csv
from bench.kv_stats import perplexity
from bench.quality_instructions import INSTRUCTIONS, PERSONA, Examiner
from bench.quality_reader import Reader, ReadingFailed, SeenBackend
from bench.quality_text import long_text
from bench.report import Figure, Report, at_least, at_most, progress
from engine.backend import EngineUnavailable
from engine.kv_policy import KvPolicy
from engine.models.base import Message
from engine.models.chatml import ChatMl
from engine.vllm_adapter.environment import prepare_environment
from engine.vllm_adapter.settings import VllmSettings
from engine.weights import EmbeddedFiles, embedded_dir, verify_embedded
from engine.work import TickBatch

MAX_RATIO = 1.10  # of perplexity, anchored over unbounded
TRAINED = 8192  # longest context the model was trained for, tokens
_MARGIN = 64  # tokens kept free of it for the header
_BIN = 256  # tokens per point of the plot


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to hold the context. Tokens."""

    policy: KvPolicy
    sink: int = 0  # of the text itself, kept with the header

    @property
    def name(self) -> str:
        policy = self.policy
        if policy.name == "unbounded":
            return policy.name
        if policy.name == "sliding":
            return f"sliding {policy.window_tokens}"
        extra = f", sink +{self.sink}" if self.sink else ""
        return f"anchored {policy.window_tokens}+{policy.slack_tokens}{extra}"

    @property
    def full_at(self) -> int:
        """Tokens of text from which on the window has moved."""
        return self.sink + self.policy.total_tokens if self.policy.name != "unbounded" else 0


def anchored(window: int, slack: int, sink: int = 0) -> Setting:
    return Setting(KvPolicy("anchored", window, slack), sink)


def sliding(window: int) -> Setting:
    return Setting(KvPolicy("sliding", window))


UNBOUNDED = Setting(KvPolicy("unbounded"))
DEFAULT = Setting(KvPolicy())  # what a deployment has that sets nothing
DEFAULT_SLIDING = sliding(DEFAULT.policy.window_tokens)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is read."""

    settings: tuple[Setting, ...]  # beside unbounded
    starts: tuple[int, ...]  # of the passages, tokens into the text
    tokens: int  # of each passage
    book: int  # tokens between an instruction and its question


QUICK = Effort((DEFAULT, anchored(512, 256), DEFAULT_SLIDING, sliding(512)), (0,), 3072, 2560)
FULL = Effort(
    (
        DEFAULT, anchored(1024, 512), anchored(512, 128), anchored(512, 256),
        anchored(512, 256, sink=96), anchored(512, 256, sink=224), anchored(256, 128),
        DEFAULT_SLIDING, sliding(512),
    ),
    (0, 40_000),
    TRAINED - _MARGIN,
    5120,
)  # fmt: skip
EXAM = anchored(256, 128)  # small, so that the window passes the instruction many times
EXAM_SLIDING = sliding(256)


@dataclass(slots=True)
class Findings:
    """Everything that was measured. Nats."""

    # setting -> passage -> log-probability of each token, None where it is part of the sink
    reading: dict[str, list[list[float | None]]] = field(default_factory=dict)
    # setting -> seconds in drops over seconds in all steps, 32 tokens each
    shift_share: dict[str, float] = field(default_factory=dict)
    # who -> log-probability of the obedient answer to each of INSTRUCTIONS
    obeyed: dict[str, list[float]] = field(default_factory=dict)


class Bench:
    """Reads and asks, on one engine after the other."""

    def __init__(self, folder: Path, effort: Effort) -> None:
        self._folder, self._effort = folder, effort
        self._chat = ChatMl(folder, PERSONA)
        self._text = self._chat.message(Message("user", long_text()))
        close = self._text[-2:]  # the end of the turn and a line break
        self._examiner = Examiner(self._chat, (*self._text[: effort.book], *close))
        self.findings = Findings()

    def run(self) -> Findings:
        """All of it.

        Raises:
            EngineUnavailable, ReadingFailed: an engine is missing or broke.
        """
        settings = dict.fromkeys((UNBOUNDED, *self._effort.settings))  # each once, in order
        backend = self._engine(None)
        for setting in settings:
            if setting.policy.name != "sliding":
                self._read(backend, setting)
        self._ask(backend, "never told", UNBOUNDED, told=False)
        self._ask(backend, "unbounded", UNBOUNDED, told=True)
        self._ask(backend, "anchored", EXAM, told=True)
        backend.shutdown()
        windows = {s.policy.window_tokens: s for s in settings if s.policy.name == "sliding"}
        for window in sorted({*windows, EXAM_SLIDING.policy.window_tokens}):
            backend = self._engine(window)
            if window in windows:
                self._read(backend, windows[window])
            if window == EXAM_SLIDING.policy.window_tokens:
                self._ask(backend, "sliding", EXAM_SLIDING, told=True)
            backend.shutdown()
        return self.findings

    def _engine(self, sliding_window: int | None) -> SeenBackend:
        return SeenBackend(
            VllmSettings(
                str(self._folder),
                max_model_len=TRAINED,
                max_num_seqs=4,
                kv_cache_gib=0.5,
                prefix_caching=False,  # every token must be computed to be seen
                sliding_window=sliding_window,
            )
        )

    def _read(self, backend: SeenBackend, setting: Setting) -> None:
        passages = self.findings.reading.setdefault(setting.name, [])
        for start in self._effort.starts:
            tokens = self._text[start : start + self._effort.tokens]
            header = (*self._chat.header(""), *tokens[: setting.sink])
            reader = Reader(backend, f"{setting.name} at {start}", setting.policy, header)
            scores = reader.read(tokens[setting.sink :])
            passages.append([*([None] * setting.sink), *scores])
            backend.step(TickBatch(closes=(reader.name,)))
            self.findings.shift_share[setting.name] = reader.shift_s / reader.engine_s
            progress(
                f"{setting.name}: perplexity {perplexity(scores):.2f}, {reader.dropped} dropped"
            )

    def _ask(self, backend: SeenBackend, who: str, setting: Setting, *, told: bool) -> None:
        scores = [
            self._examiner.ask(backend, setting.policy, instruction, told=told)
            for instruction in INSTRUCTIONS
        ]
        self.findings.obeyed[who] = scores
        progress(f"instructions, {who}: {', '.join(f'{score:.1f}' for score in scores)} nats")


def figures(found: Findings, effort: Effort) -> list[Figure]:
    """The figures of the report."""
    since = max(setting.full_at for setting in effort.settings)
    past = {
        name: perplexity([s for passage in passages for s in passage[since:] if s is not None])
        for name, passages in found.reading.items()
    }
    whole = past[UNBOUNDED.name]
    listed = [
        Figure("passages", len(effort.starts)),
        Figure(
            "tokens compared, each past every window", (effort.tokens - since) * len(effort.starts)
        ),
        Figure("unbounded: perplexity", round(whole, 3)),
    ]
    listed += [
        Figure(
            f"{setting.name}: perplexity over unbounded", round(past[setting.name] / whole, 4), "x"
        )
        for setting in effort.settings
    ]
    return [
        *listed,
        at_most("anchored_over_unbounded", round(past[DEFAULT.name] / whole, 4), "x", MAX_RATIO),
        Figure("sliding_over_unbounded", round(past[DEFAULT_SLIDING.name] / whole, 4), "x"),
        Figure(
            f"{DEFAULT.name}: drops, share of step time",
            round(found.shift_share[DEFAULT.name], 4),
        ),
        *_obedience(found.obeyed, effort),
    ]


def _obedience(obeyed: dict[str, list[float]], effort: Effort) -> list[Figure]:
    """How much likelier the obedient answer is than without the instruction, averaged over INSTRUCTIONS."""
    never = obeyed["never told"]
    passed = effort.book / EXAM.policy.window_tokens
    gains = {
        who: statistics.fmean(got - without for got, without in zip(scores, never, strict=True))
        for who, scores in obeyed.items()
        if who != "never told"
    }
    return [
        Figure("instructions: windows read since", round(passed, 1)),
        Figure("instructions: answer without them", round(statistics.fmean(never), 2), "nats"),
        Figure("instructions: gain, unbounded", round(gains["unbounded"], 2), "nats"),
        at_least("instructions: gain, anchored", round(gains["anchored"], 2), "nats", 5.0),
        at_most("instructions: gain, sliding", round(gains["sliding"], 2), "nats", 1.0),
    ]


def _publish_data(found: Findings, csv_file: Path | None, plot: Path | None) -> None:
    rows: list[tuple[Any, ...]] = []
    curves = {}
    for name, passages in found.reading.items():
        for number, passage in enumerate(passages):
            rows += [
                (name, number, position, round(score, 4))
                for position, score in enumerate(passage)
                if score is not None
            ]
        curves[name] = _by_position(passages)
    write_csv(csv_file, ("setting", "passage", "position", "logprob"), rows)
    draw(plot, "position in the text, tokens", {"perplexity": curves})


def _by_position(passages: Sequence[Sequence[float | None]]) -> tuple[list[float], list[float]]:
    """Perplexity of the tokens of each bin of positions, all passages together."""
    xs: list[float] = []
    ys: list[float] = []
    for start in range(0, len(passages[0]), _BIN):
        scores = [s for passage in passages for s in passage[start : start + _BIN] if s is not None]
        if scores:
            xs.append(start + _BIN / 2)
            ys.append(perplexity(scores))
    return xs, ys


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; 1 if it could not run, or with --check a target missed."""
    description = "Perplexity and obedience of a real model under each KV policy."
    options = kv_parser("quality", description).parse_args(argv)
    effort = QUICK if options.quick else FULL
    report = Report("quality", argv)
    quiet()
    folder = embedded_dir()
    verify_embedded(folder)
    try:
        check_plot(options.plot)
        prepare_environment(VllmSettings(str(folder)))
        found = Bench(EmbeddedFiles(folder).llm, effort).run()
    except (EngineUnavailable, ReadingFailed, NoPlot) as error:
        print(f"bench quality: {error}", file=sys.stderr)
        return 1
    report.add(*figures(found, effort))
    report.publish(options.json)
    _publish_data(found, options.csv, options.plot)
    return 1 if options.check and report.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
