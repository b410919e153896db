"""Hearing by voice activity and transcription: the caller's turns, and their words.

The first half of a cascade, and all of what listens beside a frame-locked model. Parts are shared by all sessions and
hold no state of their own; what belongs to a call is in its `CallerTurns`.
"""

from collections.abc import Sequence

import numpy as np

from engine.models.base import Heard, SessionSetup, Utterance
from engine.models.caller_turns import CallerTurns
from engine.speech.end_of_turn import completeness, final_fade, is_backchannel, silence_ms
from engine.speech.ports import Samples, ScoringTranscriber, Transcriber, Transcript, VoiceActivity

_NOTHING = Heard()


class TurnHearing:
    """Finds turns and transcribes them. Where each method runs is as in `InteractionModel`."""

    def __init__(self, vad: VoiceActivity, transcriber: Transcriber) -> None:
        self._vad = vad
        self._transcriber = transcriber

    def open(self, setup: SessionSetup) -> CallerTurns:
        """A new session's state."""
        return CallerTurns(setup, self.fresh())

    def fresh(self) -> Samples:
        """The detector's state before a call's first frame: float32[state_size]."""
        return np.zeros(self._vad.state_size, np.float32)

    def configure(self, state: CallerTurns, setup: SessionSetup) -> None:
        state.configure(setup)

    def hear(self, batch: Sequence[tuple[CallerTurns, bytes]]) -> list[Heard]:
        """Consume caller audio of any length per session; voice activity runs across all of them at once."""
        callers = [caller for caller, _ in batch]
        frames = [caller.frames(pcm) for caller, pcm in batch]
        detecting = [i for i, caller in enumerate(callers) if caller.detects and len(frames[i])]
        spoken = self._probabilities(
            [callers[i] for i in detecting], [frames[i] for i in detecting]
        )
        found: list[Sequence[float]] = [()] * len(batch)
        for index, probabilities in zip(detecting, spoken, strict=True):
            found[index] = probabilities
        heard = []
        for caller, own, probabilities in zip(callers, frames, found, strict=True):
            signals = caller.judge(own, probabilities)
            heard.append(Heard(signals) if signals else _NOTHING)
        return heard

    def _probabilities(
        self, callers: list[CallerTurns], frames: list[Samples]
    ) -> list[Sequence[float]]:
        """Per caller the speech probability of each of its frames, one model call per frame index.

        Callers are ordered by how many frames they have, so those with a frame at an index are a prefix.
        """
        order = sorted(range(len(callers)), key=lambda i: -len(frames[i]))
        found: list[list[float]] = [[] for _ in callers]
        if not order:
            return list(found)
        states = np.stack([callers[i].vad_state for i in order])
        active = len(order)
        for index in range(len(frames[order[0]])):
            while len(frames[order[active - 1]]) <= index:
                active -= 1
            stacked = np.stack([frames[i][index] for i in order[:active]])
            spoken, states[:active] = self._vad.probabilities(stacked, states[:active])
            for i, probability in zip(order, spoken.tolist(), strict=False):
                found[i].append(probability)
        for i, state in zip(order, states, strict=True):
            callers[i].vad_state = state
        return list(found)

    def utterance(self, state: CallerTurns, *, cut: bool) -> Utterance | None:
        """The oldest turn that was not cut yet; turns that ended are kept until they are.

        Audio that `hear` is still working on is not part of it. Where there is no turn, cutting gives
        the audio still kept (a manual commit beside turn detection), and looking gives None.
        """
        return state.cut() if cut else state.current()

    def clear(self, state: CallerTurns) -> None:
        state.clear()

    def transcribe(self, utterance: Utterance) -> str:
        return self._transcriber.transcribe(np.frombuffer(utterance.pcm, np.float32))

    def scored(self, utterance: Utterance) -> Transcript:
        transcriber = self._transcriber
        if isinstance(transcriber, ScoringTranscriber):
            return transcriber.scored(np.frombuffer(utterance.pcm, np.float32))
        return Transcript(self.transcribe(utterance))

    def weigh(self, state: CallerTurns, utterance: Utterance, words: str) -> None:
        eagerness = state.setup.turn_detection.eagerness
        if eagerness is None or (is_backchannel(words) and state.dismiss(utterance.voiced_ms)):
            return
        fade = final_fade(np.frombuffer(utterance.pcm, np.float32))
        needed_ms = silence_ms(completeness(words, fade), eagerness)
        state.settle(utterance.voiced_ms, needed_ms)
