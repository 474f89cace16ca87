"""Similarity of heads, within a layer and across layers.

A row of weights is a distribution over keys, and its square root a vector of length 1. The
similarity of two heads is the mean product of their rows' vectors:

    affinity(A, B) = mean over rows i of sum_j sqrt(a_ij b_ij)

where the mass of a sink is one more outcome: 1 for equal heads, 0 for heads that never attend to
the same key (the Bhattacharyya coefficient). The distance sqrt(1 - affinity), Hellinger's, is
Euclidean, so that it can be clustered (`scipy.cluster.hierarchy.linkage`).

Source: Bhattacharyya 1943; Clark et al. 2019, section 6 (clusters of heads by the distance of
their weights, there Jensen and Shannon's).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headloom.analysis.heads.layer_weights import LayerWeights
from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.mechanism.graph import AttentionGraph

#: Cells of all heads in a block: 32 MiB of float32.
BLOCK_CELLS = 2**23


@dataclass(frozen=True, eq=False)
class Similarity:
    """Similarity of every pair of heads.

    heads       (layer, head) of each row and column, from 0
    affinity    (heads, heads), 0 to 1; with kept edges only, a lower bound
    """

    heads: tuple[tuple[int, int], ...]
    affinity: np.ndarray

    @property
    def distance(self) -> np.ndarray:
        """Hellinger distance of each pair, 0 to 1."""
        apart: np.ndarray = np.sqrt(np.clip(1 - self.affinity, 0, 1))
        np.fill_diagonal(apart, 0)
        return apart


def similarity(
    trace: TraceData, *, exact: bool | None = None, layers: Sequence[int] | None = None
) -> Similarity:
    """Return the similarity of the heads of a trace, across all layers.

    Args:
        trace: with matrices of one shape; for an encoder-decoder, choose layers.
        exact: see `headloom.analysis.weights.weights_of`.
        layers: their places in the trace; None: all.

    Raises: InputError: the layers' matrices differ in shape or sequences; not known exactly.

    >>> import headloom
    >>> eye = torch.eye(2)
    >>> heads = torch.stack((eye, eye.flip(0), (eye + eye.flip(0)) / 2))
    >>> similarity(headloom.from_weights(heads)).affinity.round(4)
    array([[1.    , 0.    , 0.7071],
           [0.    , 1.    , 0.7071],
           [0.7071, 0.7071, 1.    ]])
    """
    numbers = range(len(trace.layers)) if layers is None else layers
    chosen = [trace.layers[number] for number in numbers]
    kinds = {(layer.queries_from, layer.keys_from, *layer.shape[1:]) for layer in chosen}
    if len(kinds) > 1:
        raise InputError(
            "similarity: the layers' matrices are of different sequences or sizes: "
            f"{'; '.join(sorted(str(kind) for kind in kinds))}. Choose layers of one kind."
        )
    heads = tuple(
        (number, head)
        for number, layer in zip(numbers, chosen, strict=True)
        for head in range(layer.heads)
    )
    total = torch.zeros(len(heads), len(heads), dtype=torch.float64)
    if not heads or not chosen[0].shape[1]:
        return Similarity(heads, total.numpy())
    read = [LayerWeights(layer, exact=exact) for layer in chosen]
    if any(weights.source == "kept" for weights in read):  # then kept edges for all
        read = [LayerWeights(layer, exact=False) for layer in chosen]
    queries = chosen[0].shape[1]
    start = 0
    while start < queries:
        ends = [weights.visible.end[start : start + 512] for weights in read]
        size = max(1, BLOCK_CELLS // max(1, len(heads) * int(torch.stack(ends).max())))
        rows = range(start, min(start + min(size, 512), queries))
        width = int(torch.stack(ends)[:, : len(rows)].max())
        roots = torch.cat([_roots(weights, rows, range(width)).flatten(1) for weights in read])
        total += roots @ roots.T
        start = rows.stop
    # The mass of a known sink is one more outcome.
    beside = torch.cat([(1 - weights.row_mass).clamp(min=0).sqrt() for weights in read])
    return Similarity(heads, ((total + beside @ beside.T) / queries).clamp(0, 1).numpy())


def _roots(weights: LayerWeights, rows: range, keys: range) -> Tensor:
    """Return square roots of the weights of some queries on some keys, (heads, rows, keys)."""
    if not isinstance(weights.weights, AttentionGraph):
        return weights.cells(rows, keys).sqrt_()
    graph, part = weights.graph, slice(rows.start, rows.stop)
    places = graph.keys[:, part].long()
    cells = torch.zeros(*places.shape[:2], graph.length + 1)
    roots = graph.weights[:, part].sqrt()
    return cells.scatter_(-1, places.where(places >= 0, graph.length), roots)[..., : len(keys)]
