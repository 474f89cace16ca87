"""Attention calls of headloom's own layers, seen by observers of these, and of its functions."""

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
from headloom.tracing.sources.torch_functions import FunctionCall, whence

#: As many edges as there are keys, whatever their number.
_EVERY = Top(2**31 - 1)
#: What a trace calls the positions of a layer, where that is not what the layer does.
_POSITIONS = {"shaw-keys": "shaw", "buckets": "bias"}


class _LayerObserver:
    """Hands on the calls of a model's layers, each with its graph."""

    def __init__(self, paths: Mapping[int, str], keep: Keep, receivers: Receivers) -> None:
        self.keep: Keep = keep if isinstance(keep, Top) else _EVERY
        self._receivers, self._paths = receivers, paths

    def __call__(self, layer: AttentionLayer, observation: Observation) -> None:
        """Receive what a layer computed."""
        seen, graph = observation, observation.caught
        assert isinstance(graph, AttentionGraph)  # an observer that keeps Top(k) is given graphs
        call = LayerCall(
            path=self._paths[id(layer)],
            kind=layer.kind,
            queries=seen.queries.detach(),
            keys=seen.keys.detach(),
            values=seen.values.detach(),
            scale=seen.scale,
            mask=seen.mask,
            relative=seen.relative,
            positions=_POSITIONS.get(layer.relative, layer.relative),
            grids=seen.grids,
            softcap=seen.softcap,
            sinks=None if seen.sinks is None else seen.sinks.detach(),
        )
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


def headloom_function(asked: FunctionCall) -> object:
    """Have a call of `headloom.attention` or `headloom.attend` in somebody's module recorded."""
    bound = inspect.signature(asked.func).bind(*asked.args, **asked.kwargs)
    bound.apply_defaults()
    given: Mapping[str, Any] = bound.arguments
    queries, keys, values = (
        given[name] if given[name].ndim == 4 else given[name][None]
        for name in ("queries", "keys", "values")
    )
    score: Score | None = given["score"]
    relative: Relative | None = given["relative"]
    mask, bias = _mask_and_bias(given["mask"], given["bias"], queries, keys)
    looks_back = _looks_back(mask, queries.shape[2], keys.shape[2])
    is_product = score is None or type(score) in (Dot, ScaledDot)
    scale = given["scale"]
    if scale is None:
        depth = queries.shape[-1]
        scale = max(depth, 1) ** -0.5 if score is None else score.default_scale(depth)
    positions = "none" if relative is None and bias is None else "bias"
    if isinstance(relative, ALiBi | Shaw):
        positions = "alibi" if isinstance(relative, ALiBi) else "shaw"
    call = LayerCall(
        **whence(asked, given["queries"], given["keys"], looks_back),
        queries=queries,
        keys=keys,
        values=values,
        scale=float(scale),
        mask=mask,
        bias=bias,
        relative=relative,
        softcap=given["softcap"],
        sinks=given["sinks"],
        score=None if is_product else score,
        missing=None if is_product else _no_product(score, relative),
        positions=positions,
        is_causal=looks_back,
    )
    output: Tensor | None = None
    if is_product:
        output = asked.functions.compute(call)
    else:
        keep = asked.functions.keep
        keep = Top(keys.shape[2]) if isinstance(keep, All) else keep
        _, graph = attend(queries, keys, values, score=score, **call.arguments(), keep=keep)
        asked.functions.take(call, graph)
    own = asked.func is attend or given["dropout"] or given["backend"] is not None
    if output is None or own or values.dtype == torch.float64:
        return asked.own()
    return output if given["queries"].ndim == 4 else output[0]


def _mask_and_bias(
    mask: MaskLike, bias: Tensor | None, queries: Tensor, keys: Tensor
) -> tuple[Mask | None, Tensor | None]:
    """The mask, which says whom minus infinities of the bias hide too, and the bias."""
    rule = read_mask(mask)
    if bias is None or bias.ndim > 4:
        return rule, bias
    bias = bias.reshape((1,) * (4 - bias.ndim) + tuple(bias.shape))
    return without_hidden(rule, bias, (*queries.shape[:3], keys.shape[2]))


def _looks_back(mask: Mask | None, queries: int, keys: int) -> bool:
    """Whether no query may look at a key after it, as far as it can be said."""
    if mask is None or queries != keys or queries < 2:
        return False
    ranges = mask.ranges(queries, keys)
    return ranges is not None and not bool((ranges[1] > torch.arange(queries) + 1).any())


def _no_product(score: Score | None, relative: Relative | None) -> str | None:
    """Why the scores are no products of what a trace keeps; None: they are."""
    name = type(score).__name__
    if not isinstance(score, Bilinear):
        return f"its score, {name}, is no product of queries and keys"
    if relative is None or isinstance(relative, DistanceBias):
        return None
    # The matrix makes other queries of them, which positions must not meet.
    return f"its positions meet the queries before the matrix of its score, {name}, does"
