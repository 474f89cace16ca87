"""Attention calls of headloom's layers, from their observers, and of its functions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from headloom.mechanism.attention_layer import AttentionLayer, Observation
from headloom.mechanism.function import attend
from headloom.mechanism.graph import All, AttentionGraph, Keep, Top
from headloom.mechanism.masks import Mask, MaskLike, read_mask
from headloom.mechanism.positions import ALiBi, DistanceBias, Relative, Shaw
from headloom.mechanism.scores import Bilinear, Dot, ScaledDot, Score
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.score_terms import without_hidden
from headloom.tracing.sources.source import Modules, Receivers, Source
from headloom.tracing.sources.torch_functions import FunctionCall, origin

#: Every edge, for any number of keys.
_EVERY = Top(2**31 - 1)
#: Names of positions in a trace, where they differ from the layer's name.
_POSITIONS = {"shaw-keys": "shaw", "buckets": "bias"}


class _LayerObserver:
    """Observer that sends the calls of a model's layers, each with its graph."""

    def __init__(self, paths: Mapping[int, str], keep: Keep, receivers: Receivers) -> None:
        self.keep: Keep = keep if isinstance(keep, Top) else _EVERY
        self._receivers, self._paths = receivers, paths

    def __call__(self, layer: AttentionLayer, observation: Observation) -> None:
        """Send the call of a layer."""
        graph = observation.caught
        assert isinstance(graph, AttentionGraph)  # an observer that keeps Top(k) receives graphs
        call = LayerCall(
            path=self._paths[id(layer)], kind=layer.kind, queries=observation.queries.detach(),
            keys=observation.keys.detach(), values=observation.values.detach(),
            scale=observation.scale, mask=observation.mask, relative=observation.relative,
            positions=_POSITIONS.get(layer.relative, layer.relative), grids=observation.grids,
            softcap=observation.softcap,
            sinks=None if observation.sinks is None else observation.sinks.detach(),
        )  # fmt: skip
        self._receivers.take(call, graph.of_places(graph.length).detach())


def _layers(modules: Modules) -> dict[str, AttentionLayer]:
    return {path: part for path, part in modules.items() if isinstance(part, AttentionLayer)}


@contextmanager
def _calls(modules: Modules, keep: Keep, receivers: Receivers) -> Iterator[None]:
    layers = _layers(modules)
    paths = {id(layer): path or type(layer).__name__ for path, layer in layers.items()}
    observer = _LayerObserver(paths, keep, receivers)
    with ExitStack() as stack:
        for layer in layers.values():
            stack.callback(setattr, layer, "observer", layer.observer)
            layer.observer = observer
        yield


SOURCE = Source(_layers, _calls)


def headloom_function(function: FunctionCall) -> object:
    """Record a call of `headloom.attention` or `headloom.attend` in any module."""
    bound = inspect.signature(function.func).bind(*function.args, **function.kwargs)
    bound.apply_defaults()
    arguments: Mapping[str, Any] = bound.arguments
    queries, keys, values = (
        arguments[name] if arguments[name].ndim == 4 else arguments[name][None]
        for name in ("queries", "keys", "values")
    )
    score: Score | None = arguments["score"]
    relative: Relative | None = arguments["relative"]
    mask, bias = _mask_and_bias(arguments["mask"], arguments["bias"], queries, keys)
    is_causal = _is_causal(mask, queries.shape[2], keys.shape[2])
    is_product = score is None or type(score) in (Dot, ScaledDot)
    scale = arguments["scale"]
    if scale is None:
        depth = queries.shape[-1]
        scale = max(depth, 1) ** -0.5 if score is None else score.default_scale(depth)
    positions = "none" if relative is None and bias is None else "bias"
    if isinstance(relative, ALiBi | Shaw):
        positions = "alibi" if isinstance(relative, ALiBi) else "shaw"
    call = LayerCall(
        **origin(function, arguments["queries"], arguments["keys"], is_causal), queries=queries,
        keys=keys, values=values, scale=float(scale), mask=mask, bias=bias, relative=relative,
        softcap=arguments["softcap"], sinks=arguments["sinks"], score=None if is_product else score,
        missing=None if is_product else _no_product(score, relative), positions=positions,
        is_causal=is_causal,
    )  # fmt: skip
    output: Tensor | None = None
    if is_product:
        output = function.functions.compute(call)
    else:
        keep = function.functions.keep
        keep = Top(keys.shape[2]) if isinstance(keep, All) else keep
        _, graph = attend(queries, keys, values, score=score, **call.arguments(), keep=keep)
        function.functions.take(call, graph)
    special = function.func is attend or arguments["dropout"] or arguments["backend"] is not None
    if output is None or special or values.dtype == torch.float64:
        return function.result()
    return output if arguments["queries"].ndim == 4 else output[0]


def _mask_and_bias(
    mask: MaskLike, bias: Tensor | None, queries: Tensor, keys: Tensor
) -> tuple[Mask | None, Tensor | None]:
    """Return the mask, with the minus infinities of the bias, and the bias."""
    rule = read_mask(mask)
    if bias is None or bias.ndim > 4:
        return rule, bias
    bias = bias.reshape((1,) * (4 - bias.ndim) + tuple(bias.shape))
    return without_hidden(rule, bias, (*queries.shape[:3], keys.shape[2]))


def _is_causal(mask: Mask | None, queries: int, keys: int) -> bool:
    """Return whether a mask provably hides every later key."""
    if mask is None or queries != keys or queries < 2:
        return False
    ranges = mask.ranges(queries, keys)
    return ranges is not None and not bool((ranges[1] > torch.arange(queries) + 1).any())


def _no_product(score: Score | None, relative: Relative | None) -> str | None:
    """Return the reason why scores are not products of stored tensors; None: they are."""
    name = type(score).__name__
    if not isinstance(score, Bilinear):
        return f"its score, {name}, is not a product of queries and keys"
    if relative is None or isinstance(relative, DistanceBias):
        return None
    # A trace stores the queries after the matrix, but positions need them before it.
    return f"its positions apply to the queries before the matrix of its score, {name}"
