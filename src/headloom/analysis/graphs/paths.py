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
from dataclasses import dataclass

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from headloom.analysis.arguments import real_number
from headloom.analysis.graphs.flow import layer_edges
from headloom.analysis.graphs.rollout import chosen_layers
from headloom.formats.trace import TraceData
from headloom.mechanism.shapes import place_of, whole_number

__all__ = ["Network", "Path", "StrongestPaths", "strongest_paths"]

Numbers = NDArray[np.float64]


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
    network = Network(trace, kind=kind, exact=exact, residual=residual)
    chosen_layers(trace, kind, "paths")
    start = network.node(network.queries, position)
    return network.strongest(start, network.node(network.keys, target), count)


class Network:
    """The positions of all sequences that take part, one after the other, and A_l of each layer.

    Args: as of `strongest_paths`.
    """

    def __init__(
        self,
        trace: TraceData,
        *,
        kind: str | None = None,
        exact: bool | None = None,
        residual: float = 0.5,
    ) -> None:
        self.layers, self.queries, self.keys, self.sizes = chosen_layers(trace, kind)
        starts = np.cumsum([0, *self.sizes.values()]).tolist()
        #: The first node of each sequence.
        self.first: dict[str, int] = dict(zip(self.sizes, starts, strict=False))
        self.nodes: int = starts[-1]
        self._exact, self._residual = exact, real_number("paths", "residual", residual)
        self._steps: dict[int, scipy.sparse.csr_array] = {}
        self._known: dict[int, bool] = {}

    def node(self, sequence: str, position: int) -> int:
        """The node of a position; a negative one counts from the end.

        Raises: InputError: no such position.
        """
        size = self.sizes[sequence]
        return self.first[sequence] + place_of("sequence", "paths", "position", position, size)

    def place(self, node: int) -> tuple[str, int]:
        """The sequence and the position of a node."""
        first, name = max((first, name) for name, first in self.first.items() if first <= node)
        return name, node - first

    def step(self, level: int) -> scipy.sparse.csr_array:
        """A_l of a layer, counted from 1, (nodes, nodes); the identity where it changes nothing."""
        if level not in self._steps:
            layer = self.layers[level - 1]
            # A layer of its own, so that what it reads can be let go.
            averaged, known = layer_edges(dataclasses.replace(layer), self._exact)
            edges = averaged.tocoo()
            self._known[level] = known
            own = self.first[layer.queries_from]
            past = np.ones(self.nodes)
            past[own : own + layer.shape[1]] = self._residual
            weights = scipy.sparse.coo_array(
                (
                    (1 - self._residual) * edges.data.astype(np.float64),
                    (own + edges.row, self.first[layer.keys_from] + edges.col),
                ),
                shape=(self.nodes, self.nodes),
            )
            self._steps[level] = (weights + scipy.sparse.diags_array(past)).tocsr()
        return self._steps[level]

    def shares(self, start: int) -> Numbers:
        """How much of a node of the last layer comes through each node of each layer.

        Returns: (layers + 1, nodes): row 0 is the input, a row of the rollout; each sums to at most
        1. What it lacks went along edges that were not kept; or it ended, at sinks and at rows that
        may look at no key.
        """
        found = np.zeros((len(self.layers) + 1, self.nodes))
        found[-1, start] = 1
        for level in range(len(self.layers), 0, -1):
            found[level - 1] = self.step(level).T @ found[level]
        return found

    def rest(self, shares: Numbers) -> float:
        """What a row of the rollout lacks of 1, where edges were not kept; 0 of all weights.

        shares: those of the input, (nodes,).
        """
        return 0.0 if all(self._known.values()) else max(0.0, 1 - float(shares.sum()))

    def own(self, shares: Numbers) -> float:
        """What the last layer's sequence holds at the input, where that is another sequence; else
        0. shares: those of the input, (nodes,).
        """
        if self.queries == self.keys:
            return 0.0
        first = self.first[self.queries]
        return float(shares[first : first + self.sizes[self.queries]].sum())

    def strongest(self, start: int, target: int, count: int) -> StrongestPaths:
        """The strongest paths from a node of the last layer to one of the input."""
        best = self._best(target)
        found: list[tuple[float, tuple[int, ...]]] = []
        waiting: list[tuple[float, tuple[int, ...], float]] = []
        if best[-1][start] > 0:
            waiting.append((-1.0, (start,), 1.0))
        while waiting and len(found) < count:
            _, path, product = heapq.heappop(waiting)
            level = len(self.layers) + 1 - len(path)
            if level == 0:
                found.append((product, path))
                continue
            step = self.step(level)
            row = slice(*step.indptr[path[-1] : path[-1] + 2])
            ends = zip(step.indices[row].tolist(), step.data[row].tolist(), strict=True)
            for node, weight in ends:
                left = product * weight * best[level - 1][node]
                if left > 0:
                    heapq.heappush(waiting, (-_digits12(left), (*path, node), product * weight))
        paths = [Path(product, tuple(map(self.place, path))) for product, path in found]
        shares = self.shares(start)[0]
        return StrongestPaths(paths, float(shares[target]), self.rest(shares))

    def _best(self, target: int) -> list[Numbers]:
        """The largest product with which each node of each layer reaches the target."""
        found = [np.zeros(self.nodes)]
        found[0][target] = 1
        for level in range(1, len(self.layers) + 1):
            step = self.step(level)
            products = step.data * found[-1][step.indices]
            best = np.zeros(self.nodes)
            some = np.diff(step.indptr) > 0
            best[some] = np.maximum.reduceat(products, step.indptr[:-1][some])
            found.append(best)
        return found


def _digits12(number: float) -> float:
    """Rounding must not tell equal products apart: all of them would be tried."""
    mantissa, exponent = math.frexp(number)
    return math.ldexp(round(mantissa, 12), exponent)
