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
edges of the path. Averaged weights are made some rows at a time, so memory is linear in the length.

Source: Abnar and Zuidema 2020, section 3, whose rollout is the sum of these products.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from torch import Tensor

from headloom.analysis.arguments import real_number
from headloom.analysis.graphs.head_average import average_rows, averaged
from headloom.analysis.graphs.rollout import chosen_layers
from headloom.analysis.interval import left_out
from headloom.errors import InputError
from headloom.formats.trace import TraceData, TraceLayer
from headloom.mechanism.shapes import check_flag, place_of, whole_number

__all__ = ["KeptEdges", "Network", "Path", "StrongestPaths", "strongest_paths"]

#: Cells of a layer up to which all of its weights are taken.
CHEAP_CELLS = 2**22
#: Cells of the kept edges of all heads that are averaged at once.
_PART = 2**20
#: Bytes of layers held at most, besides the one last asked for.
_HELD = 2**28

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class KeptEdges:
    """Of a layer. keys, weights: (heads, queries, places); key -1: no edge.

    missing: (queries,), the mass of a row on edges that were not kept, the mean over heads.
    """

    keys: Tensor
    weights: Tensor
    missing: Numbers


@dataclass(frozen=True)
class Path:
    """One path. steps: sequence and position, of the last layer first; product: see the module."""

    product: float
    steps: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class StrongestPaths:
    """The strongest paths between two positions, and what all paths between them sum to.

    least, most: the entry of the rollout; equal where all weights are known.
    """

    paths: list[Path]
    least: float
    most: float


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
        kind: as in `headloom.analysis.graphs.rollout.rollout`.
        exact: True: from all weights; False: from the kept edges; None: from all where that is
            cheap.
        residual: what comes past a layer, 0 to 1.

    Raises: InputError: no such position or layer; no exact weights; weights that are no numbers.

    >>> import torch
    >>> from headloom.analysis.dense_layer import layer_of_weights
    >>> layer = layer_of_weights(torch.tensor([[[0.25, 0.75], [0.5, 0.5]]]))
    >>> found = strongest_paths(TraceData({"tokens": ["a", "b"]}, (layer, layer)), 0, 1)
    >>> [(round(path.product, 5), [at for _, at in path.steps]) for path in found.paths]
    [(0.28125, [0, 1, 1]), (0.23438, [0, 0, 1])]
    >>> round(found.least, 4)                                     # their sum: all there are
    0.5156
    """
    count = whole_number("paths", "count", count, 1)
    network = Network(trace, kind=kind, exact=exact, residual=residual)
    chosen_layers(trace, kind, "paths")
    start = network.node(network.queries, position)
    return network.strongest(start, network.node(network.keys, target), count)


class Network:
    """The positions of all sequences that take part, one after the other, and A_l of each layer.

    Args: as `strongest_paths`; and
        kept: gives the kept edges of a layer; None: read from the trace.
    """

    def __init__(
        self,
        trace: TraceData,
        *,
        kind: str | None = None,
        exact: bool | None = None,
        residual: float = 0.5,
        kept: Callable[[TraceLayer], KeptEdges] | None = None,
    ) -> None:
        self.layers, self.queries, self.keys, self.sizes = chosen_layers(trace, kind)
        check_flag("paths", "exact", exact, optional=True)
        residual = real_number("paths", "residual", residual)
        starts = np.cumsum([0, *self.sizes.values()]).tolist()
        #: The first node of each sequence.
        self.first: dict[str, int] = dict(zip(self.sizes, starts, strict=False))
        self.nodes: int = starts[-1]
        self._exact, self._residual, self._kept = exact, residual, kept or _read
        self._steps: OrderedDict[int, Step] = OrderedDict()

    def node(self, sequence: str, position: int) -> int:
        """The node of a position; a negative one counts from the end.

        Raises: InputError: no such position.
        """
        size = self.sizes[sequence]
        return self.first[sequence] + place_of("sequence", "paths", "position", position, size)

    def place(self, node: int) -> tuple[str, int]:
        """The sequence and the position of a node."""
        name = max(
            (one for one in self.first if self.first[one] <= node), key=self.first.__getitem__
        )
        return name, node - self.first[name]

    def shares(self, start: int) -> Numbers:
        """How much of a node of the last layer comes through each node of each layer.

        Returns: (layers + 1, nodes): row 0 is the input, a row of the rollout; each sums to at most
        1. What it lacks went along edges that were not kept, which `unknown` says; or it ended, at
        sinks and at rows that may look at no key.
        """
        found = np.zeros((len(self.layers) + 1, self.nodes))
        found[-1, start] = 1
        for level in range(len(self.layers), 0, -1):
            step = self.step(level)
            above, below = found[level], found[level - 1]
            below += above
            below[step.own] = 0
            for rows, part in step.parts(above[step.own] > 0):
                below += part.T @ above[step.own][rows]
        return found

    def unknown(self, shares: Numbers) -> float:
        """How much of a node came along edges that were not kept. shares: see `shares`."""
        found = 0.0
        for level in range(1, len(self.layers) + 1):
            step = self.step(level)
            above = shares[level][step.own]
            # A row whose mass is not a number does not matter where nothing comes through it.
            some = above > 0
            found += (1 - step.residual) * float(above[some] @ step.missing[some])
        return found

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
            for node, weight in zip(*self.step(level).row(path[-1]), strict=True):
                left = product * weight * best[level - 1][node]
                if left > 0:
                    heapq.heappush(waiting, (-_digits12(left), (*path, node), product * weight))
        shares = self.shares(start)
        least = float(shares[0][target])
        paths = [Path(product, tuple(map(self.place, path))) for product, path in found]
        return StrongestPaths(paths, least, max(least, min(1.0, least + self.unknown(shares))))

    def _best(self, target: int) -> list[Numbers]:
        """The largest product with which each node of each layer reaches the target."""
        best = np.zeros(self.nodes)
        best[target] = 1
        found = [best]
        for level in range(1, len(self.layers) + 1):
            step = self.step(level)
            best = found[-1].copy()
            own = best[step.own]
            for rows, part in step.parts():
                products = part.data * found[-1][part.indices]
                largest = np.zeros(part.shape[0])
                some = np.diff(part.indptr) > 0
                if some.any():
                    largest[some] = np.maximum.reduceat(products, part.indptr[:-1][some])
                own[rows] = largest
            found.append(best)
        return found

    def step(self, level: int) -> Step:
        """A_l of a layer, from 1; a few are held."""
        if level not in self._steps:
            self._steps[level] = self._made(self.layers[level - 1])
            while len(self._steps) > 1 and sum(of.held for of in self._steps.values()) > _HELD:
                self._steps.popitem(last=False)
        self._steps.move_to_end(level)
        return self._steps[level]

    def _made(self, layer: TraceLayer) -> Step:
        exact = self._exact
        if exact is None:
            cheap = math.prod(layer.shape) <= CHEAP_CELLS
            exact = cheap and layer.data.has_matrix and not layer.data.keeps_every_edge
        if exact:
            # A layer of its own, so that what it reads can be let go.
            dense = averaged(dataclasses.replace(layer), True).dense().double().numpy()
            return Step(self, layer, self._residual, dense, None)
        return Step(self, layer, self._residual, None, self._kept(layer))


@dataclass(frozen=True, eq=False)
class Step:
    """A = r I + (1 - r) W of one layer, some rows at a time."""

    network: Network
    layer: TraceLayer
    residual: float
    dense: Numbers | None
    kept: KeptEdges | None

    @property
    def held(self) -> int:
        """Bytes of its weights."""
        if self.kept is not None:
            return self.kept.keys.nbytes + self.kept.weights.nbytes
        assert self.dense is not None
        return self.dense.nbytes

    @property
    def missing(self) -> Numbers:
        """The mass of each row on edges that were not kept, (queries,)."""
        return np.zeros(self.layer.shape[1]) if self.kept is None else self.kept.missing

    @property
    def own(self) -> slice:
        """The nodes that the layer changes."""
        first = self.network.first[self.layer.queries_from]
        return slice(first, first + self.layer.shape[1])

    def parts(
        self, wanted: NDArray[np.bool_] | None = None
    ) -> Iterator[tuple[NDArray[np.int64], scipy.sparse.csr_array]]:
        """Some rows after the other, as (which, (rows, nodes) sparse). wanted: None: all rows."""
        heads, queries, _ = self.layer.shape
        rows = np.arange(queries) if wanted is None else np.flatnonzero(wanted)
        wide = self.layer.shape[2] if self.kept is None else heads * self.kept.keys.shape[-1]
        size = max(1, _PART // max(wide, 1))
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            yield some, self._part(some)

    def row(self, node: int) -> tuple[list[int], list[float]]:
        """The nodes that a node takes from, and how much of each."""
        if not self.own.start <= node < self.own.stop:
            return [node], [1.0]
        part = self._part(np.array([node - self.own.start]))
        return part.indices.tolist(), part.data.tolist()

    def _part(self, rows: NDArray[np.int64]) -> scipy.sparse.csr_array:
        if self.dense is not None:
            mean = scipy.sparse.csr_array(self.dense[rows])
        else:
            assert self.kept is not None
            keys, weights = self.kept.keys[:, rows], self.kept.weights[:, rows]
            mean = average_rows(keys, weights, self.layer.shape[2])
        if np.isnan(mean.data).any():
            raise InputError(
                f"paths: layer {self.layer.name} has weights that are not numbers (NaN), since the "
                "model's queries or keys were not. All such rows of a trace: headloom query TRACE "
                '"select layer, head, query from rows where isnan(lse)".'
            )
        of = np.repeat(np.arange(len(rows)), np.diff(mean.indptr))
        shape = (len(rows), self.network.nodes)
        columns = np.concatenate(
            [mean.indices + self.network.first[self.layer.keys_from], rows + self.own.start]
        )
        data = np.concatenate(
            [(1 - self.residual) * mean.data.astype(np.float64), np.full(len(rows), self.residual)]
        )
        part = scipy.sparse.csr_array(
            (data, (np.r_[of, np.arange(len(rows))], columns)), shape=shape
        )
        part.sum_duplicates()
        return part


def _read(layer: TraceLayer) -> KeptEdges:
    # Not layer.graph, which would stay in memory.
    graph = layer.data.graph()
    return KeptEdges(graph.keys, graph.weights, left_out(graph)[0].double().mean(0).numpy())


def _digits12(number: float) -> float:
    """Rounding must not tell equal products apart: all of them would be tried."""
    mantissa, exponent = math.frexp(number)
    return math.ldexp(round(mantissa, 12), exponent)
