"""What the rows of a layer have on sets of keys: one pass over its weights, or its kept edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from headloom.analysis.heads.chance import log_means
from headloom.analysis.heads.patterns import Pattern, visible_keys
from headloom.analysis.weights import (
    Source,
    keeps_all,
    largest_left_out,
    left_out,
    mass_on_keys,
    name_of,
    row_tiles,
    weights_of,
)
from headloom.formats.trace import TraceLayer
from headloom.mechanism.graph import AttentionGraph

__all__ = ["LayerWeights"]

#: Cells of a set that are looked at at once.
CELLS = 2**21


class LayerWeights:
    """The weights of a layer, row by row.

    Args:
        layer: of a trace.
        exact: see `headloom.analysis.weights.weights_of`.

    Raises: InputError: exact weights that the layer does not have.
    """

    def __init__(self, layer: TraceLayer, *, exact: bool | None = None) -> None:
        self.layer = layer
        self.graph: AttentionGraph = layer.graph
        self.weights: Source = weights_of(layer, exact, check=False)
        #: "exact", "rounded" or "kept".
        self.source = name_of(layer, self.weights)
        self._visible = visible_keys(layer)

    @property
    def broken(self) -> Tensor:
        """Which heads have a row of weights that are no numbers (NaN), (heads,)."""
        return self.graph.lse.isnan().any(-1)

    @property
    def one_sequence(self) -> bool:
        """Whether a sequence looks at itself."""
        _, queries, keys = self.layer.shape
        return self.layer.queries_from == self.layer.keys_from and queries == keys

    @cached_property
    def row_mass(self) -> Tensor:
        """What a row has on all its keys: 1, less what a sink takes where that is known."""
        looks = (self.graph.count > 0).double()
        terms = self.layer.terms
        if terms is not None and terms.sinks is not None:
            return mass_on_keys(self.graph, terms.sinks)
        if self.source == "exact" and isinstance(self.weights, AttentionGraph):
            return looks - self.graph.rest.double().clamp(0, 1)
        # Rows of half precision that were given may sum to some hundredths more.
        whole = self.graph.weights.sum(-1, dtype=torch.float64) + self.graph.rest.double()
        return looks * whole.clamp(min=1)

    @cached_property
    def left_out(self) -> tuple[Tensor, Tensor]:
        """Each row's mass on edges that were not kept, and the most that one of them weighs."""
        masses = self.row_mass
        return left_out(self.graph, masses), largest_left_out(self.graph, masses)

    @cached_property
    def largest(self) -> Tensor:
        """The largest weight of each row, (heads, queries)."""
        if not self.graph.k:
            return self.row_mass
        kept = self.graph.keys[..., 0] >= 0
        return torch.where(kept, self.graph.weights[..., 0].double(), self.row_mass)

    @cached_property
    def rest(self) -> Tensor:
        """The mean mass of a row on keys that no measure sees, (heads,): 0 of all weights."""
        if self.source != "kept":
            return torch.zeros(self.layer.heads, dtype=torch.float64)
        return self.left_out[0].sum(-1) / (self.graph.count > 0).sum(-1).clamp(min=1)

    @cached_property
    def squares(self) -> Tensor:
        """``sum_j w_ij^2``: one over it is the row's effective number of keys.

        Of kept edges as much as it can be, so that chance is not taken to vary less than it does.
        """
        if not isinstance(self.weights, AttentionGraph):
            return self.weights.sum_of_squares().double()
        mass, largest = self.left_out
        return self.graph.weights.double().square().sum(-1) + mass * largest

    @cached_property
    def log_means(self) -> tuple[Tensor, Tensor]:
        """``log (1 / n sum_j e^(a w_ij))`` of each row for a and -a of `RATES`, or more than it.

        Two of (rates, heads, queries).
        """
        known = torch.where(self.graph.keys >= 0, self.graph.weights, -1)
        row = known, *self.left_out, self.counts
        return log_means(*row, 1), log_means(*row, -1)

    @cached_property
    def counts(self) -> Tensor:
        """How many keys each row may look at, (heads, queries)."""
        if self.layer.terms is not None or not keeps_all(self.graph):
            return self.graph.count.long()
        # Weights that were given say how many are not 0.
        parts = [visible.sum(-1) for _, visible in self.visible()]
        counts = torch.cat(parts, -1) if parts else self.graph.count
        return counts.expand(self.graph.count.shape).long()

    def visible(self) -> Iterator[tuple[range, Tensor]]:
        """Some rows at a time, and which keys they may look at, (heads or 1, rows, keys)."""
        _, queries, keys = self.layer.shape
        size = max(1, CELLS // max(1, keys))
        for start in range(0, queries, size):
            rows = range(start, min(start + size, queries))
            yield rows, self._visible(rows)

    def measured(self, patterns: Sequence[Pattern]) -> tuple[Tensor, Tensor]:
        """How many keys of its sets each row may look at, and what it has on them.

        Returns: two of (patterns, heads, queries): int64, and float64.
        """
        heads, queries, _ = self.layer.shape
        sizes = torch.zeros(len(patterns), heads, queries, dtype=torch.long)
        masses = torch.zeros(len(patterns), heads, queries, dtype=torch.float64)
        for rows, weights, keys in self._blocks():
            part = slice(rows.start, rows.stop)
            visible = self._visible(rows)
            cells = [pattern.cells(rows) for pattern in patterns]
            for place, of in enumerate(cells):
                sizes[place, :, part] = (of & visible).sum(-1, dtype=torch.int32).long()
            masses[:, :, part] = _sums(weights, keys, cells)
        return torch.minimum(sizes, self.counts), masses

    def distance(self) -> Tensor:
        """``sum_j w_ij |i - j|`` of each row, in tokens, (heads, queries)."""
        heads, queries, length = self.layer.shape
        if self.layer.mask == "causal" and not isinstance(self.weights, AttentionGraph):
            # Products lose less where the numbers are small.
            columns = torch.stack((torch.ones(length), torch.arange(length) / length), -1)
            mass, place = (self.weights @ columns).double().unbind(-1)
            return mass * torch.arange(queries) - place * length
        found = torch.zeros(heads, queries, dtype=torch.float64)
        for rows, weights, keys in self._blocks():
            away = (torch.arange(length) - torch.arange(rows.start, rows.stop)[:, None]).abs()
            found[:, rows.start : rows.stop] = _sums(weights, keys, [away])[0]
        return found

    def partners(self) -> Tensor:
        """``sum_(j != i) w_ij w_ji`` of each row; for a sequence that looks at itself."""
        if isinstance(self.weights, AttentionGraph):
            back = []
            for head in range(self.layer.heads):
                edges = self.graph.adjacency(head).astype(np.float64)
                edges.setdiag(0)
                back.append(np.asarray((edges * edges.T).sum(1)))
            return torch.from_numpy(np.stack(back))
        both = self.weights.reciprocity().double() - self.weights.mass(0).double().square()
        return both.clamp(min=0)

    def _blocks(self) -> Iterator[tuple[range, Tensor, Tensor | None]]:
        """Some rows at a time: the cells, (heads, rows, keys) or the first keys; or, of kept edges,
        their weights and keys, (heads, rows, places).
        """
        if not isinstance(self.weights, AttentionGraph):
            causal = self.layer.mask == "causal"
            for rows, _, tile in row_tiles(self.weights, causal=causal):
                yield rows, tile, None
            return
        _, queries, length = self.layer.shape
        size = max(1, CELLS // max(1, length))
        for start in range(0, queries, size):
            rows = range(start, min(start + size, queries))
            part = slice(start, rows.stop)
            keys = self.graph.keys[:, part].clamp(min=0).long()
            yield rows, self.graph.weights[:, part], keys


def _sums(weights: Tensor, keys: Tensor | None, factors: Sequence[Tensor]) -> Tensor:
    """``sum_j w_ij f_ij`` for each factor, (factors, heads, rows), float64.

    weights: of all cells, keys None; or of edges to these keys. factors: (rows, keys) or (heads,
    rows, keys).
    """
    heads, rows, width = weights.shape
    sums = torch.zeros(len(factors), heads, rows, dtype=torch.float64)
    if keys is not None:
        for place, factor in enumerate(factors):
            cells = factor.expand(heads, -1, -1).gather(-1, keys)
            sums[place] = (weights * cells).sum(-1, dtype=torch.float64)
        return sums
    # Those that are the same for all heads in one product.
    shared = [place for place, factor in enumerate(factors) if factor.ndim == 2]
    if shared:
        together = torch.stack([factors[place][..., :width].to(weights.dtype) for place in shared])
        sums[shared] = torch.einsum("hrc,prc->phr", weights, together).double()
    for place, factor in enumerate(factors):
        if factor.ndim == 3:
            cells = factor[..., :width].to(weights.dtype)
            sums[place] = (weights * cells).sum(-1, dtype=torch.float64)
    return sums
