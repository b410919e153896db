"""Turn-based conversation with a model that hears: voice activity → audio into the context → answer → voice.

A cascade without its transcriber in the way. While the caller speaks, each second of audio becomes one item of the
turn's message, so that when the turn is decided the model has heard nearly all of it:

    <|im_start|>user\\n <audio> 1 s </audio> <audio> 1 s </audio> <audio> the rest </audio> <|im_end|>\\n

Every item is encoded by itself. A transcriber may still run beside it, for clients that want to read what was said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from engine.models.audio_caller import AudioCaller
from engine.models.audio_chat import AudioChatMl
from engine.models.audio_format import AudioFormat
from engine.models.base import AudioChunk, Heard, ModelSpec, SessionSetup, SpeechStopped
from engine.models.caller_turns import CallerTurns
from engine.models.cascade import Cascade, CascadeParts
from engine.models.chat import ChatFormat
from engine.models.families import Family
from engine.models.image_format import ImageFormat, moved
from engine.speech.mel import Features
from engine.speech.ports import Samples
from engine.work import Sampling


class TurnTokens(ChatFormat, Protocol):
    """A chat format that can open and close a turn of the caller's around something that is not text."""

    turn_opens: tuple[int, ...]
    turn_ends: tuple[int, ...]  # of any turn

    def words(self, text: str) -> tuple[int, ...]:
        """The tokens of a stretch of text within a turn."""
        ...


class NoTranscriber:
    """For deployments whose clients do not ask what was said."""

    def transcribe(self, samples: Samples) -> str:
        """Nothing."""
        return ""


class AudioTurns(Cascade):
    """Implements `HearingModel`."""

    def __init__(
        self,
        spec: ModelSpec,
        parts: CascadeParts,
        turns: TurnTokens,
        audio: AudioFormat,
        sampling: Sampling | None = None,
        images: ImageFormat | None = None,
    ) -> None:
        """`turns` is the chat format among `parts`, seen for what else it is; `images` None: it does not see."""
        assert spec.hears_audio, spec
        super().__init__(spec, parts, sampling)
        self._turns = turns
        self._audio = audio
        self._images = images
        self.turn_around = turns.turn_opens, turns.turn_ends

    def open(self, setup: SessionSetup) -> AudioCaller:
        parts = self._parts
        fresh = np.zeros(parts.vad.state_size, np.float32)
        return AudioCaller(setup, fresh, parts.chat.detokenizer(), self._audio.bins)

    def hear(self, batch: Sequence[tuple[CallerTurns, bytes]]) -> list[Heard]:
        """As a cascade; and whenever a turn has another second of audio, or ends, a chunk of it."""
        heard = super().hear(batch)
        for index, (caller, _) in enumerate(batch):
            assert isinstance(caller, AudioCaller)
            signals = heard[index].signals
            chunk = self._listen(caller, any(isinstance(s, SpeechStopped) for s in signals))
            if chunk is not None:
                heard[index] = Heard(signals, chunk)
        return heard

    def _listen(self, caller: AudioCaller, ended: bool) -> AudioChunk | None:
        if ended:
            caller.mel.push(caller.ended())
            return self._chunk(caller, caller.mel.finish())
        samples = caller.fresh()
        if len(samples):
            caller.mel.push(samples)
        if caller.mel.ready < self._audio.chunk_frames:
            return None
        return self._chunk(caller, caller.mel.take(self._audio.chunk_frames))

    def _chunk(self, caller: AudioCaller, mel: Features) -> AudioChunk:
        item = self._audio.item(mel, caller.mel.floor)
        if caller.opened:
            return item
        caller.opened = True
        return _before(self._turns.turn_opens, item)

    def finish(self, state: AudioCaller) -> AudioChunk:
        samples = state.rest()
        if len(samples):
            state.mel.push(samples)
        rest = self._chunk(state, state.mel.finish())
        state.next_turn()
        return AudioChunk(
            (*rest.token_ids, *self._turns.turn_ends), rest.decode, features=rest.features
        )

    def see(self, content: Sequence[str | bytes]) -> AudioChunk:
        assert self._images is not None, self.spec
        return self._images.content(tuple(content), self._turns.words)

    def clear(self, state: CallerTurns) -> None:
        super().clear(state)
        assert isinstance(state, AudioCaller)
        state.next_turn()

    def bridge(self, tail: Sequence[int]) -> tuple[int, ...]:
        ends = self._turns.turn_ends
        for said in range(len(ends), 0, -1):  # how much of a turn's end is there already
            if tuple(tail[-said:]) == ends[:said]:
                return ends[said:]
        return ends


def _before(tokens: tuple[int, ...], chunk: AudioChunk) -> AudioChunk:
    features = tuple(moved(feature, len(tokens)) for feature in chunk.features)
    return AudioChunk((*tokens, *chunk.token_ids), chunk.decode, features=features)


def hearing_model(
    family: Family,
    config: Mapping[str, Any],
    spec: ModelSpec,
    parts: CascadeParts,
    chat: AudioChatMl,
    image_tokens: int = 0,
) -> AudioTurns:
    """The model of a family that hears, from its config.json; an image takes `image_tokens`, 0: it does not see.

    Raises:
        ValueError: its tokenizer lacks what its audio is wrapped in, or the family is of another kind.
    """
    if family.format is None:
        raise ValueError(f"{family.name} does not take turns")
    audio = family.format(config, chat.control)
    # The last chunk of a turn may be a little longer than the others, and a turn is opened and closed.
    around = len(chat.turn_opens) + len(chat.turn_ends)
    images = None
    if image_tokens and family.images is not None:
        images = family.images(config, chat.folder, chat.control, image_tokens)
    spec = replace(
        spec,
        prefill_per_tick=around + audio.cost(2 * audio.chunk_frames),
        prefill_per_image=around + images.cost if images else 0,
    )
    return AudioTurns(spec, parts, chat, audio, Sampling(temperature=0.7, top_p=0.9), images)
