"""The caller's turns in one call: told as they are found, and put into words in the pauses, on speculation.

What finds them is a `TurnHearing`; who answers them, or whether anybody does, is not decided here.
"""

import asyncio
from abc import abstractmethod
from typing import Any, Protocol

from engine.inbox import ClearMark, CommitMark
from engine.listener import SessionListener
from engine.models.base import (
    Heard,
    IdleTimeout,
    ScoringModel,
    SessionSetup,
    Signal,
    SpeechPaused,
    SpeechStarted,
    SpeechStopped,
    Utterance,
)
from engine.pool import Pool
from engine.spawn import Spawn
from engine.speech.ports import Transcript


class TurnModel(Protocol):
    """The part of a model that knows the caller's turns; see `InteractionModel` for where each method runs."""

    def utterance(self, state: Any, *, cut: bool) -> Utterance | None: ...
    def clear(self, state: Any) -> None: ...
    def transcribe(self, utterance: Utterance) -> str: ...
    def weigh(self, state: Any, utterance: Utterance, words: str) -> None: ...


class TurnListening:
    """Mixed into whatever hears a caller's frames and meets commits in order."""

    id: str
    setup: SessionSetup
    state: Any
    closed: bool
    listener: SessionListener
    _spawn: Spawn
    _guess: "tuple[int, asyncio.Task[Transcript]] | None" = None  # (voiced_ms, its words)
    _turn_over = False  # a SpeechStopped is being told: a commit now means that turn

    @property
    @abstractmethod
    def _turn_model(self) -> TurnModel:
        """Whose `state` this call's is."""

    @property
    @abstractmethod
    def _word_pool(self) -> Pool:
        """Where transcription runs."""

    def _met(self, mark: CommitMark | ClearMark) -> None:
        """A mark has come to the head of the inbox."""
        if isinstance(mark, CommitMark):
            self._cut(mark.item_id)
        else:
            self._guess = None
            self._turn_model.clear(self.state)

    def _act(self, heard: Heard) -> None:
        """Do what hearing led to."""
        for signal in heard.signals:
            if self.closed:
                return
            self._tell(signal)

    def _tell(self, signal: Signal) -> None:
        if isinstance(signal, SpeechStarted):
            self._guess = None
            self.listener.speech_started(signal.at_ms)
        elif isinstance(signal, SpeechPaused):
            self._speculate()
        elif isinstance(signal, SpeechStopped):
            self._turn_over = True
            self.listener.speech_stopped(signal.at_ms)
            self._turn_over = False
        elif isinstance(signal, IdleTimeout):
            self.listener.idle_timeout(signal.start_ms, signal.at_ms)

    def _cut_over(self, item_id: str) -> bool:
        """Within `speech_stopped`: what the detector found becomes the item, not what has arrived since."""
        was_over, self._turn_over = self._turn_over, False
        if was_over:
            self._cut(item_id)
        return was_over

    def _speculate(self) -> None:
        """Transcribe in the pause: if silence lasts, the words are there when the turn is decided."""
        utterance = self._turn_model.utterance(self.state, cut=False)
        if utterance is not None and (self._guess is None or self._guess[0] != utterance.voiced_ms):
            self._guess = utterance.voiced_ms, self._spawn(self.id, self._consider(utterance))

    async def _consider(self, utterance: Utterance) -> Transcript:
        """The words so far, which may also decide how long the pause must be to end the turn."""
        words = await self._words(utterance)
        if self.setup.turn_detection.eagerness is not None and not self.closed:
            await self._word_pool.run(self._turn_model.weigh, self.state, utterance, words.text)
        return words

    def _cut(self, item_id: str) -> None:
        utterance = self._turn_model.utterance(self.state, cut=True)
        guess, self._guess = self._guess, None
        self._spawn(self.id, self._transcribe(item_id, utterance, guess))

    async def _transcribe(
        self,
        item_id: str,
        utterance: Utterance | None,
        guess: "tuple[int, asyncio.Task[Transcript]] | None",
    ) -> None:
        if utterance is None:
            words = Transcript("")
        elif guess is not None and guess[0] == utterance.voiced_ms:
            words = await guess[1]
        else:
            words = await self._words(utterance)
        if self.closed:
            return
        seconds = utterance.duration_s if utterance else 0.0
        self.listener.transcribed(item_id, words.text, seconds, words.tokens)
        self._understood(item_id, words.text)

    def _understood(self, item_id: str, text: str) -> None:
        """The words of an item have been told."""

    async def _words(self, utterance: Utterance) -> Transcript:
        model, pool = self._turn_model, self._word_pool
        if self.setup.scores_words and isinstance(model, ScoringModel):
            return await pool.run(model.scored, utterance)
        return Transcript(await pool.run(model.transcribe, utterance))
