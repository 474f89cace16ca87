"""Linear maps to be tested, what bfloat16 rounds their factors to; results by threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

__all__ = ["drawn", "rounded", "same_on_any_number_of_threads"]


def rounded(tensor: Tensor) -> Tensor:
    """To the nearest number of 8 bits, halves away from 0, as float64."""
    bits = tensor.detach().contiguous().view(torch.int32)
    return ((bits + 0x8000) & ~0xFFFF).view(torch.float32).double()


def drawn(rows: int, width: int, columns: Sequence[int]) -> tuple[Tensor, list[nn.Linear]]:
    """An input that takes a gradient, and maps of it of which the second has no bias."""
    torch.manual_seed(rows + width)
    maps = [nn.Linear(width, n, bias=place != 1) for place, n in enumerate(columns)]
    return torch.randn(rows, width, requires_grad=True), maps


def same_on_any_number_of_threads(results: Callable[[], Sequence[Tensor]]) -> bool:
    """Whether results have the same bits on 1, 2 and 5 threads."""
    before = torch.get_num_threads()
    every = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            every.append(results())
    finally:
        torch.set_num_threads(before)
    return all(
        torch.equal(a, b) for other in every[1:] for a, b in zip(other, every[0], strict=True)
    )
