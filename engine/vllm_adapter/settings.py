"""What one deployment asks of vLLM. Plain values: importing this imports neither vLLM nor torch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

DType = Literal["auto", "float32", "bfloat16", "float16"]

_CPU_BLOCK_TOKENS = 32  # vLLM's CPU attention kernels want a multiple of this


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """Defaults suit a small model on a CPU."""

    model: str  # a local folder in Hugging Face format, or a hub id "owner/name"
    dtype: DType = "auto"
    block_size: int = 32  # tokens per KV block; on a CPU a multiple of 32
    max_model_len: int = 4096  # longest context of one session, tokens
    max_num_seqs: int = 64  # most sessions resident at once; waiting ones count too
    max_num_batched_tokens: int = 2048  # most tokens computed in one step
    kv_cache_gib: float = 1.0  # size of the block pool; 0: whatever gpu_memory_utilization leaves
    total_blocks: int | None = None  # overrides the pool's size in blocks (tests, forced walls)
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = True  # no graph capture or compilation: start-up in seconds
    prefix_caching: bool = True  # sessions with the same header share its blocks
    sliding_window: int | None = (
        None  # tokens; the "sliding" policy: the engine's own window, no sink
    )
    hf_overrides: dict[str, Any] = field(
        default_factory=dict
    )  # replaces keys of the model's config
    seed: int = 0  # of unseeded sampling
    load_format: Literal["auto", "dummy"] = (
        "auto"  # "dummy": random weights in the model's shape (tests, measuring cost without a checkpoint)
    )
    mistral: bool = False  # the checkpoint is in Mistral's own format: params.json and tekken.json
    images: bool = False  # load the vision encoder of a model that hears and sees
    trust_remote_code: bool = False  # run code that comes with the checkpoint (MiniCPM-o needs it)

    @property
    def has_tokenizer(self) -> bool:
        """Whether the model comes with a tokenizer: taken for granted of a hub id."""
        folder = Path(self.model)
        return self.mistral or not folder.is_dir() or (folder / "tokenizer.json").is_file()

    @property
    def file_formats(self) -> dict[str, str]:
        """What form the checkpoint's files have, in vLLM's terms."""
        if not self.mistral:
            return {"load_format": self.load_format}
        weights = "mistral" if self.load_format == "auto" else self.load_format
        return {"load_format": weights, "config_format": "mistral", "tokenizer_mode": "mistral"}

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model must name a local folder or a hub id")
        if self.block_size <= 0 or self.block_size % _CPU_BLOCK_TOKENS:
            raise ValueError(
                f"block_size must be a multiple of {_CPU_BLOCK_TOKENS}, not {self.block_size}"
            )
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        if self.kv_cache_gib < 0:
            raise ValueError(f"kv_cache_gib must not be negative, not {self.kv_cache_gib}")
        if self.total_blocks is not None and self.total_blocks <= 0:
            raise ValueError(f"total_blocks must be positive, not {self.total_blocks}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"gpu_memory_utilization must be in (0, 1], not {self.gpu_memory_utilization}"
            )
        if self.sliding_window is not None and self.sliding_window <= 0:
            raise ValueError(f"sliding_window must be positive, not {self.sliding_window}")

    @property
    def is_local(self) -> bool:
        """True if `model` is a folder on this machine rather than a hub id."""
        return Path(self.model).is_dir()

    @property
    def config_overrides(self) -> dict[str, Any]:
        """`hf_overrides` with the sliding window in it."""
        window = {} if self.sliding_window is None else {"sliding_window": self.sliding_window}
        return {**self.hf_overrides, **window}
