"""Rotary position embeddings as pure rotations: the angle of one step, and which dimensions turn together.

RoPE turns pair d of a key by position * w(d). Turning it back by delta * w(d) is therefore exactly what the key would
have been `delta` positions earlier, whatever the scheme that chose w (plain, linear, NTK, YaRN, Llama 3): the module's
own table holds the angles, so nothing about the scheme needs to be known here, and `check` compares with the module.
"""

import inspect
from typing import Any

import torch

_TOLERANCE = {torch.float32: 5e-3, torch.bfloat16: 6e-2, torch.float16: 1e-2}  # keys in [-1, 1)


class NotRotary(ValueError):
    """Keys cannot be moved by a rotation; the message says why."""


class Rotation:
    """Moves keys of one rotary module back along the sequence."""

    def __init__(self, rope: Any, positions: int) -> None:
        """`rope` is a vLLM rotary embedding, `positions` the longest shift plus one.

        Raises:
            NotRotary: the module keeps no plain table of angles, or does not behave as a rotation.
        """
        compute = getattr(rope, "_compute_cos_sin_cache", None)
        if compute is None or inspect.signature(compute).parameters:
            raise NotRotary(f"{type(rope).__name__} has no plain table of angles")
        # The module's own buffer has the model's dtype; the table is computed again for its float32 precision.
        table = compute()[:positions].float().cpu()
        half = table.shape[1] // 2
        magnitude = table[:1, :half]  # cos 0 times the attention factor of scaled schemes
        self.cos = (table[:, :half] / magnitude).contiguous()  # (positions, rotary_dim / 2)
        self.sin = (table[:, half:] / magnitude).contiguous()
        dims = torch.arange(half)
        # GPT-J style turns neighbouring dimensions together, NeoX style those half the rotary dimension apart.
        self.first = dims if rope.is_neox_style else 2 * dims
        self.second = dims + half if rope.is_neox_style else 2 * dims + 1
        self._check(rope)

    def back(
        self, first: torch.Tensor, second: torch.Tensor, delta: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Both halves of each pair, `delta` positions earlier.

        `first` and `second`: float32, (blocks, rows, rotary_dim / 2); `delta`: int64, (blocks,), on the CPU.
        """
        cos = self.cos[delta].unsqueeze(1).to(first.device)
        sin = self.sin[delta].unsqueeze(1).to(first.device)
        return first * cos + second * sin, second * cos - first * sin

    def _check(self, rope: Any) -> None:
        """Compare with the module itself: a key at p, moved back by delta, must be the key at p - delta."""
        last = self.cos.shape[0] - 1
        delta = min(1000, last // 2)
        late = torch.tensor([delta, delta + 1, (delta + last) // 2, last])
        device, dtype = rope.cos_sin_cache.device, rope.cos_sin_cache.dtype
        seeded = torch.Generator().manual_seed(0)
        keys = torch.rand(len(late), 1, rope.head_size, generator=seeded).mul(2).sub(1)

        def rotated(positions: torch.Tensor) -> torch.Tensor:
            key = keys.to(device, dtype).view(len(late), -1).clone()
            _, key = rope(positions.to(device), key.clone(), key)
            return key.view(keys.shape).float().cpu()

        moved = rotated(late)
        first, second = self.back(
            moved[..., self.first], moved[..., self.second], torch.full((len(late),), delta)
        )
        moved[..., self.first], moved[..., self.second] = first, second
        error = float((moved - rotated(late - delta)).abs().max())
        if not error <= _TOLERANCE.get(dtype, 0.0):  # NaN fails too
            raise NotRotary(f"{type(rope).__name__} is off by {error:.3g} when moved by {delta} positions")
