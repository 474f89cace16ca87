"""Linear maps to be tested, and what bfloat16 rounds their factors to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["drawn", "rounded"]


def rounded(tensor: Tensor) -> Tensor:
    """To the nearest number of 8 bits, halves away from 0, as float64."""
    bits = tensor.detach().contiguous().view(torch.int32)
    return ((bits + 0x8000) & ~0xFFFF).view(torch.float32).double()


def drawn(
    rows: int, width: int, columns: Sequence[int], *, gradients: bool
) -> tuple[Tensor, list[nn.Linear]]:
    """An input, and maps of it of which the second has no bias.

    gradients: whether the input takes one.
    """
    torch.manual_seed(rows + width)
    maps = [nn.Linear(width, n, bias=place != 1) for place, n in enumerate(columns)]
    return torch.randn(rows, width, requires_grad=gradients), maps
