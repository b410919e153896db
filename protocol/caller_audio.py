"""The caller's side of the line: what has been appended since the last commit, and the turn being spoken."""

from protocol.audio_format import PCM_RATE, AudioFormat
from protocol.errors import ProtocolError
from protocol.ids import IdFactory
from protocol.kept_audio import Tape, position

MIN_COMMIT_MS = 100

# Length is counted in 24ths of a millisecond: exact at 8 and at 24 kHz.
_UNITS_PER_MS = PCM_RATE // 1000


class CallerAudio:
    """Counts audio, and finds a turn's on the tape. The id of a turn's item is fixed when speech starts."""

    def __init__(self, ids: IdFactory, tape: Tape) -> None:
        self._ids = ids
        self._tape = tape
        self._units = 0  # length appended since the last commit or clear
        self._turn_from = 0  # where the turn being spoken begins, on the tape
        self.item_id: str | None = None  # the item of the turn being spoken; None between turns

    @property
    def buffered_ms(self) -> float:
        """Audio appended since the last commit or clear."""
        return self._units / _UNITS_PER_MS

    @property
    def format(self) -> AudioFormat:
        """Of what is recorded."""
        return self._tape.format

    def append(self, audio: bytes, audio_format: AudioFormat) -> None:
        """More audio, in the wire's format."""
        self._units += self._tape.append(audio, audio_format)

    def begin_turn(self, audio_ms: int) -> str:
        """The item id of the turn that begins there, or of the one under way."""
        if self.item_id is None:
            self.item_id = self._ids.new("item")
            self._turn_from = position(audio_ms)
        return self.item_id

    def end_turn(self) -> str:
        """The item id of the turn that is now complete; the buffer is empty again."""
        item_id = self.item_id or self._ids.new("item")
        self._restart()
        return item_id

    def recorded(self, stop_ms: int | None) -> list[bytes]:
        """The audio of the turn being spoken, up to there or to the end; where there is none, all since the last."""
        start = self._tape.end - self._units if self.item_id is None else self._turn_from
        return self._tape.read(start, self._tape.end if stop_ms is None else position(stop_ms))

    def clear(self) -> None:
        """Forget what was appended and the turn under way."""
        self._tape.wipe()
        self._restart()

    def _restart(self) -> None:
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
