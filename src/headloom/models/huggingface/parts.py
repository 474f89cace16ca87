"""Parts of headloom's models, filled from the tensors of a folder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headloom.mechanism.multihead import MultiHeadAttention
from headloom.models.huggingface.folder import Tensors

__all__ = ["copied", "fill_attention", "fill_linear", "fill_norm", "fill_table"]


def copied(parameter: Tensor, tensor: Tensor) -> None:
    """Put numbers in the place of a parameter's."""
    with torch.no_grad():
        parameter.copy_(tensor)


def fill_table(tensors: Tensors, name: str, table: nn.Embedding) -> None:
    """An embedding."""
    copied(table.weight, tensors.take(name, tuple(table.weight.shape)))


def fill_linear(
    tensors: Tensors, name: str, linear: nn.Linear, *, transposed: bool = False
) -> None:
    """A linear map; a bias that the folder lacks is 0.

    transposed: whether the folder has the matrix as (inputs, outputs).
    """
    sizes = tuple(linear.weight.shape)
    if transposed:
        copied(linear.weight, tensors.take(f"{name}.weight", sizes[::-1]).T)
    else:
        copied(linear.weight, tensors.take(f"{name}.weight", sizes))
    if linear.bias is not None:
        has_one = tensors.has(f"{name}.bias")
        bias = tensors.take(f"{name}.bias", sizes[:1]) if has_one else torch.zeros(sizes[0])
        copied(linear.bias, bias)


def fill_norm(tensors: Tensors, name: str, norm: nn.Module) -> None:
    """A norm, with its bias where it has one."""
    for part, parameter in norm.named_parameters():
        copied(parameter, tensors.take(f"{name}.{part}", tuple(parameter.shape)))


def fill_attention(
    tensors: Tensors, names: tuple[str, str, str, str], layer: MultiHeadAttention
) -> None:
    """W_Q, W_K, W_V and W_O by their names."""
    maps = layer.w_q, layer.w_k, layer.w_v, layer.w_o
    for name, linear in zip(names, maps, strict=True):
        fill_linear(tensors, name, linear)
