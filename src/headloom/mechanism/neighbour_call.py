"""Call of attention over the neighbours of a graph, and its formula in plain torch.

With an edge j -> i, query i (the target) attends to key j (the source). Rows are compressed (CSR):
the places of row i are ``row_starts[i]`` to ``row_starts[i + 1] - 1``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, pad

from headloom.errors import InputError
from headloom.mechanism.parts import changed

#: Largest number of nodes, and of edges: the kernels count them in 32 bits.
MOST = 2**31 - 1


def _grouped(ends: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Sort edges by one end, stably: start of each node's edges, (nodes + 1,), and their order."""
    counts = torch.bincount(ends, minlength=nodes)
    return pad(counts.cumsum(0), (1, 0)), torch.sort(ends, stable=True).indices.int()


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges of a graph, sorted by target; parallel edges stay separate.

    targets, sources   number of target and of source nodes
    row_starts         int64, (targets + 1,)
    columns            int32, (edges,): the source of each place
    numbers            int32, (edges,): the caller's index of the edge at each place; None: the same
    """

    targets: int
    sources: int
    row_starts: Tensor
    columns: Tensor
    numbers: Tensor | None = None

    @classmethod
    def of_index(cls, edge_index: Tensor, targets: int, sources: int) -> Edges:
        """Return the edges of PyTorch Geometric's `edge_index`, integers (2, edges).

        Raises: InputError: it has a node that does not exist; too many nodes or edges.
        """
        if max(targets, sources, edge_index.shape[1]) > MOST:
            raise InputError(f"edges: expected {MOST:,} or fewer nodes and edges.")
        sizes = {"source": sources, "target": targets}
        for (name, nodes), ends in zip(sizes.items(), edge_index, strict=True):
            wrong = ends[(ends < 0) | (ends >= nodes)]
            if len(wrong):
                raise InputError(
                    f"edges: an edge has the {name} {int(wrong[0])}; there are {nodes:,} such "
                    "nodes, counted from 0. Give features for every node, or leave the edge out."
                )
        starts, order = _grouped(edge_index[1], targets)
        return cls(targets, sources, starts, edge_index[0][order.long()].int(), order)

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def rows(self) -> Tensor:
        """Target of each place: int64, (edges,)."""
        targets = torch.arange(self.targets, device=self.columns.device)
        return torch.repeat_interleave(targets, self.row_starts.diff(), output_size=len(self))

    @cached_property
    def by_source(self) -> tuple[Tensor, Tensor, Tensor]:
        """Edges sorted by source: start of each source's edges, their targets and their places."""
        starts, places = _grouped(self.columns, self.sources)
        return starts, self.rows.int()[places.long()], places

    def by_number(self, by_place: Tensor) -> Tensor:
        """Reorder a tensor by place, (edges, ...), to the caller's order of edges."""
        if self.numbers is None:
            return by_place
        order = torch.empty_like(self.numbers, dtype=torch.int64)
        order[self.numbers.long()] = torch.arange(len(self), device=order.device)
        return by_place[order]

    def by_place(self, by_number: Tensor) -> Tensor:
        """Reorder a tensor in the caller's order of edges, (edges, ...), to places."""
        return by_number if self.numbers is None else by_number[self.numbers.long()]


class NeighbourScore(IntEnum):
    """Kind of score of target i and source j; the numbers are those of native/neighbours.h.

    ADDITIVE   ``LeakyReLU(a_i + b_j + t_ij)``: Velickovic et al. 2018, equation 3
    VECTOR     ``a . LeakyReLU(q_i + k_j + e_ij) + t_ij``: Brody et al. 2022, equation 7
    DOT        ``scale * q_i . k_j + t_ij``: Vaswani et al. 2017
    """

    ADDITIVE = 0
    VECTOR = 1
    DOT = 2


