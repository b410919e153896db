"""`metronome bench turn-taking`: does listening to the words end turns better than waiting for silence?

Every labelled utterance is followed by silence and heard as a call's audio is: in ticks, by the embedded voice activity
detector and transcriber, through the code that serves calls. What counts is how long after the end of speech the turn
is decided. For a whole utterance that is what the caller waits. For a broken-off one it is a mistake if the caller was
going to go on later than that, so each is judged against pauses of several lengths. Offline: no server, no clock.
"""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.report import Figure, Report, at_least, parser
from bench.scoring import percentile
from bench.turn_samples import TurnSample, samples
from engine.models.base import (
    Eagerness,
    ModelSpec,
    SessionSetup,
    SpeechPaused,
    SpeechStopped,
    TurnDetection,
    Utterance,
)
from engine.models.caller import Caller
from engine.models.cascade import Cascade, CascadeParts
from engine.models.sim import SimChat
from engine.speech.moonshine import MoonshineTranscriber
from engine.speech.ports import SPEECH_RATE, Samples, SpeechUnavailable, Transcriber, VoiceActivity
from engine.speech.silero import SileroVad
from engine.speech.sim import ToneVoice
from engine.weights import EmbeddedFiles, WeightsError, embedded_dir

TICK_MS = 160
THINKING_MS = 150  # from a pause to its words: a tick's wait not counted, about what two cores take
PAUSES_MS = tuple(
    range(300, 1900, 100)
)  # after which somebody who broke off goes on, all as likely
PLAIN_MS = tuple(range(200, 2600, 100))
_SHOWN_MS = (200, 300, 500, 700, 1000, 1500)  # of those; the rest are for comparing
EAGERNESS: tuple[Eagerness, ...] = ("high", "auto", "low")
_BEFORE_MS, _AFTER_MS = 320, 4640  # silence around an utterance: more than any policy waits
_TICK_BYTES = SPEECH_RATE * TICK_MS // 1000 * 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one policy did with each sample: decided so many ms after the end of speech (negative: within it)."""

    policy: str
    decided_ms: dict[TurnSample, float]

    def delays(self, chosen: Sequence[TurnSample]) -> list[float]:
        """Of the whole utterances."""
        return [self.decided_ms[s] for s in chosen if s.complete]

    def cut_in_share(self, chosen: Sequence[TurnSample]) -> float:
        """Share of (broken-off utterance, pause) in which the turn was over before the caller went on."""
        cut = [self.decided_ms[s] < p for s in chosen if not s.complete for p in PAUSES_MS]
        return sum(cut) / len(cut)


class _Tape:
    """`VoiceActivity` that hears once and repeats itself: every policy is played the same audio in the same order."""

    def __init__(self, vad: VoiceActivity) -> None:
        self.state_size = vad.state_size
        self._vad = vad
        self._taped: list[tuple[Samples, Samples]] = []
        self._at = 0

    def rewind(self) -> None:
        self._at = 0

    def probabilities(self, frames: Samples, states: Samples) -> tuple[Samples, Samples]:
        if self._at == len(self._taped):
            self._taped.append(self._vad.probabilities(frames, states))
        self._at += 1
        return self._taped[self._at - 1]


class _Notebook:
    """`Transcriber` that is asked the same question once."""

    def __init__(self, transcriber: Transcriber) -> None:
        self._transcriber = transcriber
        self._known: dict[bytes, str] = {}

    def transcribe(self, samples: Samples) -> str:
        key = samples.tobytes()
        if key not in self._known:
            self._known[key] = self._transcriber.transcribe(samples)
        return self._known[key]


@dataclass(slots=True)
class _Listener:
    """One sample being heard."""

    caller: Caller
    pcm: bytes
    speech_end_ms: float
    decided_ms: float | None = None
    thinking: list[tuple[float, Utterance]] = field(
        default_factory=list
    )  # (words are there at, of what)


