"""Paths: along which positions an output holds what it does of an input, through all layers.

    product of a path p_L, ..., p_0 = A_L[p_L, p_(L-1)] ... A_1[p_1, p_0],   A_l = r I + (1 - r) W_l

W_l: the weights of layer l averaged over heads; r: what comes past a layer, by the residual
connection, 1/2. Entry (i, j) of the rollout is the sum of the products of all paths from i to j, so
each path is a share of it. Between two sequences a cross-attention layer leads from the target to
the source as it is then; a sequence that a layer does not change passes it as it is.

The strongest paths are found exactly, without listing the others. First, from the input up, the
largest product with which each position of each layer reaches the target,

    best_0 = 1 at the target,    best_l[i] = max_j A_l[i, j] best_(l-1)[j]

then, from the output down, paths in order of what is gone times the best that is left (A*, whose
estimate is exact here: Hart, Nilsson and Raphael 1968). Products that are equal to 12 digits are in
the order of their positions.

From kept edges alone each product is at most the true one, and equal where every head kept the
edges of the path.

Source: Abnar and Zuidema 2020, section 3, whose rollout is the sum of these products.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from headloom.analysis.arguments import real_number
from headloom.analysis.graphs.flow import layer_edges
from headloom.analysis.graphs.rollout import chosen_layers
from headloom.formats.trace import TraceData
from headloom.mechanism.shapes import place_of, whole_number

__all__ = ["Path", "StrongestPaths", "strongest_paths"]


@dataclass(frozen=True)
class Path:
    """One path. steps: sequence and position, of the last layer first; product: see the module."""

    product: float
    steps: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class StrongestPaths:
    """The strongest paths between two positions.

    together: what all paths between them sum to: the entry of the rollout. rest: what its row lacks
    of 1, where edges were not kept.
    """

    paths: list[Path]
    together: float
    rest: float


def strongest_paths(
    trace: TraceData,
    position: int,
    target: int,
    *,
    count: int = 5,
    kind: str | None = None,
    exact: bool | None = None,
    residual: float = 0.5,
) -> StrongestPaths:
    """The paths with the largest products from a position of the last layer to one of the input.

    Args:
        trace: of any model.
        position: of the last layer; target: of the input. Negative ones count from the end.
        count: how many paths.
        kind, exact, residual: as in `headloom.analysis.graphs.flow.attention_flow`.

    Raises: InputError: no such position or layer; no exact weights; weights that are no numbers.

    >>> import torch
    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> layer = layer_of_weights(torch.tensor([[[0.25, 0.75], [0.5, 0.5]]]))
    >>> found = strongest_paths(TraceData({"tokens": ["a", "b"]}, (layer, layer)), 0, 1)
    >>> [(round(path.product, 5), [at for _, at in path.steps]) for path in found.paths]
    [(0.28125, [0, 1, 1]), (0.23438, [0, 0, 1])]
    >>> round(found.together, 4)                                  # their sum: all there are
    0.5156
    """
    count = whole_number("paths", "count", count, 1)
    layers, queries, keys, sizes = chosen_layers(trace, kind, "paths")
    residual = real_number("paths", "residual", residual)
    # The positions of all sequences that take part, one after the other.
    starts = np.cumsum([0, *sizes.values()]).tolist()
    first: dict[str, int] = dict(zip(sizes, starts, strict=False))
    start, end = (
        first[name] + place_of("sequence", "paths", "position", at, sizes[name])
        for name, at in ((queries, position), (keys, target))
    )
    steps, known = [], True
    for layer in layers:
        # A layer of its own, so that what it reads can be let go.
        edges, of_all = layer_edges(dataclasses.replace(layer), exact)
        ends = first[layer.queries_from], first[layer.keys_from]
        steps.append(_step(edges, *ends, starts[-1], residual))
        known &= of_all
    found = _strongest(steps, start, end, count)
    held = np.zeros(starts[-1])
    held[start] = 1
    for step in reversed(steps):
        held = step.T @ held

    def place(node: int) -> tuple[str, int]:
        begin, name = max((begin, name) for name, begin in first.items() if begin <= node)
        return name, node - begin

    paths = [Path(product, tuple(map(place, path))) for product, path in found]
    rest = 0.0 if known else max(0.0, 1 - float(held.sum()))
    return StrongestPaths(paths, float(held[end]), rest)


def _step(
    edges: scipy.sparse.csr_array, own: int, other: int, nodes: int, residual: float
) -> scipy.sparse.csr_array:
    """A_l, (nodes, nodes): the identity where the layer changes nothing.

    edges: W_l; own, other: where the nodes of its queries and of its keys begin.
    """
    cells = edges.tocoo()
    past = np.ones(nodes)
    past[own : own + edges.shape[0]] = residual
    data = (1 - residual) * cells.data.astype(np.float64)
    weights = scipy.sparse.coo_array(
        (data, (own + cells.row, other + cells.col)), shape=(nodes, nodes)
    )
    return (weights + scipy.sparse.diags_array(past)).tocsr()


def _strongest(
    steps: Sequence[scipy.sparse.csr_array], start: int, target: int, count: int
) -> list[tuple[float, tuple[int, ...]]]:
    """The products and the nodes of the strongest paths."""
    best = [np.zeros(steps[0].shape[0])]
    best[0][target] = 1
    for step in steps:
        products = step.data * best[-1][step.indices]
        largest = np.zeros(step.shape[0])
        some = np.diff(step.indptr) > 0
        largest[some] = np.maximum.reduceat(products, step.indptr[:-1][some])
        best.append(largest)
    found: list[tuple[float, tuple[int, ...]]] = []
    waiting: list[tuple[float, tuple[int, ...], float]] = []
    if best[-1][start] > 0:
        waiting.append((-1.0, (start,), 1.0))
    while waiting and len(found) < count:
        _, path, product = heapq.heappop(waiting)
        level = len(steps) + 1 - len(path)
        if level == 0:
            found.append((product, path))
            continue
        step = steps[level - 1]
        row = slice(*step.indptr[path[-1] : path[-1] + 2])
        for node, weight in zip(step.indices[row].tolist(), step.data[row].tolist(), strict=True):
            left = product * weight * best[level - 1][node]
            if left > 0:
                heapq.heappush(waiting, (-_digits12(left), (*path, node), product * weight))
    return found


def _digits12(number: float) -> float:
    """Rounding must not tell equal products apart: all of them would be tried."""
    mantissa, exponent = math.frexp(number)
    return math.ldexp(round(mantissa, 12), exponent)