@dataclass(frozen=True, eq=False)
class NeighbourCall:
    """Arguments of a call; the first dimension is nodes, the second heads.

    values           (sources, heads, value_depth)
    target_terms     a, (targets, heads), and
    source_terms     b, (sources, heads), of additive scores
    queries          q, (targets, heads, depth), and
    keys             k, (sources, heads, depth), of vector and dot scores
    vector           a, (heads, depth), of vector scores
    edge_terms       t, (edges, heads), in the caller's order of edges
    edge_rows        e, (edges, heads, depth), in the same order; of vector scores
    kept             bool, (edges, heads), by place: weights that dropout keeps; None: all
    kept_factor      factor on the kept weights
    """

    edges: Edges
    score: NeighbourScore
    values: Tensor
    target_terms: Tensor | None = None
    source_terms: Tensor | None = None
    queries: Tensor | None = None
    keys: Tensor | None = None
    vector: Tensor | None = None
    edge_terms: Tensor | None = None
    edge_rows: Tensor | None = None
    slope: float = 0.2
    scale: float = 1.0
    kept: Tensor | None = None
    kept_factor: float = 1.0

    #: Names of the differentiable tensors.
    names: ClassVar = (
        "values", "target_terms", "source_terms", "queries", "keys", "vector", "edge_terms",
        "edge_rows",
    )  # fmt: skip

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """Differentiable tensors, in the order of `names`."""
        return tuple(getattr(self, name) for name in self.names)

    @property
    def learns(self) -> bool:
        """Whether a tensor requires a gradient."""
        return any(tensor is not None and tensor.requires_grad for tensor in self.tensors)

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.values.shape[1]

    def with_dropout(self, probability: float) -> NeighbourCall:
        """Return the call with dropout: weights set to 0 with a probability, the others scaled."""
        if not probability:
            return self
        kept = torch.empty(len(self.edges), self.heads, dtype=torch.bool, device=self.values.device)
        factor = 0.0 if probability == 1 else 1 / (1 - probability)
        return changed(self, kept=kept.bernoulli_(1 - probability), kept_factor=factor)

    def with_tensors(self, tensors: tuple[Tensor | None, ...]) -> NeighbourCall:
        """Return the call with other tensors, in the order of `tensors`."""
        return changed(self, **dict(zip(self.names, tensors, strict=True)))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> NeighbourCall:
        """Return the call with a function applied to each of `tensors`."""
        tensors = tuple(None if tensor is None else change(tensor) for tensor in self.tensors)
        return self.with_tensors(tensors)


def _needed(tensor: Tensor | None) -> Tensor:
    assert tensor is not None  # a call has the tensors of its kind of score
    return tensor


def raw_scores(call: NeighbourCall) -> Tensor:
    """Return the score of every edge, by place, (edges, heads)."""
    edges = call.edges
    rows, columns = edges.rows, edges.columns.long()
    terms = None if call.edge_terms is None else edges.by_place(call.edge_terms)
    if call.score is NeighbourScore.ADDITIVE:
        scores = _needed(call.target_terms)[rows] + _needed(call.source_terms)[columns]
        return leaky_relu(scores if terms is None else scores + terms, call.slope)
    queries, keys = _needed(call.queries)[rows], _needed(call.keys)[columns]
    if call.score is NeighbourScore.DOT:
        scores = (queries * keys).sum(-1) * call.scale
    else:
        summed = queries + keys
        if call.edge_rows is not None:
            summed = summed + edges.by_place(call.edge_rows)
        scores = (leaky_relu(summed, call.slope) * _needed(call.vector)).sum(-1)
    return scores if terms is None else scores + terms


def weights_of(call: NeighbourCall, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax of each row, (edges, heads), and its log-sum-exp, (targets, heads)."""
    rows, shape = call.edges.rows, (call.edges.targets, scores.shape[1])
    with torch.no_grad():
        largest = scores.new_full(shape, -torch.inf)
        largest = largest.scatter_reduce(0, rows[:, None].expand_as(scores), scores, "amax")
        shift = largest.masked_fill(largest == -torch.inf, 0)
    exponentials = (scores - shift[rows]).exp()
    sums = scores.new_zeros(shape).index_add(0, rows, exponentials)
    empty = sums == 0
    lse = (shift + sums.masked_fill(empty, 1).log()).masked_fill(empty, -torch.inf)
    return exponentials / sums.masked_fill(empty, 1)[rows], lse


def dropped(call: NeighbourCall, weights: Tensor) -> Tensor:
    """Apply dropout to weights by place."""
    return weights if call.kept is None else weights * call.kept * call.kept_factor


def output(call: NeighbourCall) -> Tensor:
    """Return the weighted sums, (targets, heads, value_depth)."""
    weights, _ = weights_of(call, raw_scores(call))
    messages = dropped(call, weights)[..., None] * call.values[call.edges.columns.long()]
    shape = (call.edges.targets, *call.values.shape[1:])
    return messages.new_zeros(shape).index_add(0, call.edges.rows, messages)
