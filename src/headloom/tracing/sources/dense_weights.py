"""Attention calls of models that do not use the interface: dense weights, a layer at a time.

Such models return the weights of every layer when they are asked for them, and would hold them all
until the end. Here each is taken where its layer returns it, and nothing goes on in its place, so
that memory holds one.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import HeadloomError, InputError
from headloom.mechanism.watching import named_modules
from headloom.tracing.arguments import Inputs, batch_of
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.sequences import layer_kind
from headloom.tracing.sources.source import takes_attention
from headloom.tracing.sources.tensors import is_causal
from headloom.tracing.sources.transformers import NothingRecordedError

__all__ = ["run_dense"]

Receive = Callable[[LayerCall], object]


def run_dense(model: nn.Module, inputs: Inputs, receive: Receive) -> object:
    """Run a model of Transformers and hand over the dense weights of each layer as its call.

    Args:
        model: in evaluation mode.
        inputs: its arguments.
        receive: is given each call.

    Returns: what the model gives.

    Raises: InputError: its weights are those of a band around each query, as Longformer's; or it
    fails when it is asked for them.
    """
    if hasattr(model.config, "attention_window"):
        raise InputError(
            f"trace: {type(model).__name__} does not use the attention interface of Transformers, "
            "and its weights are a band around each query, not a matrix. docs/tracing.md lists "
            "models that can be traced."
        )
    taken = False

    def take(call: LayerCall) -> None:
        nonlocal taken
        taken = True
        receive(call)

    batch = batch_of(inputs)
    config: Any = model.config
    before = config._attn_implementation_internal
    takes = inspect.signature(model.forward).parameters
    asks = {"output_attentions": True}
    if "output_attentions" not in takes and not any(
        p.kind is p.VAR_KEYWORD for p in takes.values()
    ):
        asks = {}
    with ExitStack() as stack:
        stack.callback(setattr, config, "_attn_implementation_internal", before)
        # Fused attention has no weights to return.
        config._attn_implementation_internal = "eager"
        stack.enter_context(_without_new_hooks(model))
        for path, module in named_modules(model):
            if takes_attention(module):
                hook = _taking(path, batch, take)
                stack.callback(module.register_forward_hook(hook).remove)
        try:
            output: object = model(**{**inputs, **asks})
        except HeadloomError:
            raise
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(". ")
            raise NothingRecordedError(
                f"trace: {type(model).__name__} does not use the attention interface of "
                "Transformers, and fails when it is asked for its weights "
                f"(output_attentions=True): {reason}."
            ) from error
    if taken:
        warnings.warn(
            f"{type(model).__name__} does not use the attention interface of Transformers: its "
            "weights are formed whole, one layer at a time, and its trace has no queries and keys.",
            stacklevel=4,
        )
    return output


@contextmanager
def _without_new_hooks(model: nn.Module) -> Iterator[None]:
    """Take away the hooks that Transformers leaves on a model that was asked for its weights."""
    mark = "_output_capturing_hooks_installed"
    before = [(m, dict(m._forward_hooks), vars(m).get(mark)) for m in model.modules()]
    try:
        yield
    finally:
        for module, hooks, marked in before:
            if marked is None:
                vars(module).pop(mark, None)
            for number in [number for number in module._forward_hooks if number not in hooks]:
                for table in (module._forward_hooks, module._forward_hooks_with_kwargs):
                    table.pop(number, None)


def _taking(path: str, batch: int, receive: Receive) -> Callable[..., Any]:
    """A hook that takes dense weights out of what a module returns."""

    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        left = taken(module, output) if isinstance(output, (tuple, list)) else output
        return None if left is output else left

    def taken(module: nn.Module, value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            left = [taken(module, inner) for inner in value]
            if all(new is old for new, old in zip(left, value, strict=True)):
                return value
            # A named tuple is made from its fields.
            return getattr(type(value), "_make", type(value))(left)
        weights = _weights_of(value, batch)
        if weights is None:
            return value
        receive(_call(path, module, weights))
        # What is inside a layer returns first: its parents find nothing to take any more.
        return value.new_zeros((0,) * 4)

    return hook


def _call(path: str, module: nn.Module, weights: Tensor) -> LayerCall:
    """A call that gives these weights, (batch, heads, queries, keys).

    Its scores are the logarithms of its weights: the true ones less a number for each row.
    """
    causal = weights.shape[-2] == weights.shape[-1] and is_causal(weights)
    queries = weights.new_zeros(*weights.shape[:3], 1, dtype=torch.float32)
    keys = weights.new_zeros(*weights.shape[:2], weights.shape[3], 1, dtype=torch.float32)
    return LayerCall(
        path=path,
        kind=layer_kind(path, module, causal),
        queries=queries,
        keys=keys,
        values=keys,
        scale=1.0,
        bias=weights.float().log(),
        positions="bias",
        weights_only=True,
    )


def _weights_of(value: Any, batch: int) -> Tensor | None:
    """A tensor as weights, (batch, heads, queries, keys); None: it is none.

    Their rows sum to 1, or to 0. Some models have them as (queries, keys, batch, heads).
    """
    if not isinstance(value, Tensor) or value.ndim != 4 or not value.is_floating_point():
        return None
    if not value.numel() or bool((value < 0).any()):
        return None
    if _sum_to_one(value):
        return value
    turned = value.permute(2, 3, 0, 1)
    return turned if len(turned) == batch and _sum_to_one(turned) else None


def _sum_to_one(weights: Tensor) -> bool:
    sums = weights.float().sum(-1)
    near = 1e-3 if weights.dtype == torch.float32 else 2e-2
    return bool((((sums - 1).abs() < near) | (sums == 0)).all()) and bool(sums.any())
