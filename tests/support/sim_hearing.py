"""A simulated model that hears, and a backend that remembers what it was fed."""

from collections.abc import Callable

from support.sim_engine import RATE, TICK_MS

from engine.models.audio_format import AudioFormat
from engine.models.audio_turns import AudioTurns
from engine.models.base import ModelSpec
from engine.models.cascade import CascadeParts
from engine.models.image_format import ImageFormat
from engine.models.sim import SimChat
from engine.sim_backend import SimBackend
from engine.speech.sim import DurationTranscriber, EnergyVad, ToneVoice
from engine.work import Append, Feature, StepResult, TickBatch

PLACEHOLDER, BEFORE, AFTER = 7, 8, 9
IMAGE, SEEN_BEFORE, SEEN_AFTER = 10, 11, 12
IMAGE_TOKENS = 6
OPENS, ENDS = (4,), (1,)


class HearingChat(SimChat):
    """`TurnTokens`."""

    turn_opens, turn_ends = OPENS, ENDS

    def words(self, text: str) -> tuple[int, ...]:
        """Some tokens."""
        return tuple(100 + ord(letter) % 50 for letter in text)


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
        prefill_per_image=len(OPENS) + IMAGE_TOKENS + 2 + len(ENDS),
    )
    audio = AudioFormat(
        16, 100, 8, PLACEHOLDER, (BEFORE,), (AFTER,), tokens, lambda mel, silence: {"mel": mel}
    )
    images = ImageFormat(
        IMAGE, (SEEN_BEFORE,), (SEEN_AFTER,), IMAGE_TOKENS, lambda image: (IMAGE_TOKENS, {})
    )
    parts = CascadeParts(EnergyVad(), DurationTranscriber(), chat, ToneVoice())
    return AudioTurns(spec, parts, chat, audio, images=images)


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
