"""Models that do not use the attention interface: dense weights, one layer at a time.

Such models return the weights of every layer when they are asked for them, and would hold them all
until the end. Here each is taken where its layer returns it, and nothing goes on in its place, so
that memory holds one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import InputError

__all__ = ["run_dense"]

Receive = Callable[[str, nn.Module, Tensor], None]


def run_dense(model: nn.Module, inputs: Mapping[str, Any], receive: Receive) -> None:
    """Run a model of Transformers and hand over the dense weights of each layer.

    Args:
        model: in evaluation mode.
        inputs: its arguments.
        receive: from path, module and weights, (batch, heads, queries, keys).

    Raises: InputError: its weights are those of a band around each query, as Longformer's.
    """
    if hasattr(model.config, "attention_window"):
        raise InputError(
            f"trace: {type(model).__name__} does not use the attention interface of Transformers, "
            "and its weights are a band around each query, not a matrix. docs/tracing.md lists "
            "models that can be traced."
        )
    warnings.warn(
        f"{type(model).__name__} does not use the attention interface of Transformers: its "
        "weights are formed whole, one layer at a time, and its trace is not verified and has no "
        "queries and keys.",
        stacklevel=4,
    )
    batch = next(len(value) for value in inputs.values() if isinstance(value, Tensor))
    config: Any = model.config
    before = config._attn_implementation_internal
    with ExitStack() as stack:
        stack.callback(setattr, config, "_attn_implementation_internal", before)
        # Fused attention has no weights to return.
        config._attn_implementation_internal = "eager"
        for path, module in model.named_modules():
            hook = _taking(path, batch, receive)
            stack.callback(module.register_forward_hook(hook).remove)
        model(**{**inputs, "output_attentions": True})


def _taking(path: str, batch: int, receive: Receive) -> Callable[..., Any]:
    """A hook that takes dense weights out of what a module returns."""

    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        if not isinstance(output, tuple):
            return None
        found = [place for place, value in enumerate(output) if _are_weights(value, batch)]
        if not found:
            return None
        place = found[-1]
        receive(path, module, output[place])
        # What is inside a layer returns first: its parents find nothing to take any more.
        return type(output)(
            (*output[:place], output[place].new_zeros((0,) * 4), *output[place + 1 :])
        )

    return hook


def _are_weights(value: Any, batch: int) -> bool:
    """Whether a tensor is (batch, heads, queries, keys), with rows that sum to 1, or to 0."""
    if not isinstance(value, Tensor) or value.ndim != 4 or not value.is_floating_point():
        return False
    if not value.numel() or len(value) != batch or bool((value < 0).any()):
        return False
    sums = value.float().sum(-1)
    near = 1e-3 if value.dtype == torch.float32 else 2e-2
    return bool((((sums - 1).abs() < near) | (sums == 0)).all()) and bool(sums.any())
