"""Models that do not use the attention interface: dense weights from the outputs of layers.

The weights are removed from the outputs, so that memory holds only those of one layer.
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


def run_dense(model: nn.Module, inputs: Inputs, receive: Callable[[LayerCall], object]) -> object:
    """Run a model of Transformers and send the dense weights of each layer to `receive`.

    Args:
        model: in evaluation mode.
        inputs: its arguments.
        receive: called with the call of each layer.

    Returns: the output of the model.

    Raises: InputError: its weights are a band around each query, as in Longformer; or it fails
    when it is to return weights.
    """
    if hasattr(model.config, "attention_window"):
        raise InputError(
            f"trace: {type(model).__name__} does not use the attention interface of Transformers, "
            "and its weights are a band around each query, not a matrix. docs/tracing.md lists "
            "models that can be traced."
        )
    batch, calls = batch_of(inputs), 0

    def take(call: LayerCall) -> None:
        nonlocal calls
        calls += 1
        receive(call)

    config: Any = model.config
    before = config._attn_implementation_internal
    takes = inspect.signature(model.forward).parameters
    asks = "output_attentions" in takes or any(p.kind is p.VAR_KEYWORD for p in takes.values())
    with ExitStack() as stack:
        stack.callback(setattr, config, "_attn_implementation_internal", before)
        # Fused attention has no weights to return.
        config._attn_implementation_internal = "eager"
        stack.enter_context(_without_new_hooks(model))
        for path, module in named_modules(model):
            if takes_attention(type(module).__name__):
                hook = _taking(path, batch, take)
                stack.callback(module.register_forward_hook(hook).remove)
        try:
            output: object = model(**{**inputs, **({"output_attentions": True} if asks else {})})
        except HeadloomError:
            raise
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(". ")
            raise NothingRecordedError(
                f"trace: {type(model).__name__} does not use the attention interface of "
                f"Transformers, and fails with output_attentions=True: {reason}."
            ) from error
    if calls:
        warnings.warn(
            f"{type(model).__name__} does not use the attention interface of Transformers: its "
            "trace has dense weights, formed one layer at a time, and no queries and keys.",
            stacklevel=4,
        )
    return output


@contextmanager
def _without_new_hooks(model: nn.Module) -> Iterator[None]:
    """Remove the hooks that Transformers leaves on a model that returns its weights."""
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


def _taking(path: str, batch: int, receive: Callable[[LayerCall], object]) -> Callable[..., object]:
    """Return a hook that removes dense weights from the output of a module."""

    def without_weights(module: nn.Module, value: object) -> object:
        if isinstance(value, tuple | list):
            parts = [without_weights(module, inner) for inner in value]
            if all(new is old for new, old in zip(parts, value, strict=True)):
                return value
            make: Any = getattr(type(value), "_make", type(value))  # a named tuple
            return make(parts)
        weights = _weights_of(value, batch)
        if weights is None:
            return value
        receive(_call(path, module, weights))
        # Inner modules return first, so their parents find no weights any more.
        return weights.new_zeros((0,) * 4)

    def hook(module: nn.Module, _: object, output: object) -> object:
        return without_weights(module, output) if isinstance(output, tuple | list) else None

    return hook


def _call(path: str, module: nn.Module, weights: Tensor) -> LayerCall:
    """Return a call with these weights, (batch, heads, queries, keys)."""
    causal = weights.shape[-2] == weights.shape[-1] and is_causal(weights)
    queries = weights.new_zeros(*weights.shape[:3], 1, dtype=torch.float32)
    keys = weights.new_zeros(*weights.shape[:2], weights.shape[3], 1, dtype=torch.float32)
    return LayerCall(
        path, layer_kind(path, module, causal), queries, keys, keys, scale=1.0,
        bias=weights.float().log(), positions="bias", weights_only=True,
    )  # fmt: skip


def _weights_of(value: object, batch: int) -> Tensor | None:
    """Return a tensor as weights, (batch, heads, queries, keys); None: it holds no weights.

    Their rows sum to 1, or to 0. Some models have them as (queries, keys, batch, heads).
    """
    if not isinstance(value, Tensor) or value.ndim != 4 or not value.is_floating_point():
        return None
    near = 1e-3 if value.dtype == torch.float32 else 2e-2
    turned = value.permute(2, 3, 0, 1)
    for weights in (value, turned) if len(turned) == batch else (value,):
        sums = weights.float().sum(-1)
        whole = bool((((sums - 1).abs() < near) | (sums == 0)).all()) and bool(sums.any())
        if whole and not bool((value < 0).any()):
            return weights
    return None
