"""Attention over the edges of a graph, by headloom's graph layers and by PyTorch Geometric's.

Nodes are the positions: an edge goes from the attending node (query) to another node (key).
Headloom's layers compute their own graph. In PyTorch Geometric, a layer of `MessagePassing`
computes a weight for each edge, which multiplies its message; weights are read, from the messages
or from the layer, of the classes that can return them (`return_attention_weights`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.mechanism.graph import All, AttentionGraph, Keep, Top
from headloom.mechanism.graph_convolution import GraphLayer
from headloom.mechanism.neighbour_call import NeighbourCall
from headloom.mechanism.neighbours import neighbour_graph, neighbour_weights
from headloom.mechanism.watching import named_modules
from headloom.tracing.arguments import Inputs
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.sources.source import Modules, Receivers, Source

#: Classes whose weights can be read, and their subclasses.
_KNOWN = ("GATConv", "GATv2Conv", "TransformerConv")
#: Reason why a layer of another class is not in a trace.
UNKNOWN = (
    "PyTorch Geometric does not return the weights of its softmax over edges; it does for "
    "GATConv, GATv2Conv and TransformerConv"
)


def _library() -> ModuleType | None:
    """Return the layers of PyTorch Geometric; None: not loaded (this does not load it)."""
    return sys.modules.get("torch_geometric.nn.conv")


def _own(modules: Modules) -> dict[str, GraphLayer]:
    return {path: module for path, module in modules.items() if isinstance(module, GraphLayer)}


def _geometric(modules: Modules) -> dict[str, nn.Module]:
    library = _library()
    if library is None:
        return {}
    known = tuple(getattr(library, name) for name in _KNOWN)
    return {path: module for path, module in modules.items() if isinstance(module, known)}


def _layers(modules: Modules) -> Modules:
    return {**_own(modules), **_geometric(modules)}


def reads_a_graph(model: nn.Module) -> bool:
    """Return whether layers of a model attend over the edges of a graph."""
    return bool(_layers(dict(named_modules(model))))


def unknown_layers(modules: Modules) -> dict[str, nn.Module]:
    """Return the layers with a softmax over edges whose weights cannot be read."""
    library = _library()
    if library is None:
        return {}
    known = _geometric(modules)
    return {
        path: module
        for path, module in modules.items()
        if isinstance(module, library.MessagePassing)
        and path not in known
        and hasattr(sys.modules[type(module).__module__], "softmax")
    }


@contextmanager
def _calls(modules: Modules, keep: Keep, receivers: Receivers) -> Iterator[None]:
    paths = {layer: path for path, layer in _own(modules).items()}
    observers = {layer: layer.observer for layer in paths}
    nodes: dict[str, object] = {}

    def observe(layer: GraphLayer, call: NeighbourCall, of_one: bool) -> None:
        graph = _graph_of(call, keep).as_batch()
        name, kind = paths[layer] or type(layer).__name__, "encoder" if of_one else "cross"
        receivers.take(LayerCall.over_edges(name, kind, graph), graph)

    def begin(path: str, _: nn.Module, args: tuple[object, ...], keywords: Inputs) -> None:
        nodes[path] = args[0] if args else keywords.get("x")

    def take(path: str, layer: Any, message: tuple[object, ...], _: Tensor) -> None:
        inputs = nodes[path]
        two = inputs if isinstance(inputs, tuple) else (None, None)
        two_types = two[1] is not None and two[0] is not two[1]
        receivers.take(*_of_geometric(path, layer, message, keep, two_types))

    with ExitStack() as stack:
        for path, layer in _geometric(modules).items():
            before = layer.register_forward_pre_hook(partial(begin, path), with_kwargs=True)
            hook = layer.register_propagate_forward_hook(partial(take, path))  # type: ignore[operator]
            stack.callback(before.remove)
            stack.callback(hook.remove)
        for of_graph, observer in observers.items():
            stack.callback(setattr, of_graph, "observer", observer)
            of_graph.observer = observe
        yield


SOURCE = Source(_layers, _calls)


@torch.no_grad()
def _graph_of(call: NeighbourCall, keep: Keep) -> AttentionGraph:
    """Return the graph of a call, (heads, targets, places); parallel edges are summed."""
    edges = call.edges
    degree = int(edges.row_starts.diff().max()) if edges.targets else 0
    places = degree if isinstance(keep, All) else min(keep.k, degree)
    pairs = edges.rows.long() * max(edges.sources, 1) + edges.columns.long()
    if len(torch.unique(pairs)) == len(pairs):
        return neighbour_graph(call, places)
    weights = edges.by_place(neighbour_weights(call))
    graph: AttentionGraph = graph_of_edges(
        edges.rows, edges.columns, weights, edges.targets, edges.sources, Top(places)
    )[0]
    return graph


def _of_geometric(
    path: str, layer: Any, message: tuple[Any, ...], keep: Keep, two_types: bool
) -> tuple[LayerCall, AttentionGraph]:
    """Return the call of a layer of PyTorch Geometric, from its propagated messages."""
    edges, size, passed = message
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
        part.shape[0] if part is not None else count or nodes[0].shape[0]
        for part, count in zip(nodes, size or (None, None), strict=True)
    ]
    key, query = (0, 1) if layer.flow == "source_to_target" else (1, 0)
    graph = graph_of_edges(
        edges[query], edges[key], weights.detach(), counts[query], counts[key], keep
    )
    call = LayerCall.over_edges(name, "encoder", graph)
    if two_types or counts[0] != counts[1]:
        call.kind = "cross"
    # PyTorch Geometric names the layer of an edge type like this: <author___writes___paper>.
    types = re.fullmatch("<?(.+?)_{2,3}.+?_{2,3}(.+?)>?", name.rpartition(".")[2])
    if types is not None:
        call.sequences = types[1 + query], types[1 + key]
    return call, graph


def graph_of_edges(
    queries: Tensor, keys: Tensor, weights: Tensor, rows: int, columns: int, keep: Keep
) -> AttentionGraph:
    """Return the graph of weighted edges; parallel edges are summed.

    Args:
        queries: of each edge, (edges,).
        keys: of each edge, (edges,).
        weights: (edges, heads), or (edges,).
        rows: number of queries.
        columns: number of keys.
        keep: edges of each query.

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
    # Pairs are sorted by row: the place of each within its row.
    place = torch.arange(len(pairs), device=row.device) - (degree.cumsum(0) - degree)[row]
    whole = weights.new_zeros(heads, rows, most)
    ends = torch.full((heads, rows, most), -1, dtype=torch.int64, device=row.device)
    whole[:, row, place], ends[:, row, place] = summed.mT, column
    is_edge = ends >= 0
    order = torch.where(is_edge, whole, -1.0).sort(dim=-1, descending=True, stable=True).indices
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
