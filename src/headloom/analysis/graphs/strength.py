"""In-strength, heavy hitters, reciprocity and connected components of attention.

Rows are queries, columns keys. Each function takes all weights of a layer, or its kept edges, whose
missing mass is `headloom.analysis.weights.left_out`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.sparse
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from headloom.analysis.arguments import real_number
from headloom.analysis.weights import Source, check_numbers
from headloom.errors import ShapeError
from headloom.mechanism.graph import AttentionGraph


def check_square(operation: str, source: Source) -> None:
    """Raise an error for weights between two sequences, and for NaN."""
    _, queries, keys = source.shape
    if queries != keys:
        raise ShapeError(
            f"{operation}: {queries} queries and {keys} keys; expected as many keys as queries, as "
            "in self-attention."
        )
    check_numbers(source, operation)


def received(source: Source) -> Tensor:
    """Return the in-strength of each key: the column sums, over all queries.

        r_j = sum_i w_ij

    A graph with stored sums (`headloom.attend(..., received=True)`) gives these, of all weights.

    Returns: (heads, keys).
    Source: Barrat et al. 2004 (strength of a weighted graph); of keys, Zhang et al. 2023 (H2O).

    >>> import headloom
    >>> first = torch.tensor([[[8.0, 0.0], [8.0, 0.0]]])
    >>> _, graph = headloom.attend(first, torch.eye(2)[None], first, scale=10.0)
    >>> received(graph).round()
    tensor([[2., 0.]])
    """
    check_numbers(source, "received")
    if not isinstance(source, AttentionGraph):
        return source.received()
    return source.strength() if source.received is None else source.received


@dataclass(frozen=True, eq=False)
class HeavyHitters:
    """Smallest set of keys that receives a share of all mass.

    keys: (heads, keys), by received mass, largest first; the first `count`, (heads,), are the set.
    """

    keys: Tensor
    count: Tensor

    def of(self, head: int) -> Tensor:
        """Return the keys of a head's set, by received mass, largest first."""
        return self.keys[head, : int(self.count[head])]


def heavy_hitters(source: Source, share: float = 0.9, *, together: bool = False) -> HeavyHitters:
    """Return the smallest set of keys that receives a share of all mass.

    Args:
        source: all weights, or the kept edges; then a share of their mass.
        share: above 0, at most 1.
        together: whether to find one set for all heads, by the sum over heads.

    Returns: a set for each head, or with `together` one row; no key if there is no mass.
    Source: Zhang et al. 2023 (H2O), section 3.

    >>> import headloom
    >>> first = torch.tensor([[[8.0, 0.0], [8.0, 0.0]]])
    >>> _, graph = headloom.attend(first, torch.eye(2)[None], first, scale=10.0)
    >>> heavy_hitters(graph).of(0)
    tensor([0])
    """
    share = real_number("heavy_hitters", "share", share, above=True)
    mass_of_keys = received(source).double()
    mass_of_keys = mass_of_keys.sum(0, keepdim=True) if together else mass_of_keys
    ordered = mass_of_keys.sort(dim=-1, descending=True, stable=True)
    mass = mass_of_keys.sum(-1, keepdim=True)
    # Rounding must not require one more key than there are.
    count = (ordered.values.cumsum(-1) < share * mass * (1 - 1e-9)).sum(-1) + 1
    count = torch.where(mass[:, 0] > 0, count.clamp(max=mass_of_keys.shape[-1]), 0)
    return HeavyHitters(ordered.indices, count)


def reciprocity(source: Source) -> Tensor:
    """Return the reciprocity of each head's attention.

        <P, P^T> / |P|^2 = sum_ij p_ij p_ji / sum_ij p_ij^2

    1: P is symmetric; 0: no attention is returned.

    Args: source: of self-attention.
    Returns: (heads,); 0 for a head without weights. The mean over heads is the layer's.
    Raises: ShapeError: the numbers of keys and queries differ.
    Source: Garlaschelli and Loffredo 2004; for weights, Squartini et al. 2013.

    >>> import headloom
    >>> left = torch.tensor([[[9.0, 0.0], [9.0, 0.0]]])          # both attend to position 0
    >>> _, graph = headloom.attend(left, torch.eye(2)[None], left, scale=9.0)
    >>> reciprocity(graph)                                       # 1 of 2: 0 attends to itself
    tensor([0.5000])
    """
    check_square("reciprocity", source)
    if isinstance(source, AttentionGraph):
        kept = [source.adjacency(head).astype(np.float64) for head in range(source.shape[0])]
        mutual = torch.tensor([float((edges * edges.T).sum()) for edges in kept])
        squares = source.weights.double().square().sum((-2, -1))
    else:
        mutual, squares = source.reciprocity().sum(-1), source.sum_of_squares().sum(-1)
    return torch.where(squares > 0, mutual / squares.clamp(min=1e-30), 0.0).float()


@dataclass(frozen=True, eq=False)
class Components:
    """Connected components of the edges of at least a certain weight.

    labels: (heads, positions), int: the number of each position's component, from 0.
    """

    labels: np.ndarray

    @property
    def count(self) -> np.ndarray:
        """Number of components of each head, single positions included, (heads,)."""
        return np.asarray(self.labels.max(1, initial=-1) + 1)

    @property
    def largest(self) -> np.ndarray:
        """Number of positions in the largest component of each head, (heads,)."""
        return np.array([np.bincount(row).max(initial=0) for row in self.labels])


def components(
    source: Source, threshold: float = 0.1, *, strong: bool = False, together: bool = False
) -> Components:
    """Return the connected components of each head's graph of edges above a threshold.

    Args:
        source: all weights, or the kept edges, of self-attention. No edge above the threshold is
            missing from the kept ones if it is above 1 / k.
        threshold: above 0, at most 1. An edge to itself connects nothing.
        strong: whether the positions of a component reach each other along the edges (strongly
            connected); otherwise the direction of edges is ignored (weakly connected).
        together: whether to join all heads to one graph, with the edges of any head.

    Raises: ShapeError: the numbers of keys and queries differ.
    Source: Tarjan 1972; by `scipy.sparse.csgraph.connected_components`.

    >>> import headloom
    >>> looks = torch.tensor([[[0.0, 9.0, 0.0], [9.0, 0.0, 0.0], [0.0, 0.0, 9.0]]])
    >>> _, graph = headloom.attend(looks, torch.eye(3)[None], looks, scale=1.0)
    >>> components(graph, 0.5).labels.tolist()                   # 0 and 1 attend to each other
    [[0, 0, 1]]
    """
    threshold = real_number("components", "threshold", threshold, above=True)
    check_square("components", source)
    graph = source if isinstance(source, AttentionGraph) else source.above(threshold)
    kept = [graph.adjacency(head) for head in range(graph.shape[0])]
    edges = [scipy.sparse.csr_array(of_head >= threshold) for of_head in kept]
    if together and edges:
        edges = [sum(edges[1:], edges[0])]
    kind: Literal["strong", "weak"] = "strong" if strong else "weak"
    labels = [connected_components(of_head, connection=kind)[1] for of_head in edges]
    return Components(np.stack(labels) if labels else np.zeros((0, graph.length), int))
