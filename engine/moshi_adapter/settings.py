"""What one deployment asks of Moshi. Plain values: importing this imports neither torch nor moshi."""

from dataclasses import dataclass
from typing import Literal

DType = Literal["bfloat16", "float16", "float32"]

TINY_RANDOM = "tiny-random"  # the location of a model built on the spot, from a seed


@dataclass(frozen=True, slots=True)
class MoshiSettings:
    """Defaults are those of Kyutai's own server, for one 24 GiB GPU."""

    location: str  # a folder, a hub id "owner/name", or TINY_RANDOM
    slots: int = 4  # calls at once: memory for all of them is taken at the start
    buckets: tuple[int, ...] = (1, 2, 4, 8, 16, 32)  # batch sizes; `slots` is always one of them
    device: str = "cuda"  # or "cuda:1", "cpu"
    dtype: DType = "bfloat16"  # of the language model; the codec always computes in float32
    context_frames: int | None = None  # length of the ring, 80 ms each; None: the model's own
    temperature: float = 0.8  # of the voice's codes; 0: greedy
    text_temperature: float = 0.7  # of the words; 0: greedy
    prompted: bool = False  # calls begin with a role and a voice, as PersonaPlex's do
    voices: str = ""  # folder of voice prompts; empty: there are none
    prompt_frames: int = (
        16  # of a prompt that one step takes: what it adds to the tick of everybody else
    )
    seed: int = 0  # of the draws, and of the tiny model's weights

    def __post_init__(self) -> None:
        if not self.location:
            raise ValueError("location must name a folder or a hub id")
        if self.slots < 1:
            raise ValueError(f"slots must be positive, not {self.slots}")
        if any(size < 1 for size in self.buckets):
            raise ValueError(f"buckets must be positive, not {self.buckets}")
        if self.context_frames is not None and self.context_frames < 1:
            raise ValueError(f"context_frames must be positive, not {self.context_frames}")
        if self.prompt_frames < 1:
            raise ValueError(f"prompt_frames must be positive, not {self.prompt_frames}")
        if self.temperature < 0 or self.text_temperature < 0:
            raise ValueError("temperatures must not be negative")

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes in use, ascending; the last is `slots`."""
        return (*sorted({size for size in self.buckets if size < self.slots}), self.slots)
