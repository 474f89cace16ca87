"""Which heads look alike, within a layer and across layers; and clusters of them.

A row of weights is a distribution over keys, and its square root a vector of length 1. Two heads
are as alike as their rows' vectors are:

    affinity(A, B) = mean over rows i of sum_j sqrt(a_ij b_ij)

where what a row has on no key, but on a sink, is one more outcome: 1 for equal heads, 0 for heads
that never look at the same key (the Bhattacharyya coefficient). The distance sqrt(1 - affinity),
Hellinger's, is Euclidean, so that clusters may be made of it.

Source: Bhattacharyya 1943; Clark et al. 2019, section 6 (clusters of heads by the distance of
their weights, there Jensen and Shannon's).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headloom.analysis.arguments import check_trace, numbers_of_layers, real_number
from headloom.analysis.heads.pattern_mass import CHEAP_CELLS, LayerWeights
from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.mechanism.shapes import check_flag, check_type, whole_number

if TYPE_CHECKING:
    import scipy.sparse

__all__ = ["Similarity", "clusters", "similarity"]

#: Edges put side by side at a time.
BLOCK_EDGES = 2**19

#: Cells of the whole matrices computed at a time: 32 MiB of float32.
BLOCK_CELLS = 2**23


#: What float32 rounds of a mass that is left over from 1, at most.
ROUNDING = 2.0**-22


@dataclass(frozen=True, eq=False)
class Similarity:
    """How alike heads are, every pair.

    heads       (layer, head) of each row and column, from 0
    affinity    (heads, heads), 0 to 1; a lower bound where it comes from kept edges
    upper       (heads, heads): what it is at most
    """

    heads: tuple[tuple[int, int], ...]
    affinity: np.ndarray[Any, Any]
    upper: np.ndarray[Any, Any]

    @property
    def distance(self) -> np.ndarray[Any, Any]:
        """Hellinger's distance of each pair, 0 to 1, from the middle of the two bounds."""
        middle = (self.affinity + self.upper) / 2
        apart: np.ndarray[Any, Any] = np.sqrt(np.clip(1 - middle, 0, 1))
        np.fill_diagonal(apart, 0)
        return apart


def similarity(
    trace: TraceData, *, exact: bool | None = None, layers: Sequence[int] | None = None
) -> Similarity:
    """How alike the heads of a trace are, those of all layers with each other.

    Args:
        trace: whose layers have matrices of one shape; an encoder-decoder: choose layers.
        exact: True: from every cell of the matrices; False: from the kept edges, with the bound
            that follows from what was left out; None: exactly where that is cheap.
        layers: which, by their place in the trace; None: all.

    Raises: InputError: the layers' matrices differ in shape or sequences; not known exactly.

    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> eye = torch.eye(2)
    >>> layer = layer_of_weights(torch.stack((eye, eye.flip(0), (eye + eye.flip(0)) / 2)))
    >>> similarity(TraceData({"tokens": ["a", "b"]}, (layer,))).affinity.round(4)
    array([[1.    , 0.    , 0.7071],
           [0.    , 1.    , 0.7071],
           [0.7071, 0.7071, 1.    ]])
    """
    check_trace("similarity", trace)
    check_flag("similarity", "exact", exact, optional=True)
    numbers = numbers_of_layers("similarity", layers, len(trace.layers))
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
    read = [LayerWeights(layer, exact=bool(exact)) for layer in chosen]
    if not heads or not chosen[0].shape[1]:
        nothing = np.zeros((len(heads), len(heads)))
        return Similarity(heads, nothing, nothing)
    known = all(weights.matrix is not None for weights in read)
    if exact is None and known:
        exact = len(heads) * chosen[0].shape[1] * chosen[0].shape[2] <= CHEAP_CELLS
    if exact and not all(weights.complete for weights in read):
        whole = _from_cells(read, len(heads))
        return Similarity(heads, whole, whole)
    return Similarity(heads, *_from_edges(read, len(heads)))


