"""Who speaks when: what the engine reports, and what that makes of turns, answers and items.

A turn of the caller's: speech started (its item id is fixed here) ─▶ stopped ─▶ committed, added, done ─▶ an answer,
unless one is in progress and may not be interrupted; then the answer is owed and begins when that one is done.
A frame-locked model takes turns by itself: its answers open at its first sound and close when it falls silent.
"""

from collections.abc import Sequence

from protocol import session_config
from protocol.caller_audio import CallerAudio
from protocol.commands import ClearAudio, Command, CommitAudio, TokenLogprob
from protocol.conversation import Conversation
from protocol.ids import IdFactory
from protocol.item_requests import ItemRequests
from protocol.items import Entry, system_note, user_audio
from protocol.kept_audio import AudioShelf, Tape, shared_out
from protocol.response import COMPLETED, Ending, Response, ResponseUsage
from protocol.response_options import ResponseOptions, standing
from protocol.responses import Responses
from protocol.server_events import ServerEvents
from protocol.session_config import SessionDefaults

_ENDINGS = {
    "completed": COMPLETED,
    "max_output_tokens": Ending("incomplete", "max_output_tokens"),
}
_TURN_DETECTED = Ending("cancelled", "turn_detected")
_SILENCE_NOTE = "The caller has been silent for a while."


