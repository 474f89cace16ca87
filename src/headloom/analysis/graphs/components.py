"""Connected parts of a thresholded graph: which tokens hang together by strong edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse
import torch
from scipy.sparse.csgraph import connected_components

from headloom.analysis.arguments import check_source, real_number
from headloom.analysis.interval import Source, check_numbers, left_out
from headloom.errors import ShapeError
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.shapes import check_flag

__all__ = ["Components", "components"]


@dataclass(frozen=True, eq=False)
class Components:
    """The connected parts of the edges of at least a certain weight.

    labels: (heads, positions), int: positions of a part have one number, from 0.
    complete: (heads,), bool: whether all such edges were there. If not, some of the parts may be
    one.
    """

    labels: np.ndarray
    complete: np.ndarray

    @property
    def count(self) -> np.ndarray:
        """How many parts each head has, lone positions included, (heads,)."""
        return np.asarray(self.labels.max(1, initial=-1) + 1)

    @property
    def largest(self) -> np.ndarray:
        """How many positions are in the largest part of each head, (heads,)."""
        return np.array([np.bincount(row).max(initial=0) for row in self.labels])


def components(
    source: Source, threshold: float = 0.1, *, strong: bool = False, together: bool = False
) -> Components:
    """The connected components of each head's graph of edges with at least a certain weight.

    Args:
        source: all weights, or the kept edges, of a sequence that looks at itself.
        threshold: above 0, at most 1. An edge to oneself connects nothing.
        strong: whether a part's positions reach each other along the edges (strongly connected);
            else the direction of edges does not matter (weakly).
        together: one graph for all heads, with an edge where any head has one.

    From kept edges the result is complete where no row can have left out an edge of the threshold:
    always where it is above 1 / k.

    Raises: ShapeError: there are not as many keys as queries.
    Source: Tarjan 1972; by `scipy.sparse.csgraph.connected_components`.

    >>> import headloom
    >>> looks = torch.tensor([[[0.0, 9.0, 0.0], [9.0, 0.0, 0.0], [0.0, 0.0, 9.0]]])
    >>> _, graph = headloom.attend(looks, torch.eye(3)[None], looks, scale=1.0,
    ...                             keep=headloom.Top(1))
    >>> components(graph, 0.5).labels.tolist()                   # 0 and 1 look at each other
    [[0, 0, 1]]
    """
    check_source("components", source)
    threshold = real_number("components", "threshold", threshold, above=True)
    check_flag("components", "strong", strong)
    check_flag("components", "together", together)
    _, queries, keys = source.shape
    if queries != keys:
        raise ShapeError(
            f"components: {queries} queries and {keys} keys; expected as many keys as queries, of "
            "a sequence that looks at itself."
        )
    check_numbers(source, "components")
    if isinstance(source, AttentionGraph):
        graph = source
        complete = (left_out(source)[1] < threshold).all(-1).numpy()
    else:
        graph = source.above(threshold)
        complete = np.ones(graph.keys.shape[0], bool)
    strongest = [_strong_edges(graph, head, threshold) for head in range(graph.keys.shape[0])]
    if together:
        strongest, complete = [sum(strongest[1:], strongest[0])], np.array([complete.all()])
    kind: Literal["strong", "weak"] = "strong" if strong else "weak"
    labels = [connected_components(edges, connection=kind)[1] for edges in strongest]
    return Components(np.stack(labels), complete)


def _strong_edges(graph: AttentionGraph, head: int, threshold: float) -> Any:
    kept = graph.weights[head] >= threshold
    queries, places = torch.nonzero(kept & (graph.keys[head] >= 0), as_tuple=True)
    ends = (queries.numpy(), graph.keys[head][queries, places].numpy())
    _, rows, columns = graph.shape
    return scipy.sparse.csr_array((np.ones(len(queries)), ends), shape=(rows, columns))
