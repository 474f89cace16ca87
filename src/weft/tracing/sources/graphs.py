"""The attention of graph layers: who looks at whom among the nodes of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from weft.errors import InputError
from weft.formats.trace import LayerInMemory, TraceData, TraceLayer
from weft.mechanism.graph_layer import GraphConvolution, GraphObserver
from weft.mechanism.module_paths import named_modules
from weft.tracing.description import describe
from weft.tracing.model_state import evaluation_mode

__all__ = ["trace_nodes"]


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
        model: with layers `weft.GATConv` or `weft.GATv2Conv`; left as it was.
        inputs: what it takes, by name.
        names: of the nodes.
        places: edges kept of each node, the strongest; None: all.

    Raises: InputError: the model has no such layers; names for another number of nodes.
    """
    layers = {
        id(module): path
        for path, module in named_modules(model)
        if isinstance(module, GraphConvolution)
    }
    if not layers:
        raise InputError(
            f"trace_nodes: {type(model).__name__} has no graph layers of weft (weft.GATConv, "
            "weft.GATv2Conv). Only these can be traced."
        )
    observer = GraphObserver(places)
    with evaluation_mode(model), torch.no_grad(), ExitStack() as afterwards:
        for module in model.modules():
            if isinstance(module, GraphConvolution):
                afterwards.callback(setattr, module, "observer", module.observer)
                module.observer = observer
        model(**inputs)
    tokens = list(names)
    made = []
    for index, (layer, graph) in enumerate(observer.calls):
        heads, queries, keys = graph.shape
        if not queries == keys == len(tokens):
            raise InputError(
                f"trace_nodes: {len(tokens)} names, layer {layers[id(layer)]} has {queries} nodes "
                f"that look and {keys} looked at. Give a name for each, of one kind of nodes."
            )
        made.append(
            TraceLayer(
                name=layers[id(layer)],
                kind="encoder",
                index=index,
                shape=(heads, queries, keys),
                queries_from="tokens",
                keys_from="tokens",
                query_tokens=tokens,
                key_tokens=tokens,
                scale=1.0,
                data=LayerInMemory(graph),
            )
        )
    return TraceData({"tokens": tokens}, tuple(made), describe(model))
