"""The attention of headloom's graph layers: who looks at whom among the nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from headloom.errors import InputError
from headloom.formats.terms import Terms
from headloom.formats.trace import LayerInMemory, TraceData, TraceLayer
from headloom.mechanism.graph import All, AttentionGraph, Keep, Top
from headloom.mechanism.graph_layer import GraphLayer
from headloom.mechanism.module_paths import named_modules
from headloom.mechanism.neighbourhood.call import NeighbourCall
from headloom.mechanism.neighbourhood.function import neighbour_graph, neighbour_weights
from headloom.tracing.description import describe
from headloom.tracing.model_state import evaluation_mode
from headloom.tracing.recording.layer_call import OVER_EDGES, LayerCall
from headloom.tracing.sources import geometric
from headloom.tracing.sources.geometric import graph_of_edges
from headloom.tracing.sources.source import Receivers, Source

__all__ = ["SOURCE", "reads_a_graph", "trace_nodes"]

#: Told of each call of a graph layer: its path, the call, and whether one tensor gives all nodes.
Told = Callable[[str, NeighbourCall, bool], None]


def _layers(model: nn.Module) -> Mapping[str, GraphLayer]:
    """The graph layers of a model, by their paths."""
    return {path: module for path, module in named_modules(model) if isinstance(module, GraphLayer)}


def reads_a_graph(model: nn.Module) -> bool:
    """Whether layers of a model attend over the edges of a graph, which has no beginning."""
    return bool(_layers(model) or geometric.SOURCE.layers(model))


@contextmanager
def _observed(model: nn.Module, told: Told) -> Iterator[None]:
    """Be told of every call of a model's graph layers, while the block runs."""
    layers = {layer: path for path, layer in _layers(model).items()}
    before = {layer: layer.observer for layer in layers}

    def observe(layer: GraphLayer, call: NeighbourCall, of_one: bool) -> None:
        told(layers[layer], call, of_one)

    try:
        for layer in layers:
            layer.observer = observe
        yield
    finally:
        for layer, observer in before.items():
            layer.observer = observer


@torch.no_grad()
def _graph_of(call: NeighbourCall, places: int | None) -> AttentionGraph:
    """The graph of a call, (heads, targets, places); of several edges between two nodes the sum.

    places: edges kept of each node; None: all.
    """
    edges = call.edges
    degree = int(edges.row_starts.diff().max()) if edges.targets else 0
    places = degree if places is None else min(places, degree)
    pairs = edges.rows.long() * max(edges.sources, 1) + edges.columns.long()
    if len(torch.unique(pairs)) == len(pairs):
        return neighbour_graph(call, places)
    weights = edges.by_place(neighbour_weights(call))
    graph: AttentionGraph = graph_of_edges(
        edges.rows, edges.columns, weights, edges.targets, edges.sources, Top(places)
    )[0]
    return graph


@contextmanager
def _calls(model: nn.Module, keep: Keep, receivers: Receivers) -> Iterator[None]:
    places = None if isinstance(keep, All) else keep.k

    def told(path: str, call: NeighbourCall, of_one: bool) -> None:
        graph = _graph_of(call, places).as_batch()
        name, kind = path or type(model).__name__, "encoder" if of_one else "cross"
        receivers.take(LayerCall.over_edges(name, kind, graph), graph)

    with _observed(model, told):
        yield


SOURCE = Source(_layers, _calls)


def trace_nodes(
    model: nn.Module,
    inputs: Mapping[str, Any],
    names: Sequence[str],
    *,
    places: int | None = None,
) -> TraceData:
    """Run a model of graph layers once, and keep the attention of every layer over the nodes.

    Nodes are the positions of the trace: a query is the node that looks, a key one it looks at.
    Queries and keys are not kept: a score of graph attention is more than their product, so that a
    layer has no `matrix`; its graph holds all of it.

    Args:
        model: with layers `headloom.GATConv` or `headloom.GATv2Conv`; left as it was.
        inputs: what it takes, by name.
        names: of the nodes.
        places: edges kept of each node, the strongest; None: all.

    Raises: InputError: the model has no such layers; names for another number of nodes.
    """
    if not _layers(model):
        raise InputError(
            f"trace_nodes: {type(model).__name__} has no graph layers of headloom "
            f"(headloom.GATConv, "
            "headloom.GATv2Conv). Only these can be traced."
        )
    tokens = list(names)
    made: list[TraceLayer] = []

    def told(path: str, call: NeighbourCall, of_one: bool) -> None:
        edges = call.edges
        if not edges.targets == edges.sources == len(tokens):
            raise InputError(
                f"trace_nodes: {len(tokens)} names, layer {path} has {edges.targets} nodes that "
                f"look and {edges.sources} looked at. Give a name for each, of one kind of nodes."
            )
        graph = _graph_of(call, places)
        made.append(
            TraceLayer(
                name=path,
                kind="encoder",
                index=len(made),
                shape=(call.heads, edges.targets, edges.sources),
                queries_from="tokens",
                keys_from="tokens",
                query_tokens=tokens,
                key_tokens=tokens,
                scale=1.0,
                data=LayerInMemory(graph, None, Terms(missing=OVER_EDGES, mask_known=False)),
            )
        )

    with evaluation_mode(model), torch.no_grad(), _observed(model, told):
        model(**inputs)
    return TraceData({"tokens": tokens}, tuple(made), describe(model))