def _from_edges(
    read: Sequence[LayerWeights], heads: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Affinity over the kept edges, and the most that the others can add.

    An edge that one of two heads did not keep weighs no more there than the smallest that it kept,
    and all of them together no more than its rest. By Cauchy and Schwarz, what the edges add that
    only the first kept is at most sqrt(sum of their weights in the first) sqrt(sum of what they
    can weigh in the second), sums over all rows; those that neither kept, sqrt(rest) sqrt(rest).
    """
    _, queries, keys = read[0].graph.shape
    total, only, more = (np.zeros((heads, heads)) for _ in range(3))
    width = sum(layer.graph.shape[0] * layer.graph.k for layer in read)
    size = max(1, BLOCK_EDGES // max(1, width))
    missing = [layer.left_out for layer in read]
    rest, largest = (torch.cat(parts).numpy() for parts in zip(*missing, strict=True))
    # What float32 rounds of a mass, a root makes much of.
    partial = np.concatenate([layer.partial.numpy() for layer in read])
    rest, largest = rest + ROUNDING * partial, largest + ROUNDING * partial
    # What the edges that another head kept can weigh here at most.
    room = np.minimum(rest, max(layer.graph.k for layer in read) * largest).sum(1)
    kept = 0.0
    for start in range(0, queries, size):
        rows = slice(start, min(start + size, queries))
        roots = _stacked([layer.graph for layer in read], rows, keys)
        total += (roots @ roots.T).toarray()
        weights, there = roots.multiply(roots).tocsr(), roots.astype(bool).astype("float32")
        only += (weights @ there.T).toarray()
        kept = kept + weights.sum(1)
    # only[a, b] so far: the mass of a on edges that b kept too.
    only = np.clip(np.asarray(kept)[:, None] - only, 0, None)
    one_side = np.sqrt(only * room[None, :])
    left = np.sqrt(rest.sum(1))
    more = one_side + one_side.T + left[:, None] * left[None, :]
    affinity = np.clip((total + _beside(read).numpy()) / queries, 0, 1)
    return affinity, np.clip(affinity + more / queries, 0, 1)


def _stacked(graphs: Sequence[Any], rows: slice, keys: int) -> scipy.sparse.csr_array:
    """Square roots of kept weights: a row a head, a column a cell of the matrix."""
    import scipy.sparse

    parts = []
    for graph in graphs:
        columns = graph.keys[:, rows].numpy()
        heads, count, _ = columns.shape
        kept = columns >= 0
        cells = columns + np.arange(count)[None, :, None] * keys
        starts = np.concatenate(([0], kept.reshape(heads, -1).sum(1).cumsum()))
        weights = graph.weights[:, rows].numpy()
        parts.append(
            scipy.sparse.csr_array(
                (np.sqrt(weights[kept]), cells[kept], starts), shape=(heads, count * keys)
            )
        )
    stacked: scipy.sparse.csr_array = scipy.sparse.vstack(parts, format="csr")
    # Few of all cells are kept by any head: only those stay columns.
    cells_kept, indices = np.unique(stacked.indices, return_inverse=True)
    return scipy.sparse.csr_array(
        (stacked.data, indices, stacked.indptr), shape=(stacked.shape[0], len(cells_kept))
    )


def _from_cells(read: Sequence[LayerWeights], heads: int) -> np.ndarray[Any, Any]:
    """Affinity over every cell, some rows of all heads at a time."""
    _, queries, keys = read[0].graph.shape
    total = torch.zeros(heads, heads, dtype=torch.float64)
    size = max(1, BLOCK_CELLS // max(1, heads * keys))
    for start in range(0, queries, size):
        end = min(start + size, queries)
        # Keys that none of these queries may look at add nothing.
        columns = max(int(weights.allowed.end[start:end].max()) for weights in read)
        roots = torch.empty(heads, end - start, columns)
        first = 0
        for weights in read:
            last = first + weights.layer.heads
            weights.roots(start, end, columns, roots[first:last])
            first = last
        side_by_side = roots.view(heads, -1)
        total += side_by_side @ side_by_side.T
    return ((total + _beside(read)) / queries).clamp(0, 1).numpy()


def _beside(read: Sequence[LayerWeights]) -> torch.Tensor:
    """What rows have on no key, as far as it is known, of every pair of heads: (heads, heads)."""
    roots = torch.cat([(1 - weights.row_mass).clamp(min=0).sqrt() for weights in read])
    return roots @ roots.T


def clusters(
    alike: Similarity, *, count: int | None = None, distance: float = 0.5
) -> np.ndarray[Any, Any]:
    """Clusters of heads that look alike: the number of each head's, from 0 for the largest.

    Average linkage of Hellinger's distance: two clusters are as far apart as their heads are in
    the mean.

    Args:
        alike: from `similarity`.
        count: how many clusters; None: as many as `distance` gives.
        distance: heads whose clusters are farther apart than this stay apart, 0 to 1.

    Source: Sokal and Michener 1958 (average linkage), by `scipy.cluster.hierarchy`.

    >>> import numpy
    >>> affinity = numpy.array([[1, 0.9, 0.1], [0.9, 1, 0.1], [0.1, 0.1, 1]])
    >>> clusters(Similarity(((0, 0), (0, 1), (1, 0)), affinity, affinity))
    array([0, 0, 1])
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    check_type("clusters", "alike", alike, Similarity, "what `similarity` gives for a trace")
    size = len(alike.heads)
    if count is not None:
        count = whole_number("clusters", "count", count)
        if not 1 <= count <= max(size, 1):
            raise InputError(f"clusters: count={count}; expected 1 to {size}, the number of heads.")
    distance = real_number("clusters", "distance", distance)
    if size < 2:
        return np.zeros(size, dtype=int)
    tree = linkage(squareform(alike.distance, checks=False), "average")
    numbers = (
        fcluster(tree, distance, "distance") if count is None else fcluster(tree, count, "maxclust")
    )
    names, places, sizes = np.unique(numbers, return_inverse=True, return_counts=True)
    # Largest first; of equal ones that with the first head.
    first = np.array([int(np.argmax(numbers == name)) for name in names])
    order = np.lexsort((first, -sizes))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[places]
