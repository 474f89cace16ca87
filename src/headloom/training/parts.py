"""Tensors of which each process holds a part (DTensor), and whole ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = ["placed", "whole"]


def whole(tensor: Tensor) -> Tensor:
    """A tensor with all its parts; where it is shared, every process must ask for it."""
    shared = _shared(tensor)
    return tensor if shared is None else shared.full_tensor()


def placed(tensor: Tensor, like: Tensor) -> Tensor:
    """What this process holds of a whole tensor, where another of its shape is shared."""
    shared = _shared(like)
    if shared is None or _shared(tensor) is not None or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    # Each process has the whole: nothing is sent.
    return distribute_tensor(tensor, shared.device_mesh, shared.placements, src_data_rank=None)


def _shared(tensor: Tensor) -> DTensor | None:
    """A tensor as a shared one; None: it is whole."""
    if type(tensor) in (Tensor, nn.Parameter) and not hasattr(tensor, "full_tensor"):
        return None  # without the import, which takes a second
    from torch.distributed.tensor import DTensor

    return tensor if isinstance(tensor, DTensor) else None
