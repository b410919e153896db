"""The caller's side of the line: what has been appended since the last commit, and the turn being spoken."""

from protocol.audio_format import PCM_RATE, AudioFormat
from protocol.errors import ProtocolError
from protocol.ids import IdFactory

MIN_COMMIT_MS = 100

# Length is counted in 24ths of a millisecond: exact at 8 and at 24 kHz.
_UNITS_PER_MS = PCM_RATE // 1000


class CallerAudio:
    """Counts audio; keeps none. The id of a turn's item is fixed when speech starts."""

    def __init__(self, ids: IdFactory) -> None:
        self._ids = ids
        self._units = 0  # length appended since the last commit or clear, in 1/24 ms
        self.item_id: str | None = None  # the item of the turn being spoken; None between turns

    @property
    def buffered_ms(self) -> float:
        """Audio appended since the last commit or clear."""
        return self._units / _UNITS_PER_MS

    def append(self, byte_count: int, audio_format: AudioFormat) -> None:
        """More audio, as bytes of the wire format."""
        samples = byte_count // audio_format.sample_bytes
        self._units += samples * (PCM_RATE // audio_format.rate)

    def begin_turn(self) -> str:
        """The item id of the turn that begins, or of the one under way."""
        if self.item_id is None:
            self.item_id = self._ids.new("item")
        return self.item_id

    def end_turn(self) -> str:
        """The item id of the turn that is now complete; the buffer is empty again."""
        item_id = self.begin_turn()
        self.clear()
        return item_id

    def clear(self) -> None:
        """Forget what was appended and the turn under way."""
        self._units = 0
        self.item_id = None

    def commit_refusal(self) -> ProtocolError | None:
        """Why a client's commit cannot be obeyed, if so."""
        if self.buffered_ms >= MIN_COMMIT_MS:
            return None
        return ProtocolError(
            "input_audio_buffer_commit_empty",
            f"The input audio buffer holds {self.buffered_ms:.2f} ms of audio; "
            f"a commit needs at least {MIN_COMMIT_MS} ms.",
        )
