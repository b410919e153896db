"""A simulated model that hears, and a backend that remembers what it was fed."""

from collections.abc import Callable

from support.sim_engine import RATE, TICK_MS

from engine.models.audio_format import AudioFormat
from engine.models.audio_turns import AudioTurns
from engine.models.base import ModelSpec
from engine.models.cascade import CascadeParts
from engine.models.sim import SimChat
from engine.sim_backend import SimBackend
from engine.speech.sim import DurationTranscriber, EnergyVad, ToneVoice
from engine.work import Append, Feature, StepResult, TickBatch

PLACEHOLDER, BEFORE, AFTER = 7, 8, 9
OPENS, ENDS = (4,), (1,)


class HearingChat(SimChat):
    """`TurnTokens`."""

    turn_opens, turn_ends = OPENS, ENDS


def tokens(frames: int) -> int:
    """12.5 a second."""
    return max(1, frames // 8)


def hearing(decode_per_tick: int = 3) -> AudioTurns:
    """The turn-based model that hears, on simulated parts."""
    chat = HearingChat()
    spec = ModelSpec(
        "sim-hearing",
        TICK_MS,
        RATE,
        RATE,
        decode_per_tick,
        False,
        stop_token_ids=chat.stop_token_ids,
        hears_audio=True,
    )
    audio = AudioFormat(
        16, 100, 8, PLACEHOLDER, (BEFORE,), (AFTER,), tokens, lambda mel, silence: {"mel": mel}
    )
    return AudioTurns(
        spec, CascadeParts(EnergyVad(), DurationTranscriber(), chat, ToneVoice()), chat, audio
    )


class RecordingBackend(SimBackend):
    """Keeps every append, and checks that each placeholder has a feature behind it."""

    def __init__(self, fail: Callable[[Append], bool] = lambda append: False) -> None:
        super().__init__()
        self.appends: list[Append] = []

    def step(self, batch: TickBatch) -> StepResult:
        self.appends += batch.appends
        return super().step(batch)

    def context(self, session_id: str) -> list[int]:
        """Logical tokens of a session."""
        return list(self._sessions[session_id].tokens)

    @property
    def features(self) -> list[Feature]:
        return [feature for append in self.appends for feature in append.features]


def check_features(append: Append) -> None:
    """Every run of placeholders has exactly one feature, in its place."""
    covered = [
        i
        for feature in append.features
        for i in range(feature.offset, feature.offset + feature.length)
    ]
    assert covered == [i for i, token in enumerate(append.token_ids) if token == PLACEHOLDER]
