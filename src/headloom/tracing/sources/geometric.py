"""Attention layers of PyTorch Geometric: who looks at whom among the nodes of a graph.

A layer of `MessagePassing` that takes attention computes a weight for each edge, which its messages
are multiplied by. Weights are taken of the layers whose weights PyTorch Geometric itself gives out
(`return_attention_weights`), where they are: in what is passed along the edges, or in the layer.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.mechanism.graph import All, AttentionGraph, Keep
from headloom.mechanism.module_paths import named_modules
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.sources.source import Receivers, Source

__all__ = ["SOURCE", "graph_of_edges", "unknown_layers"]

#: Classes whose weights are known, and those of their file that derive from them.
_KNOWN = ("GATConv", "GATv2Conv", "TransformerConv")


def _layers(model: nn.Module) -> Mapping[str, nn.Module]:
    """The layers of a model whose weights can be taken. The library is not loaded for that."""
    convolutions = sys.modules.get("torch_geometric.nn.conv")
    if convolutions is None:
        return {}
    known = tuple(getattr(convolutions, name) for name in _KNOWN)
    return {path: module for path, module in named_modules(model) if isinstance(module, known)}


def unknown_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers of a model that take a softmax over edges, and whose weights cannot be taken."""
    convolutions = sys.modules.get("torch_geometric.nn.conv")
    if convolutions is None:
        return {}
    known = _layers(model)
    return {
        path: module
        for path, module in named_modules(model)
        if isinstance(module, convolutions.MessagePassing)
        and path not in known
        and any(
            "softmax" in method.__code__.co_names
            for kind in type(module).__mro__
            for method in vars(kind).values()
            if inspect.isfunction(method)
        )
    }


@contextmanager
def _calls(model: nn.Module, keep: Keep, receivers: Receivers) -> Iterator[None]:
    nodes: dict[str, Any] = {}

    def begin(path: str, _: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        nodes[path] = args[0] if args else keywords.get("x")

    def take(path: str, layer: Any, given: tuple[Any, ...], _: Tensor) -> None:
        two = nodes[path] if isinstance(nodes[path], tuple) else (None, None)
        two_types = two[1] is not None and two[0] is not two[1]
        receivers.take(*_recorded(path, layer, given, keep, two_types))

    with ExitStack() as stack:
        for path, layer in _layers(model).items():
            before = layer.register_forward_pre_hook(partial(begin, path), with_kwargs=True)
            hook = layer.register_propagate_forward_hook(partial(take, path))  # type: ignore[operator]
            stack.callback(before.remove)
            stack.callback(hook.remove)
        yield


SOURCE = Source(_layers, _calls)


def _recorded(
    path: str, layer: Any, given: tuple[Any, ...], keep: Keep, two_types: bool
) -> tuple[LayerCall, AttentionGraph]:
    """A call of a layer, when its messages have been passed."""
    edges, size, passed = given
    name = path or type(layer).__name__
    if not isinstance(edges, Tensor) or edges.layout != torch.strided:
        raise InputError(
            f"trace: the edges of {name} are a sparse matrix; give edge_index, (2, edges)."
        )
    weights = passed.get("alpha")
    weights = layer._alpha if weights is None else weights
    # Sources and targets: one tensor for both, or two.
    nodes = passed["x"] if "x" in passed else (passed["key"], passed["query"])
    nodes = nodes if isinstance(nodes, tuple) else (nodes, nodes)
    counts = [
        part.shape[0] if part is not None else own or nodes[0].shape[0]
        for part, own in zip(nodes, size or (None, None), strict=True)
    ]
    looked, looking = (0, 1) if layer.flow == "source_to_target" else (1, 0)
    graph = graph_of_edges(
        edges[looking], edges[looked], weights.detach(), counts[looking], counts[looked], keep
    )
    call = LayerCall.over_edges(name, "encoder", graph)
    if two_types or counts[0] != counts[1]:
        call.kind = "cross"
    # As PyTorch Geometric calls the layer of an edge type: <author___writes___paper>.
    types = re.fullmatch("<?(.+?)_{2,3}.+?_{2,3}(.+?)>?", name.rpartition(".")[2])
    if types is not None:
        call.sequences = types[1 + looking], types[1 + looked]
    return call, graph


def graph_of_edges(
    queries: Tensor, keys: Tensor, weights: Tensor, rows: int, columns: int, keep: Keep
) -> AttentionGraph:
    """The weights of edges as a graph; of several edges between two nodes the sum.

    Args:
        queries, keys: the ends of each edge, (edges,). weights: (edges, heads), or (edges,).
        rows, columns: how many nodes look, and are looked at.
        keep: edges of each node.

    >>> graph = graph_of_edges(torch.tensor([0, 0, 0]), torch.tensor([1, 0, 1]),
    ...                        torch.tensor([0.25, 0.5, 0.25]), 1, 2, All())
    >>> graph.keys[0, 0].tolist(), graph.weights[0, 0].tolist()
    ([[0, 1]], [[0.5, 0.5]])
    """
    weights = weights.reshape(len(queries), -1).float()
    heads = weights.shape[1]
    pairs, where = torch.unique(queries.long() * columns + keys.long(), return_inverse=True)
    summed = weights.new_zeros(len(pairs), heads).index_add(0, where, weights)
    row, column = pairs // max(columns, 1), pairs % max(columns, 1)
    degree = torch.bincount(row, minlength=rows)
    most = int(degree.max()) if rows else 0
    # Pairs are in the order of their rows: the place of each within its own.
    place = torch.arange(len(pairs), device=row.device) - (degree.cumsum(0) - degree)[row]
    whole = weights.new_zeros(heads, rows, most)
    ends = torch.full((heads, rows, most), -1, dtype=torch.int64, device=row.device)
    whole[:, row, place], ends[:, row, place] = summed.mT, column
    there = ends >= 0
    order = torch.where(there, whole, -1.0).sort(dim=-1, descending=True, stable=True).indices
    kept = most if isinstance(keep, All) else min(keep.k, most)
    whole_kept, ends_kept = (tensor.gather(-1, order)[..., :kept] for tensor in (whole, ends))
    return AttentionGraph(
        keys=ends_kept.to(torch.int32)[None],
        scores=torch.where(ends_kept >= 0, whole_kept.log(), -torch.inf)[None],
        weights=whole_kept[None],
        lse=torch.where(degree > 0, whole.sum(-1).log(), -torch.inf)[None],
        entropy=torch.special.entr(whole).sum(-1)[None],
        rest=(whole.sum(-1) - whole_kept.sum(-1)).clamp(min=0)[None],
        count=degree.to(torch.int32).expand(1, heads, rows).contiguous(),
        length=columns,
    )
