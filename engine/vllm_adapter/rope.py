"""Moving rotary keys along the sequence, with the very table the model turned them with.

RoPE turns pair d of a key at position p by the complex factor z(p, d) that the module keeps in a table. A key at p is
therefore moved to q by the factor z(q, d) / z(p, d): whatever scheme made the table (plain, linear, NTK, YaRN, Llama
3), its attention factor, and the rounding of its entries to the model's dtype all cancel. What is left is one more
rounding of the key to the cache's dtype per move.
"""

from typing import Any

import torch

# Largest error seen by `_check` for keys in [-1, 1): two roundings of the key itself, with room to spare.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 5e-3}


Factors = tuple[torch.Tensor, torch.Tensor]  # real and imaginary part, float32


class NotRotary(ValueError):
    """Keys cannot be moved by a rotation; the message says why."""


class Rotation:
    """Moves keys of one rotary module."""

    def __init__(self, rope: Any, positions: int) -> None:
        """`rope` is a vLLM rotary embedding; positions are below `positions`.

        Raises:
            NotRotary: the module keeps no plain table, or does not turn keys as the table says.
        """
        table = getattr(rope, "cos_sin_cache", None)
        if not isinstance(table, torch.Tensor) or table.dim() != 2:
            raise NotRotary(f"{type(rope).__name__} has no plain table of angles")
        half = table.shape[1] // 2
        table = table[:positions].float()
        self._factors = torch.complex(table[:, :half].contiguous(), table[:, half:].contiguous())
        self._inverses = self._factors.reciprocal()
        dims = torch.arange(half)
        # GPT-J style turns neighbouring dimensions together, NeoX style those half the rotary dimension apart.
        self.first = dims if rope.is_neox_style else 2 * dims
        self.second = dims + half if rope.is_neox_style else 2 * dims + 1
        self._check(rope)

    def between(self, before: torch.Tensor, after: torch.Tensor) -> Factors:
        """Factors that move keys between positions: the positions' shape + (pairs,).

        Positions past the table's end are those of slots in a last block that hold no token; any factor will do.
        """
        device, last = self._factors.device, self._factors.shape[0] - 1
        before, after = (positions.clamp(max=last).to(device) for positions in (before, after))
        factors = self._factors[after] * self._inverses[before]
        return factors.real.contiguous(), factors.imag.contiguous()

    def _check(self, rope: Any) -> None:
        """Compare with the module itself: a key at p, moved to q, must be the key at q."""
        last = self._factors.shape[0] - 1
        before = torch.tensor([last, last // 2 + 1, last // 3 + 1, 1])
        after = torch.tensor([last // 3, 1, last // 3, 0])
        device, dtype = rope.cos_sin_cache.device, rope.cos_sin_cache.dtype
        seeded = torch.Generator().manual_seed(0)
        keys = torch.rand(len(before), rope.head_size, generator=seeded).mul(2).sub(1)

        def at(positions: torch.Tensor) -> torch.Tensor:
            key = keys.to(device, dtype)  # the module may turn its arguments in place
            _, turned = rope(positions.to(device), key.clone(), key.clone())
            result: torch.Tensor = turned.view(keys.shape).float()
            return result

        moved = at(before)
        first, second = moved[:, self.first], moved[:, self.second]
        first, second = turn(first, second, self.between(before, after))
        moved[:, self.first], moved[:, self.second] = first, second
        error = float((moved - at(after)).abs().max())
        if not error <= _TOLERANCE.get(dtype, 0.0):  # NaN fails too
            raise NotRotary(f"keys of {type(rope).__name__} are off by {error:.3g} when moved")


def turn(
    first: torch.Tensor, second: torch.Tensor, factors: Factors
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both elements of each pair, float32, turned by factors of a shape that broadcasts."""
    cos, sin = factors
    return (first * cos).addcmul_(second, sin, value=-1), (second * cos).addcmul_(first, sin)
