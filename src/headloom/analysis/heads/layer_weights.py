"""Weights of a layer in blocks of rows; their masses on patterns; and sinks.

Sinks are tokens to which heads of all layers attend from any query: the first one, and others with
little meaning ("the", "of", a full stop). The mean weight of a head on key j from distant rows,
compared with a uniform row,

    a_j = mean of w_ij over the rows i that see j, |i - j| > REACH
    e_j = mean of 1 / n_i over the same rows

is large if (a_j - e_j) / (1 - e_j) is EFFECT or more. A key is a sink for the heads of a layer if
it is large for SHARE of all heads of the *other* layers or more, two at least: so the heads that
are compared with chance do not influence the choice of keys.

Source: Xiao et al. 2024 (attention sinks); Sun et al. 2024, sections 2 and 4 (massive activations);
Gu et al. 2025, section 3 (a_j of a head with a threshold; here it is lower, and beyond chance).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from headloom.analysis.heads.patterns import Pattern, VisibleKeys, visible_keys
from headloom.analysis.weights import (
    Source,
    keeps_all,
    largest_left_out,
    left_out,
    mass_on_keys,
    name_of,
    weights_of,
)
from headloom.formats.trace import TraceLayer
from headloom.mechanism.graph import AttentionGraph

#: Cells of a block: 8 MiB of float32, which fit into the processor's cache.
CELLS = 2**21
#: Distance of local tokens; attention to sinks comes from farther away.
REACH = 4
#: Smallest effect of a head on a sink beyond chance; smallest share of the other layers' heads; and
#: smallest number of distant rows, since two rows may share a key for other reasons.
EFFECT, SHARE, ROWS = 0.1, 0.1, 3


@dataclass(frozen=True, eq=False)
class RowSums:
    """Sums over the weights of a layer, float64.

    squares    ``sum_j w_ij^2``: its inverse is the effective number of keys; (heads, queries)
    distance   ``sum_j w_ij |i - j|``, in tokens, (heads, queries)
    far        attention received by each key from distant rows, (heads, keys)
    masses     by pattern, the mass of each row on its keys, (heads, queries)
    """

    squares: Tensor
    distance: Tensor
    far: Tensor
    masses: dict[str, Tensor]


class LayerWeights:
    """Weights of a layer, row by row: all of them, or the kept edges.

    Args:
        layer: of a trace.
        exact: see `headloom.analysis.weights.weights_of`.
        patterns: by name; their masses are computed in one pass over the weights.

    source: "exact", "rounded" or "kept".

    Raises: InputError: exact weights that the layer does not have.
    """

    def __init__(
        self, layer: TraceLayer, *, exact: bool | None = None,
        patterns: Mapping[str, Pattern] | None = None,
    ) -> None:  # fmt: skip
        self.layer, self.patterns = layer, dict(patterns or {})
        self.graph: AttentionGraph = layer.graph
        self.weights: Source = weights_of(layer, exact, check=False)
        self.source = name_of(layer, self.weights)

    @cached_property
    def visible(self) -> VisibleKeys:
        """Visible keys of each row."""
        return visible_keys(self.layer)

    @property
    def broken(self) -> Tensor:
        """Whether each head has a row of NaN weights, (heads,)."""
        return self.graph.lse.isnan().any(-1)

    @cached_property
    def row_mass(self) -> Tensor:
        """Mass of a row on all its keys: 1, less the sink's mass if it is known."""
        looks = (self.graph.count > 0).double()
        terms = self.layer.terms
        if terms is not None and terms.sinks is not None:
            return mass_on_keys(self.graph, terms.sinks)
        if self.source == "exact" and isinstance(self.weights, AttentionGraph):
            return looks - self.graph.rest.double().clamp(0, 1)
        # Rows in half precision may sum to some hundredths more.
        whole = self.graph.weights.sum(-1, dtype=torch.float64) + self.graph.rest.double()
        return looks * whole.clamp(min=1)

    @cached_property
    def left_out(self) -> tuple[Tensor, Tensor]:
        """Mass of each row on edges that were not kept, and upper bound of one such edge."""
        masses = self.row_mass
        return left_out(self.graph, masses), largest_left_out(self.graph, masses)

    @cached_property
    def largest(self) -> Tensor:
        """Largest weight of each row, (heads, queries)."""
        if not self.graph.k:
            return self.row_mass
        kept = self.graph.keys[..., 0] >= 0
        return torch.where(kept, self.graph.weights[..., 0].double(), self.row_mass)

    @cached_property
    def rest(self) -> Tensor:
        """Mean mass of a row on keys that were not kept, (heads,): 0 for all weights."""
        if self.source != "kept":
            return torch.zeros(self.layer.heads, dtype=torch.float64)
        return self.left_out[0].sum(-1) / (self.graph.count > 0).sum(-1).clamp(min=1)

    @cached_property
    def counts(self) -> Tensor:
        """Number of visible keys of each row, (heads, queries)."""
        if self.layer.terms is not None or not keeps_all(self.graph):
            return self.graph.count.long()
        # In traces from arrays of weights, count is the number of weights above 0.
        return self.visible.sizes(None).expand(self.graph.count.shape)

    @cached_property
    def sums(self) -> RowSums:
        """Sums from one pass over the weights."""
        heads, queries, keys = self.layer.shape
        squares = torch.zeros(heads, queries, dtype=torch.float64)
        masses = torch.zeros(1 + len(self.patterns), heads, queries, dtype=torch.float64)
        far = torch.zeros(heads, keys, dtype=torch.float64)
        reach = reach_of(self.layer)
        for rows, weights, places in self.tiles():
            part, i = slice(rows.start, rows.stop), torch.arange(rows.start, rows.stop)[:, None]
            away = (places - i).abs()
            inside = (pattern.contains(i, places) for pattern in self.patterns.values())
            masses[:, :, part] = _sums_of(weights, [away, *inside])
            squares[:, part] = torch.linalg.vector_norm(weights, dim=-1).double().square()
            if places.ndim > 1:
                distant = weights.where(away > reach, 0).double().flatten(1)
                far.scatter_add_(1, places.flatten(1), distant)
                continue
            first = int(places[0]) if len(places) else 0
            far[:, first : first + len(places)] += weights.sum(1).double()
            for offset in range(rows.start - first - reach, rows.start - first + reach + 1):
                near = weights.diagonal(offset, 1, 2)
                start = first + max(offset, 0)
                far[:, start : start + near.shape[1]] -= near
        if isinstance(self.weights, AttentionGraph):
            # The upper bound, so that the variance of chance is not underestimated.
            mass, largest = self.left_out
            squares += mass * largest
        of_patterns = dict(zip(self.patterns, masses[1:], strict=True))
        return RowSums(squares, masses[0], far, of_patterns)

    def mass_on(self, keys: Sequence[int]) -> Tensor:
        """Return the mass of each row on the same few keys, (heads, queries)."""
        if isinstance(self.weights, AttentionGraph):
            inside = torch.isin(self.graph.keys, torch.tensor(keys, dtype=self.graph.keys.dtype))
            return (self.graph.weights * inside).sum(-1, dtype=torch.float64)
        heads, queries, length = self.layer.shape
        mass = torch.zeros(heads, queries, dtype=torch.float64)
        for key in filter(length.__gt__, keys):
            mass += self.cells(range(queries), range(key, key + 1))[..., 0]
        return mass

    def partners(self) -> Tensor:
        """Return ``sum_(j != i) w_ij w_ji`` of each row, in self-attention."""
        if isinstance(self.weights, AttentionGraph):
            back = []
            for head in range(self.layer.heads):
                edges = self.graph.adjacency(head).astype(np.float64)
                edges.setdiag(0)
                back.append(np.asarray((edges * edges.T).sum(1)))
            return torch.from_numpy(np.stack(back))
        both = self.weights.reciprocity().double() - self.weights.mass(0).double().square()
        return both.clamp(min=0)

    def tiles(self) -> Iterator[tuple[range, Tensor, Tensor]]:
        """Yield blocks of rows: weights (heads, rows, places), and their keys.

        The keys are (places,), the same for all rows; or of kept edges, of their weights' shape.
        """
        heads, queries, _ = self.layer.shape
        first, end = self.visible.first, self.visible.end
        start = 0
        while start < queries:
            width = self.graph.k
            if not isinstance(self.weights, AttentionGraph):
                width = int(end[start] - first[start]) + 256
            stop = min(start + max(1, CELLS // max(1, heads * width)), start + 512, queries)
            rows, part = range(start, stop), slice(start, stop)
            if isinstance(self.weights, AttentionGraph):
                keys = self.graph.keys[:, part].clamp(min=0).long()
                yield rows, self.graph.weights[:, part], keys
            else:
                left, right = int(first[part].min()), int(end[part].max())
                yield rows, self.cells(rows, range(left, right)), torch.arange(left, right)
            start = stop

    def cells(self, rows: range, keys: range) -> Tensor:
        """Return all weights of some rows on some keys, (heads, rows, keys)."""
        matrix, terms = self.weights, self.layer.terms
        assert not isinstance(matrix, AttentionGraph) and terms is not None
        part, inside = slice(rows.start, rows.stop), slice(keys.start, keys.stop)
        added = terms.relative is not None or terms.bias is not None
        if added or self.layer.softcap is not None:
            return matrix[:, part, inside]
        queries, lse = matrix.queries[:, part] * self.layer.scale, matrix.lse[:, part]
        # A row without visible keys has lse = -inf and weights 0. Heads are grouped by key head.
        less, groups = (-lse).masked_fill(lse == -torch.inf, -torch.inf), len(matrix.keys)
        weights = torch.baddbmm(
            less.reshape(groups, -1, 1),
            queries.reshape(groups, -1, queries.shape[-1]),
            matrix.keys[:, inside].mT,
        ).view(self.layer.heads, len(rows), len(keys))
        hidden = ~self.visible.cells(rows, keys)
        # In a causal layer, the last columns only.
        for column in hidden.any(-2).flatten().nonzero()[:1, 0].tolist():
            weights[..., column:].masked_fill_(hidden[..., column:], -torch.inf)
        return weights.exp_()


def reach_of(layer: TraceLayer) -> int:
    """Return the distance of near tokens; -1 between two sequences."""
    return REACH if layer.one_sequence else -1


def _sums_of(weights: Tensor, factors: Sequence[Tensor]) -> Tensor:
    """Return ``sum_j w_ij f_ij`` for each factor, (factors, heads, rows), float64.

    factors: (rows, places), computed in one product; or (heads, rows or 1, places).
    """
    sums = torch.zeros(len(factors), *weights.shape[:2], dtype=torch.float64)
    shared = [place for place, factor in enumerate(factors) if factor.ndim == 2]
    if shared:
        together = torch.stack([factors[place].to(weights.dtype) for place in shared])
        sums[shared] = torch.einsum("hrc,prc->phr", weights, together).double()
    for place, factor in enumerate(factors):
        if factor.ndim == 3:
            factor = factor.to(weights.dtype)
            every = factor.shape[1] == 1
            sums[place] = (weights @ factor.mT)[..., 0] if every else (weights * factor).sum(-1)
    return sums


def sink_keys(
    layers: Sequence[TraceLayer | LayerWeights], *, exact: bool | None = None
) -> list[list[int] | None]:
    """Return the sinks of each layer, found by the heads of the other layers.

    Args:
        layers: of a trace.
        exact: see `headloom.analysis.weights.weights_of`.

    Returns: for each layer its places, in order; None: no other layer has the same queries and
    keys.
    Raises: InputError: `exact` is True, and a layer's weights are not known exactly.

    >>> import headloom
    >>> third = torch.zeros(2, 12, 12)
    >>> third[..., 2] = 1
    >>> (layer,) = headloom.from_weights(third, mask=torch.ones(12, 12).bool()).layers
    >>> sink_keys([layer, layer]), sink_keys([layer])
    ([[2], [2]], [None])
    """
    groups: dict[tuple[str, str, int], list[int]] = {}
    read = [
        layer if isinstance(layer, LayerWeights) else LayerWeights(layer, exact=exact)
        for layer in layers
    ]
    for number, weights in enumerate(read):
        layer = weights.layer
        groups.setdefault((layer.queries_from, layer.keys_from, layer.shape[2]), []).append(number)
    sinks: list[list[int] | None] = [None] * len(read)
    for members in groups.values():
        if len(members) < 2:
            continue
        large = [(looked_at(read[n]) >= EFFECT).sum(0) for n in members]
        heads = sum(read[n].layer.heads for n in members)
        together = torch.stack(large).sum(0)
        for number, count in zip(members, large, strict=True):
            least = max(2.0, SHARE * (heads - read[number].layer.heads))
            sinks[number] = (together - count >= least).nonzero().flatten().tolist()
    return sinks


def looked_at(weights: LayerWeights) -> Tensor:
    """Return the effect of each head on each key from distant rows, (heads, keys).

    Minus infinity for a key visible to fewer than ROWS distant rows.
    """
    even = 1 / weights.counts.double().clamp(min=1)
    reach = reach_of(weights.layer)
    rows = weights.visible.column_sums(torch.ones_like(even), reach)
    chance = weights.visible.column_sums(even, reach) / rows.clamp(min=1)
    effect = (weights.sums.far / rows.clamp(min=1) - chance) / (1 - chance).clamp(min=1e-12)
    return effect.masked_fill(rows < ROWS, -torch.inf)
