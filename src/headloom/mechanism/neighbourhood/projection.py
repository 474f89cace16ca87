"""Learned matrices of graph layers, drawn as their papers draw them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from headloom.mechanism.linear import why_unfit

__all__ = ["Projection", "glorot", "projection"]


def glorot(tensor: Tensor) -> None:
    """Draw a tensor's numbers between ``-b`` and ``b = sqrt(6 / (rows + columns))``.

    Source: Glorot and Bengio 2010, equation 16.
    """
    bound = math.sqrt(6.0 / (tensor.shape[-2] + tensor.shape[-1]))
    nn.init.uniform_(tensor, -bound, bound)


def _draw(linear: nn.Linear) -> None:
    with torch.no_grad():
        glorot(linear.weight)
        if linear.bias is not None:
            linear.bias.zero_()


class Projection(nn.Linear):
    """A linear layer whose matrix is drawn by `glorot`, and whose bias begins at 0.

    It takes sparse inputs, (rows, inputs), too: words of a text, say, of which few occur in each.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """``inputs W^T + b``, dense."""
        try:
            if inputs.layout == torch.strided:
                return super().forward(inputs)
            product: Tensor = torch.sparse.mm(inputs, self.weight.T)
        except RuntimeError as error:
            raise why_unfit(inputs, [self]) or error from None
        return product if self.bias is None else product + self.bias

    def reset_parameters(self) -> None:
        """Draw the matrix anew."""
        _draw(self)


class _LazyProjection(nn.LazyLinear):
    """The same for inputs whose width the first call tells."""

    cls_to_become = Projection

    def reset_parameters(self) -> None:
        """Draw the matrix, once there is one."""
        if not self.has_uninitialized_params() and self.in_features != 0:
            _draw(self)


def projection(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    """A `Projection`; with inputs = -1, of as many as its first input has."""
    return _LazyProjection(outputs, bias) if inputs == -1 else Projection(inputs, outputs, bias)
