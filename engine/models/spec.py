"""What a deployment must know of a model before the first call. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """The most tokens that one tick adds to a session's context."""

    prefill: int  # appended
    decode: int  # sampled

    @property
    def tokens(self) -> int:
        """Both."""
        return self.prefill + self.decode


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a deployment must know of a model before the first call."""

    id: str
    tick_ms: int
    input_rate: int  # Hz of the pcm16 handed to `hear`; resampling to the model's own rate is the model's job
    output_rate: int  # Hz of the pcm16 that comes out
    decode_per_tick: int  # tokens decoded per tick while speaking
    decides_turns: bool  # True: frame-locked, the model itself opens and closes responses
    hears_inline: bool = (
        False  # `hear` takes microseconds per session: call it on the loop, not in the pool
    )
    stop_token_ids: tuple[int, ...] = ()
    quality: str = ""  # a label for /v1/models and the log, e.g. "demo"
    owned_by: str = "metronome"
    hears_audio: bool = False  # turn-based, and audio itself enters the context: a `HearingModel`
    transcribes: bool = False  # frame-locked, and what comes out are the caller's own words
    words_behind_ms: int = 0  # by which they follow the sound
    writes: bool = False  # frame-locked, but what comes out is text; `speak` makes its voice
    prompted: bool = False  # frame-locked, and a call may begin with a prompt: a `PromptedModel`
    voices: tuple[str, ...] = ()  # that a session may choose from; empty: the deployment's one
    prefill_per_tick: int = 0  # tokens of caller audio that one append brings, at most
    prefill_per_image: int = 0  # tokens of a still image, at most; above 0 it is a `Sight`
    header_tokens: int = 0  # of every context's header, instructions aside
    blocks_per_session: int = (
        0  # KV blocks held from the first tick to the last; 0: as the KV policy bounds them
    )

    def cost(self, images: int = 0) -> Cost:
        """What a tick with so many images in it costs at worst; what admission and planning count with.

        The header comes on top, once: `header_tokens` and the instructions, for which the deployment reserves room.
        """
        prefill = self.prefill_per_tick + images * self.prefill_per_image
        return Cost(prefill, self.decode_per_tick)
