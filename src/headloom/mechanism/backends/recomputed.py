"""Functions of tensors that are computed again for their derivatives, as often as these are asked.

A kernel that has its own backward pass gives gradients that torch cannot differentiate. They can be
had from a formula of the same results in operations that it can; what the formula needs on its way
is recomputed and never kept, so that memory stays linear whatever the order of the derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Function", "applied", "batched", "by_operations", "products_again"]

#: From tensors to tensors.
Function = Callable[..., tuple[Tensor, ...]]


def applied(function: type[torch.autograd.Function], *arguments: object) -> tuple[Tensor, ...]:
    """The results of an autograd function that has several."""
    apply: Callable[..., tuple[Tensor, ...]] = function.apply
    return apply(*arguments)


def _products(
    function: Function, tensors: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The gradients of a function of tensors, from those of its results; differentiable again."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # As views, tensors that are one and the same have each their own gradient.
        inputs = [
            tensor.view_as(tensor)
            if again and tensor.requires_grad
            else tensor.detach().requires_grad_()
            for tensor in tensors
        ]
        pairs = [
            (result, gradient)
            for result, gradient in zip(function(*inputs), gradients, strict=True)
            if result.requires_grad
        ]
        results, by_results = zip(*pairs, strict=True) if pairs else ((), ())
        by_input = (
            torch.autograd.grad(results, inputs, by_results, create_graph=again, allow_unused=True)
            if pairs
            else [None] * len(inputs)
        )
    return tuple(
        torch.zeros_like(tensor) if gradient is None else gradient
        for tensor, gradient in zip(tensors, by_input, strict=True)
    )


class _Recomputed(torch.autograd.Function):
    """A function of tensors that keeps nothing but these; differentiable as often as asked."""

    @staticmethod
    def forward(ctx: Any, function: Function, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.function = function
        ctx.save_for_backward(*tensors)
        return function(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return None, *products_again(ctx.function, ctx.saved_tensors, gradients)


def batched(tensors: Iterable[Tensor | None]) -> bool:
    """Whether one of the tensors stands for several, as gradients do by is_grads_batched=True.

    Such have no memory that a kernel could read, and no numbers that could be looked at.
    """
    functorch = torch._C._functorch
    return any(
        functorch.is_legacy_batchedtensor(tensor) or functorch.is_batchedtensor(tensor)
        for tensor in tensors
        if tensor is not None
    )


def by_operations(gradients: Iterable[Tensor | None]) -> bool:
    """Whether a backward pass is to go by torch's operations, not by a kernel.

    It is where its results are to be differentiated again, and where it is asked for several.
    """
    return torch.is_grad_enabled() or batched(gradients)


def _recomputed(function: Function, *tensors: Tensor) -> tuple[Tensor, ...]:
    again = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    # An autograd function's results would be cut off where they stand for several.
    if again and not batched(tensors):
        return applied(_Recomputed, function, *tensors)
    return function(*tensors)


def products_again(
    function: Function, tensors: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The gradients of a function, from those of its results.

    Recomputed where they are differentiated again.
    """
    count = len(tensors)

    def products(*both: Tensor) -> tuple[Tensor, ...]:
        return _products(function, both[:count], both[count:])

    return _recomputed(products, *tensors, *gradients)