class TurnTaking:
    """The half of a connection that listens to the engine."""

    def __init__(self, defaults: SessionDefaults, ids: IdFactory) -> None:
        self._defaults = defaults
        self._ids = ids
        self._config = session_config.initial(defaults)
        self._events = ServerEvents(ids)
        tape_bytes, shelf_bytes = shared_out(defaults.max_audio_bytes)
        self._caller = CallerAudio(ids, Tape(tape_bytes if defaults.keeps_caller else 0))
        shelf = AudioShelf(shelf_bytes)
        self._conversation = Conversation(ids.new("conv"), defaults.max_items, shelf)
        self._items = ItemRequests(self._conversation, self._events, ids, defaults.max_deferred)
        self._responses = Responses(self._conversation, self._events, ids, defaults.max_out_of_band)
        # A turn ended while an answer was in progress: it is answered next.
        self._owes_answer = False
        # The client cancelled a frame-locked model: ignored until it falls silent.
        self._is_hushed = False
        # The item that the turn under way follows: the last one when it began.
        self._turn_after: str | None = None

    # -- the caller ------------------------------------------------------------------------------

    def speech_started(self, audio_ms: int) -> list[Command]:
        """The caller began to speak, `audio_ms` into all audio ever pushed; may interrupt the answer."""
        detection = self._config.turn_detection
        if detection is None:
            return []  # switched off while the detector was already listening
        if self._caller.item_id is None:
            self._turn_after = self._conversation.last_id
        self._events.speech_started(audio_ms, self._caller.begin_turn(audio_ms))
        active = self._responses.active
        if not detection.interrupt_response or self._defaults.decides_turns or active is None:
            return []
        self._owes_answer = False  # the turn that begins will be answered with it
        return self._cancel(active, _TURN_DETECTED)

    def speech_stopped(self, audio_ms: int) -> list[Command]:
        """The caller's turn is over: commit it and, where the session says so, answer."""
        detection = self._config.turn_detection
        if detection is None or self._caller.item_id is None:
            return []  # switched off, committed or cleared since speech started
        self._events.speech_stopped(audio_ms, self._caller.item_id)
        commands = self._commit_turn(audio_ms)
        if detection.create_response and not self._defaults.decides_turns:
            commands += self._answer_turn()
        return commands

    def idle_timeout(self, start_ms: int, end_ms: int) -> list[Command]:
        """Nobody spoke for as long as the session allows: an empty turn is committed and answered."""
        if self._responses.active is not None or self._caller.item_id is not None:
            return []
        item_id = self._caller.end_turn()
        self._events.timeout_triggered(start_ms, end_ms, item_id)
        note = self._conversation.append(system_note(self._ids.new("item"), _SILENCE_NOTE))
        self._items.announce(note.item)
        self._add_turn(item_id, self._conversation.last_id)
        return [ClearAudio(), *self._answer_turn()]

    def transcribed(
        self, item_id: str, text: str, seconds: float, logprobs: Sequence[TokenLogprob] = ()
    ) -> list[Command]:
        """The words of a user item, `seconds` long; kept always, told only to clients that asked."""
        if self._settle_transcript(item_id, text) and self._tells_transcripts:
            if text:
                self._events.transcription_delta(item_id, text, logprobs)
            self._events.transcription_completed(item_id, text, seconds, logprobs)
        return []

    def transcription_failed(self, item_id: str, message: str) -> list[Command]:
        """There will be no words for a user item."""
        if self._settle_transcript(item_id, None) and self._tells_transcripts:
            self._events.transcription_failed(item_id, message)
        return []

    # -- the answer ------------------------------------------------------------------------------

    def response_text(self, response_id: str, text: str) -> None:
        """More words of an answer; in audio mode just ahead of the audio that speaks them."""
        if (response := self._responses.find(response_id)) is not None:
            response.write_text(text)

    def response_audio(self, response_id: str, pcm: bytes) -> None:
        """More voice of an answer: pcm16 at `output_rate(response_id)`."""
        if (response := self._responses.find(response_id)) is not None:
            response.write_audio(pcm)

    def response_call(
        self, response_id: str, index: int, name: str, arguments: str, *, done: bool
    ) -> None:
        """More of the arguments of the `index`-th function an answer calls, or with `done` the last of them."""
        if (response := self._responses.find(response_id)) is not None:
            response.write_call(index, name, arguments, done=done)

    def response_ended(
        self, response_id: str, reason: str, usage: ResponseUsage, error: str | None
    ) -> list[Command]:
        """The engine is done with an answer: "completed", "max_output_tokens" or "failed"."""
        response = self._responses.find(response_id)
        if response is None:
            return []  # cancelled meanwhile
        self._responses.end(response, _ENDINGS.get(reason) or Ending("failed", error=error), usage)
        return [] if response.options.out_of_band else self._after_answer()

    def spoke(self, pcm: bytes, text: str) -> None:
        """A frame-locked model made a sound: pcm16 at the session's output rate, and any words it begins.

        Called once per session and tick, so kept short.
        """
        if self._is_hushed:
            return  # also where an answer was asked for since: this is still the one that was cancelled
        response = self._responses.active
        if response is None:
            if self._config.type == "transcription":
                return
            response = self._responses.open(standing(self._config))
        if text:
            response.write_text(text)
        response.write_audio(pcm)

    def fell_silent(self) -> None:
        """A frame-locked model stopped speaking: because it was done, or because the caller spoke.

        An answer that was asked for and has not begun waits on; the engine ends it if nothing comes.
        """
        self._is_hushed = False
        response = self._responses.active
        if response is None or not response.is_written:
            return
        detection = self._config.turn_detection
        may_interrupt = detection is not None and detection.interrupt_response
        interrupted = may_interrupt and self._caller.item_id is not None
        usage = ResponseUsage(output_audio_ms=response.audio_ms)
        self._responses.end(response, _TURN_DETECTED if interrupted else COMPLETED, usage)
        self._items.add_deferred()

    # -- shared with the client's side -------------------------------------------------------------

    @property
    def _tells_transcripts(self) -> bool:
        return self._config.transcription is not None or self._config.type == "transcription"

    def _commit_turn(self, stop_ms: int | None = None) -> list[Command]:
        """What the caller said, up to there or to the end, becomes a user item, its words still to come."""
        said = self._caller.recorded(stop_ms)
        after = self._turn_place
        item_id = self._caller.end_turn()
        entry = self._add_turn(item_id, after)
        entry.awaits_transcript = True
        if said:
            entry.clip = self._conversation.shelf.clip(self._caller.format, said)
        return [CommitAudio(item_id)]

    def _add_turn(self, item_id: str, after: str | None) -> Entry:
        entry = self._conversation.place(user_audio(item_id), after)
        self._events.committed(item_id, self._conversation.previous_id(entry))
        self._items.announce(entry.item)
        return entry

    @property
    def _turn_place(self) -> str | None:
        """The item that the caller's turn follows; a frame-locked model may answer before that turn is over."""
        spoken = self._caller.item_id is not None and self._defaults.decides_turns
        return self._turn_after if spoken else self._conversation.last_id

    def _answer_turn(self) -> list[Command]:
        """Answer the turn that just ended, now or after the answer in progress."""
        if self._config.type == "transcription":
            return []
        if self._responses.active is not None:
            self._owes_answer = True
            return []
        return self._answer(standing(self._config))

    def _answer(self, options: ResponseOptions) -> list[Command]:
        response = self._responses.open(options)
        return [options.command(response.id, self._conversation)]

    def _cancel(self, response: Response, ending: Ending) -> list[Command]:
        commands = self._responses.cancel(response, ending)
        if not response.options.out_of_band:
            commands += self._after_answer()
        return commands

    def _after_answer(self) -> list[Command]:
        """The conversation is free: add the items that waited, and give the answer that is owed."""
        self._items.add_deferred()
        if not self._owes_answer:
            return []
        self._owes_answer = False
        return self._answer_turn()

    def _settle_transcript(self, item_id: str, text: str | None) -> bool:
        """Note the words of a user item; False if nobody waits for them any more."""
        entry = self._conversation.get(item_id)
        if entry is None or not entry.awaits_transcript:
            return False
        entry.awaits_transcript = False
        entry.item.content = user_audio(item_id, text).content
        return True
