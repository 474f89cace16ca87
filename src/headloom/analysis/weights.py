"""Weights of a traced layer, and their missing mass: one rule of exactness for every measure.

If a trace has a layer's queries and keys, a measure uses all weights, exactly. If it has kept edges
only, the measure uses these, which are exact; `left_out` is the mass of each row on other keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.trace import TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix

#: Input of a measure: all weights, or the kept edges.
Source = AttentionMatrix | AttentionGraph

#: Cells of a tile: 8 MiB of float32, which fit into the processor's cache.
CELLS = 2**21


def weights_of(layer: TraceLayer, exact: bool | None = None, *, check: bool = True) -> Source:
    """Return the weights of a layer for a measure.

    Args:
        layer: of a trace.
        exact: None: all weights if the layer has queries and keys, otherwise the kept edges. True:
            all weights, or an error. False: the kept edges.
        check: whether to raise an error for NaN.

    Returns: ``layer.normalised_matrix``, whose rows sum to 1 even if queries and keys are stored in
    half precision; or ``layer.graph``, also if it has every edge and queries and keys are rounded.
    Raises: InputError: exact weights that the layer does not have; weights that are not numbers.
    """
    graph = layer.graph
    source: Source | None = None
    known = keeps_all(graph) and (layer.half_precision or layer.no_matrix is not None)
    if exact is not False and not known:
        source = layer.normalised_matrix
        if source is None and exact:
            raise InputError(
                f"layer {layer.name}: its weights are not known exactly: {layer.no_matrix}. Take "
                "the kept edges, exact=False, or trace again with queries and keys, or more edges."
            )
    source = graph if source is None else source
    if check:
        check_numbers(source, f"layer {layer.name}")
    return source


def name_of(layer: TraceLayer, source: Source) -> str:
    """Return "exact", "rounded" (of queries and keys in half precision), or "kept" (edges)."""
    if isinstance(source, AttentionGraph):
        return "exact" if keeps_all(source) else "kept"
    return "rounded" if layer.half_precision else "exact"


def check_numbers(source: Source, operation: str) -> None:
    """Raise an error for NaN weights, which a sum would hide or spread.

    Raises: InputError: a row whose log-sum-exp is NaN.
    """
    broken = source.lse.isnan()
    if broken.any():
        head, query = broken.nonzero()[0].tolist()
        raise InputError(
            f"{operation}: the weights of head {head}, query {query} are not numbers (NaN), since "
            "the model's queries or keys were not. All such rows of a trace: headloom query TRACE "
            '"select layer, head, query from rows where isnan(lse)".'
        )


def keeps_all(graph: AttentionGraph) -> bool:
    """Return whether every visible key of every row is among the kept edges.

    >>> import headloom
    >>> tokens = torch.eye(3)[None]
    >>> graphs = [headloom.attend(tokens, tokens, tokens, keep=headloom.Top(k))[1] for k in (2, 3)]
    >>> [keeps_all(graph) for graph in graphs]
    [False, True]
    """
    return bool((graph.count <= (graph.keys >= 0).sum(-1)).all())


def mass_on_keys(graph: AttentionGraph, sinks: Tensor) -> Tensor:
    """Return the mass of each row on its keys, without the sink's, (heads, queries), float64.

        m_i = 1 - e^(sink - lse_i), 0 of a row without keys

    sinks: the logit of each head's sink, (heads,).

    >>> import math, headloom
    >>> tokens, sinks = torch.eye(3)[None], torch.tensor([math.log(4)])   # rows of 2, 1, 1, and 4
    >>> _, graph = headloom.attend(
    ...     tokens, tokens, tokens, scale=math.log(2), sinks=sinks, keep=headloom.Top(1)
    ... )
    >>> mass_on_keys(graph, sinks)
    tensor([[0.5000, 0.5000, 0.5000]], dtype=torch.float64)
    """
    sink_mass = (sinks[:, None].double() - graph.lse.double()).exp()
    return torch.where(graph.count > 0, (1 - sink_mass).clamp(0, 1), 0.0)


def left_out(graph: AttentionGraph, masses: Tensor | None = None) -> Tensor:
    """Return the mass of each row on keys that were not kept, (heads, queries), float64.

    masses: of each row on all its keys, if a sink's share is known (`mass_on_keys`); None: the
    sink's mass counts as left out.

    >>> import math, headloom
    >>> tokens = torch.eye(3)[None]                    # rows of 2, 1, 1 quarters
    >>> _, graph = headloom.attend(tokens, tokens, tokens, scale=math.log(2), keep=headloom.Top(1))
    >>> left_out(graph)
    tensor([[0.5000, 0.5000, 0.5000]], dtype=torch.float64)
    """
    some = (graph.keys >= 0).sum(-1) < graph.count
    rest = graph.rest.double()
    if masses is not None:
        rest = masses - graph.weights.sum(-1, dtype=torch.float64)
    return torch.where(some, rest.clamp(min=0), 0.0)


def largest_left_out(graph: AttentionGraph, masses: Tensor | None = None) -> Tensor:
    """Return an upper bound of each row's weights that were not kept, (heads, queries), float64.

        min(mass that the row left out, its smallest kept weight)

    masses: see `left_out`.
    """
    mass = left_out(graph, masses)
    if not graph.k:
        return mass
    # Rows are sorted, so the last edge is the smallest. A row without edges has no bound.
    kept = (graph.keys >= 0).sum(-1)
    last = graph.weights.gather(-1, (kept - 1).clamp(min=0)[..., None])[..., 0].double()
    return torch.where(kept > 0, torch.minimum(mass, last), mass)


def mean_left_out(graph: AttentionGraph, sinks: Tensor | None = None) -> Tensor:
    """Return the mean of `left_out` over rows with visible keys, (heads,).

    sinks: their logits, (heads,), whose mass is not counted. None: no sinks, or unknown ones, whose
    mass counts as left out.
    """
    masses = None if sinks is None else mass_on_keys(graph, sinks)
    return left_out(graph, masses).sum(-1) / (graph.count > 0).sum(-1).clamp(min=1)


def in_half_precision(layers: Iterable[TraceLayer]) -> str:
    """Return a sentence about layers with queries and keys in half precision; "": none."""
    types = {
        str(layer.queries.dtype).removeprefix("torch.")
        for layer in layers
        if layer.queries is not None and layer.half_precision and not keeps_all(layer.graph)
    }
    if not types:
        return ""
    return (
        f"Queries and keys are stored in {' and '.join(sorted(types))}: weights computed from them "
        "differ from the model's own by rounding."
    )


def row_tiles(
    matrix: AttentionMatrix, *, causal: bool = False
) -> Iterator[tuple[range, range, Tensor]]:
    """Yield blocks of rows of all heads: rows, columns, and weights (heads, rows, columns).

    causal: whether to leave out the columns after the rows.
    """
    heads, queries, keys = matrix.shape
    start = 0
    while start < queries:
        width = min(keys, start + 512) if causal else keys
        stop = min(start + max(1, CELLS // max(1, heads * width)), queries)
        columns = range(min(keys, stop) if causal else keys)
        yield range(start, stop), columns, matrix[:, start:stop, : len(columns)]
        start = stop


def mean_over_heads(source: Source) -> LinearOperator | scipy.sparse.csr_array:
    """Return the weights of a layer averaged over its heads, (queries, keys).

        W = 1/heads sum_h P_h

    A sparse matrix of the kept edges, or a linear operator of all weights, which are never formed.

    >>> import headloom
    >>> tokens = torch.eye(3)[None]                              # e^score is 2 or 1, of 4
    >>> _, graph = headloom.attend(tokens, tokens, tokens, scale=np.log(2), keep=headloom.Top(1))
    >>> mean_over_heads(graph) @ np.array([4.0, 0.0, 0.0])
    array([2., 0., 0.])
    """
    if isinstance(source, AttentionGraph):
        return average_edges(source)

    def columns(x: NDArray[np.floating]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(x)).to(source.queries)

    def along(x: NDArray[np.floating]) -> NDArray[np.floating]:
        return (source @ columns(x)).mean(0).cpu().numpy()

    def back(x: NDArray[np.floating]) -> NDArray[np.floating]:
        return (source.T @ columns(x)).mean(0).cpu().numpy()

    return LinearOperator(
        source.shape[1:], matvec=along, rmatvec=back, matmat=along, rmatmat=back, dtype=np.float32
    )


def average_edges(graph: AttentionGraph) -> scipy.sparse.csr_array:
    """Return W of the kept edges."""
    heads, rows, places = graph.keys.shape
    keys = graph.keys.detach().cpu().transpose(0, 1).reshape(rows, heads * places)
    weights = graph.weights.detach().float().cpu().transpose(0, 1).reshape(rows, heads * places)
    is_edge = keys >= 0
    starts = np.concatenate(([0], is_edge.sum(-1).cumsum(0).numpy())).astype(np.int32)
    edges = scipy.sparse.csr_array(
        ((weights[is_edge] / max(heads, 1)).numpy(), keys[is_edge].int().numpy(), starts),
        shape=(rows, graph.length),
    )
    edges.sum_duplicates()
    return edges


def dense_average(source: Source, *, causal: bool = False) -> Tensor:
    """Return W as a dense matrix, (queries, keys). causal: whether later keys have no weight."""
    if isinstance(source, AttentionGraph):
        return torch.from_numpy(average_edges(source).toarray())
    mean = torch.zeros(source.shape[1:])
    for rows, columns, tile in row_tiles(source, causal=causal):
        mean[rows.start : rows.stop, : len(columns)] = tile.mean(0)
    return mean