class Bench:
    """Plays the samples to a policy."""

    def __init__(self, vad: VoiceActivity, transcriber: Transcriber) -> None:
        self._tape = _Tape(vad)
        spec = ModelSpec("turns", TICK_MS, SPEECH_RATE, ToneVoice.rate, 1, decides_turns=False)
        parts = CascadeParts(self._tape, _Notebook(transcriber), SimChat(), ToneVoice())
        self._model = Cascade(spec, parts)

    def play(self, policy: str, detection: TurnDetection, chosen: Sequence[TurnSample]) -> Outcome:
        """Every sample, all at once, to the first end of turn in the silence after it."""
        self._tape.rewind()
        setup = SessionSetup(turn_detection=detection, input_rate=SPEECH_RATE)
        listeners = [self._listener(setup, sample) for sample in chosen]
        ticks = max(len(listener.pcm) for listener in listeners) // _TICK_BYTES
        for tick in range(ticks):
            now_ms = (tick + 1) * TICK_MS
            for listener in listeners:
                self._settle(listener, now_ms)
            start = tick * _TICK_BYTES
            batch = [(one.caller, one.pcm[start : start + _TICK_BYTES]) for one in listeners]
            for listener, heard in zip(listeners, self._model.hear(batch), strict=True):
                for signal in heard.signals:
                    self._note(listener, signal, now_ms)
        decided = [one.decided_ms for one in listeners]
        assert None not in decided, policy
        return Outcome(
            policy, {s: d for s, d in zip(chosen, decided, strict=True) if d is not None}
        )

    def _listener(self, setup: SessionSetup, sample: TurnSample) -> _Listener:
        silences = [bytes(2 * SPEECH_RATE * ms // 1000) for ms in (_BEFORE_MS, _AFTER_MS)]
        pcm = silences[0] + sample.pcm + silences[1]
        pcm += bytes(-len(pcm) % _TICK_BYTES)
        end_ms = _BEFORE_MS + len(sample.pcm) / 2 / SPEECH_RATE * 1000
        return _Listener(self._model.open(setup), pcm, end_ms)

    def _settle(self, listener: _Listener, now_ms: float) -> None:
        """Words that have come meanwhile are known to the detector before it hears on."""
        for entry in [entry for entry in listener.thinking if entry[0] <= now_ms - TICK_MS]:
            listener.thinking.remove(entry)
            self._model.weigh(listener.caller, entry[1], self._model.transcribe(entry[1]))

    def _note(self, listener: _Listener, signal: object, now_ms: float) -> None:
        if isinstance(signal, SpeechPaused):
            utterance = self._model.utterance(listener.caller, cut=False)
            if utterance is not None:
                listener.thinking.append((now_ms + THINKING_MS, utterance))
        elif isinstance(signal, SpeechStopped) and listener.decided_ms is None:
            after_ms = now_ms - listener.speech_end_ms
            # An end within a whole sample is a cut-in too, but of a pause that is in the recording.
            if after_ms > 0:
                listener.decided_ms = after_ms
            else:
                self._model.utterance(listener.caller, cut=True)


def _row(outcome: Outcome, chosen: Sequence[TurnSample]) -> tuple[float, float, float]:
    delays = outcome.delays(chosen)
    return statistics.fmean(delays), percentile(delays, 0.9), outcome.cut_in_share(chosen)


def _figures(name: str, outcomes: Sequence[Outcome], chosen: Sequence[TurnSample]) -> list[Figure]:
    """Per policy its delay and its mistakes; per eagerness what plain silence takes to make no more of them."""
    found = [
        Figure(f"{name}: whole", sum(s.complete for s in chosen)),
        Figure(f"{name}: broken off", sum(not s.complete for s in chosen)),
    ]
    rows = {outcome.policy: _row(outcome, chosen) for outcome in outcomes}
    shown = [f"silence {ms}" for ms in _SHOWN_MS] + [f"semantic {e}" for e in EAGERNESS]
    for policy in shown:
        mean_ms, p90_ms, share = rows[policy]
        found += [
            Figure(f"{name}: {policy}, wait, mean", round(mean_ms), "ms"),
            Figure(f"{name}: {policy}, wait, p90", round(p90_ms), "ms"),
            Figure(f"{name}: {policy}, cut-ins", round(100 * share, 1), "%"),
        ]
    plain = [rows[f"silence {ms}"] for ms in PLAIN_MS]
    for eagerness in EAGERNESS:
        mean_ms, _, share = rows[f"semantic {eagerness}"]
        as_safe = min((mean for mean, _, cut in plain if cut <= share), default=float("inf"))
        as_fast = min((cut for mean, _, cut in plain if mean <= mean_ms), default=1.0)
        found += [
            at_least(
                f"{name}: {eagerness}, sooner than silence as safe",
                round(as_safe - mean_ms),
                "ms",
                1,
            ),
            at_least(
                f"{name}: {eagerness}, fewer cut-ins than silence as fast",
                round(100 * (as_fast - share), 1),
                "%",
                1,
            ),
        ]
    return found


def measure(bench: Bench, chosen: Sequence[TurnSample]) -> list[Outcome]:
    """Every policy on every sample."""
    outcomes = [
        bench.play(f"silence {ms}", TurnDetection(silence_duration_ms=ms), chosen)
        for ms in PLAIN_MS
    ]
    return outcomes + [
        bench.play(f"semantic {eagerness}", TurnDetection(eagerness=eagerness), chosen)
        for eagerness in EAGERNESS
    ]


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; 1 if it cannot be, or with --check where plain silence is no worse."""
    command = parser("turn-taking", "semantic_vad against plain silence, on labelled utterances.")
    options = command.parse_args(argv)
    report = Report("turn-taking", argv)
    try:
        files = EmbeddedFiles(embedded_dir())
        bench = Bench(SileroVad(files.vad), MoonshineTranscriber(files.transcriber))
    except (WeightsError, SpeechUnavailable) as error:
        print(f"bench turn-taking: {error}", file=sys.stderr)
        return 1
    every = samples()
    outcomes = measure(bench, every)
    held_out = [s for s in every if s.held_out and not s.human]
    report.add(*_figures("held out", outcomes, held_out))
    report.add(*_figures("human", outcomes, [s for s in every if s.human]))
    if not options.quick:
        report.add(*_figures("tuning", outcomes, [s for s in every if not s.held_out]))
    report.publish(options.json)
    return 1 if options.check and report.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
