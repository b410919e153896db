"""What one spoken turn became, put together from the server's events. Pure: instants are passed in.

A speaker may pause in mid-sentence, so that the server ends the turn too early, begins to answer and
is interrupted. The turn here is the whole utterance: transcripts are joined, and the answer that
counts is the one after the last end of speech.
"""

import base64
from dataclasses import dataclass, field
from typing import Any

from bench.audio import WIRE_RATE, Utterance


@dataclass(slots=True)
class Turn:
    """One utterance and its answer. Instants in seconds on the client's clock; None: not seen."""

    said: Utterance
    spoken_at: float | None = None  # the last voiced chunk was sent
    sent_at: float | None = None  # the last chunk was sent
    decided_at: float | None = None  # the server said that the turn is over
    first_audio_at: float | None = None
    done_at: float | None = None  # the answer is complete
    status: str = ""  # of the answer
    answer: str = ""  # transcript sent with it
    pcm: bytearray = field(default_factory=bytearray)  # the answer, WIRE_RATE
    problems: list[str] = field(default_factory=list)

    _heard: dict[str, str | None] = field(default_factory=dict)  # by item id; None: not yet known
    _speaking: bool = False
    _response_id: str | None = None  # the answer that counts

    @property
    def heard(self) -> str:
        """What the server understood."""
        return " ".join(text for text in self._heard.values() if text)

    @property
    def is_complete(self) -> bool:
        """Everything was said, understood and answered."""
        return (
            self.sent_at is not None
            and not self._speaking
            and self.done_at is not None
            and None not in self._heard.values()
        )

    @property
    def answer_s(self) -> float:
        """Length of the answer's audio."""
        return len(self.pcm) / 2 / WIRE_RATE

    @property
    def decision_to_audio_s(self) -> float | None:
        """From the server's decision that the turn is over to the first audio of the answer."""
        if self.first_audio_at is None or self.decided_at is None:
            return None
        return self.first_audio_at - self.decided_at

    @property
    def speech_to_audio_s(self) -> float | None:
        """From the end of speech to the first audio of the answer: what the caller waits."""
        if self.first_audio_at is None or self.spoken_at is None:
            return None
        return self.first_audio_at - self.spoken_at

    def take(self, event: Any, now: float) -> None:
        """Note a server event that arrived at `now`. Events that say nothing about a turn pass."""
        reader = _READERS.get(event.type)
        if reader is not None:
            reader(self, event, now)

    # -- one method per event ---------------------------------------------------

    def _speech_started(self, event: Any, now: float) -> None:
        self._speaking = True

    def _speech_stopped(self, event: Any, now: float) -> None:
        self._speaking = False
        self.decided_at = now
        self._expect_answer(None)

    def _committed(self, event: Any, now: float) -> None:
        self._heard[event.item_id] = None

    def _transcribed(self, event: Any, now: float) -> None:
        self._heard[event.item_id] = event.transcript

    def _transcription_failed(self, event: Any, now: float) -> None:
        self._heard[event.item_id] = ""
        self.problems.append(f"transcription failed: {event.error.message}")

    def _response_created(self, event: Any, now: float) -> None:
        self._expect_answer(event.response.id)

    def _expect_answer(self, response_id: str | None) -> None:
        self._response_id = response_id
        self.first_audio_at = self.done_at = None
        self.answer, self.status = "", ""
        self.pcm.clear()

    def _audio(self, event: Any, now: float) -> None:
        if event.response_id != self._response_id:
            return
        if self.first_audio_at is None:
            self.first_audio_at = now
        self.pcm += base64.b64decode(event.delta)

    def _text(self, event: Any, now: float) -> None:
        if event.response_id == self._response_id:
            self.answer += event.delta

    def _response_done(self, event: Any, now: float) -> None:
        if event.response.id != self._response_id:
            return
        self.status = event.response.status
        if self.status != "cancelled":  # interrupted: the speaker went on, another answer follows
            self.done_at = now

    def _error(self, event: Any, now: float) -> None:
        self.problems.append(f"error event: {event.error.message}")


_READERS = {
    "input_audio_buffer.speech_started": Turn._speech_started,
    "input_audio_buffer.speech_stopped": Turn._speech_stopped,
    "input_audio_buffer.committed": Turn._committed,
    "conversation.item.input_audio_transcription.completed": Turn._transcribed,
    "conversation.item.input_audio_transcription.failed": Turn._transcription_failed,
    "response.created": Turn._response_created,
    "response.output_audio.delta": Turn._audio,
    "response.output_audio_transcript.delta": Turn._text,
    "response.done": Turn._response_done,
    "error": Turn._error,
}
