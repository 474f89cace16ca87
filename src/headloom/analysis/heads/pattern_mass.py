"""The weights of a traced layer, as far as they are known: exactly, or between two bounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headloom.analysis.arguments import check_layer
from headloom.analysis.heads.cells import cells_of, members
from headloom.analysis.heads.chance import log_means
from headloom.analysis.heads.patterns import (
    Allowed,
    Diagonals,
    HeadKeys,
    Pattern,
    allowed_keys,
)
from headloom.analysis.interval import Interval, keeps_all, left_out, mass_on_keys
from headloom.errors import InputError
from headloom.formats.trace import TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.masks import causal
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.mechanism.shapes import check_flag, repeat_kv_heads

__all__ = [
    "CHEAP_CELLS",
    "LayerWeights",
    "in_half_precision",
    "only_edges_exact",
    "rounded_to",
    "weights_of",
]

#: Cells computed at a time: 64 MiB of float32.
BLOCK_CELLS = 2**24

#: Cells of a layer up to which a pass over the whole matrix is made without being asked for.
CHEAP_CELLS = 2**28


def rounded_to(layer: TraceLayer) -> str | None:
    """The type of half precision that a layer's queries and keys are stored in; None: no such."""
    stored = layer.queries
    if stored is None or not layer.half_precision:
        return None
    return str(stored.dtype).removeprefix("torch.")


def only_edges_exact(layer: TraceLayer) -> bool:
    """Whether a layer keeps all edges, the model's own, and queries and keys in half precision.

    Its graph is what the model computed then, its matrix that of rounded queries and keys.
    """
    return rounded_to(layer) is not None and keeps_all(layer.graph)


def in_half_precision(layers: Iterable[TraceLayer]) -> str:
    """That weights come from queries and keys in half precision, in a sentence; "": none do."""
    types = sorted({of for layer in layers if (of := rounded_to(layer)) is not None})
    if not types:
        return ""
    return (
        f"Queries and keys are stored in {' and '.join(types)}: weights that are computed from "
        "them are those of rounded ones, not the model's own."
    )


class LayerWeights:
    """What can be said of the weights of a layer, cell by cell and row by row.

    Args:
        layer: of a trace.
        exact: None: masses on patterns are exact wherever queries and keys were kept, since few
            cells have to be computed; what needs the whole matrix is exact where that is cheap,
            and else has bounds from the kept edges. True: everything is exact, or an error says
            why it cannot be. False: the kept edges alone.

    An unkept weight is at most the smallest kept one of its row, and all of them together are
    `rest`: those are the bounds.
    """

    def __init__(self, layer: TraceLayer, *, exact: bool | None = None) -> None:
        check_layer("measure", layer)
        check_flag("measure", "exact", exact, optional=True)
        # A copy reads from disk for itself, and takes what it read with it when it goes.
        self.layer = layer if "graph" in layer.__dict__ else replace(layer)
        self.graph: AttentionGraph = self.layer.graph
        self.allowed: Allowed = allowed_keys(self.layer)
        #: Of which rows some edges were not kept, (heads, queries).
        self.partial = self.graph.count > (self.graph.keys >= 0).sum(-1)
        self.complete = not bool(self.partial.any())
        self.exact = exact
        self._diagonals: dict[int, Tensor] = {}
        if exact and not self.complete and self.matrix is None:
            raise self._not_exact()

    @property
    def broken(self) -> Tensor:
        """Which heads have a row of weights that are no numbers (NaN), (heads,)."""
        return self.graph.lse.isnan().any(-1)

    def _not_exact(self) -> InputError:
        return InputError(
            f"layer {self.layer.name}: its weights are not known exactly: {self.layer.no_matrix}. "
            "Trace the model with queries_keys=True or keep=All(), or leave exact out for bounds."
        )

    @cached_property
    def _queries_keys(self) -> tuple[Tensor, Tensor]:
        """In float32, (heads, positions, depth) both."""
        queries, keys = self.layer.queries, self.layer.keys
        if queries is None or keys is None:
            raise self._not_exact()
        return queries.float(), repeat_kv_heads(keys.float()[None], queries.shape[0])[0]

    @cached_property
    def _cells_known(self) -> bool:
        """Whether the score of a cell is its query times its key, and nothing is added."""
        if self.layer.no_matrix is not None or not self.allowed.known:
            return False
        terms = self.layer.terms
        return terms is not None and terms.relative is None and terms.bias is None

    @property
    def matrix(self) -> AttentionMatrix | None:
        """The exact operator, where the trace has what it takes."""
        return self.layer.matrix

    @property
    def _whole_matrix(self) -> AttentionMatrix:
        """The exact operator, where it was found to be there before."""
        if self.matrix is None:
            raise self._not_exact()
        return self.matrix

    @property
    def source(self) -> str:
        """Where masses come from: "exact"; "rounded" (of stored half precision); or "bound"."""
        if self.complete:
            return "exact"
        if self.exact is False or not (self._cells_known or self.whole):
            return "bound"
        return "exact" if rounded_to(self.layer) is None else "rounded"

    @property
    def _whole(self) -> bool:
        """Whether passes over the whole matrix are to be made."""
        if self.complete or self.exact is False:
            return False
        heads, queries, keys = self.graph.shape
        return bool(self.exact) or heads * queries * keys <= CHEAP_CELLS

    @property
    def whole(self) -> bool:
        """Whether there is the whole matrix, and passes over it are to be made."""
        return self._whole and self.matrix is not None

    # Rows

    @property
    def _hidden(self) -> bool:
        """Whether a mask or a bias that leaves no range of keys may hide some."""
        return not self.allowed.known and self.allowed.seen is None

    @property
    def _shown_by_cells(self) -> bool:
        """Whether the cells of the exact matrix say which keys are hidden."""
        return self._hidden and self.whole

    def sizes(self, pattern: Pattern) -> Tensor:
        """How many keys of its set each row may look at, or, where not `certain`, at most."""
        seen = self.allowed.seen
        if seen is not None:
            inside = pattern.contains(seen.expand(self.layer.heads, *seen.shape))
            return inside.sum(-1)
        sizes = pattern.sizes(self.allowed)
        if not self._hidden:
            return sizes
        if self._shown_by_cells:
            return self._sizes_from_tiles(pattern)
        # Of a row that keeps every edge, every key that the mask shows is among them.
        return torch.where(self.partial, sizes, pattern.contains(self.graph.keys).sum(-1))

    def certain(self, pattern: Pattern) -> Tensor:
        """Whether it is known of each row if it may look at a key of its set, (heads, queries)."""
        if not self._hidden or self._shown_by_cells:
            return torch.ones_like(self.partial)
        return ~self.partial | pattern.contains(self.graph.keys).any(-1)

    @cached_property
    def row_mass(self) -> Tensor:
        """What a row has on all its keys: 1, less what a sink takes where that is known."""
        looks = (self.graph.count > 0).double()
        terms = self.layer.terms
        if terms is not None and terms.sinks is not None:
            return mass_on_keys(self.graph, terms.sinks)
        if self.complete:
            return looks - self.graph.rest.double().clamp(0, 1)
        # Rows of half precision that were given may sum to some hundredths more.
        whole = self.graph.weights.double().sum(-1) + self.graph.rest.double()
        return looks * whole.clamp(min=1)

    @cached_property
    def largest(self) -> Tensor:
        """The largest weight of each row, (heads, queries)."""
        if not self.graph.k:
            return self.row_mass
        kept = self.graph.keys[..., 0] >= 0
        return torch.where(kept, self.graph.weights[..., 0].double(), self.row_mass)

    @cached_property
    def left_out(self) -> tuple[Tensor, Tensor]:
        """Each row's mass on edges that were not kept, and the most that one of them weighs."""
        mass, largest = left_out(self.graph, self.row_mass)
        return mass.double(), largest.double()

    @cached_property
    def squares(self) -> Interval:
        """``sum_j w_ij^2``: one over it is the row's effective number of keys."""
        if self.whole:
            return Interval.exactly(self._whole_matrix.sum_of_squares())
        kept = self.graph.weights.double().square().sum(-1)
        mass, largest = self.left_out
        return Interval(kept, kept + mass * largest)

    @cached_property
    def log_means(self) -> tuple[Tensor, Tensor]:
        """``log (1 / n sum_j e^(a w_ij))`` of each row for a and -a of `RATES`, or more than it.

        Two of (rates, heads, queries).
        """
        known = torch.where(self.graph.keys >= 0, self.graph.weights, -1)
        row = known, *self.left_out, self.allowed.count
        return log_means(*row, 1), log_means(*row, -1)

    # Masses

    def mass(self, pattern: Pattern) -> Interval:
        """What each row has on a pattern's keys."""
        if self.source == "bound" or self.complete:
            return self._from_edges(pattern)
        exactly = self._from_cells if self._cells_known else self._from_tiles
        return Interval.exactly(exactly(pattern))

    def _from_edges(self, pattern: Pattern) -> Interval:
        inside = pattern.contains(self.graph.keys)
        lower = torch.where(inside, self.graph.weights, 0).sum(-1, dtype=torch.float64)
        missing = (self.sizes(pattern) - inside.sum(-1)).clamp(min=0)
        mass, largest = self.left_out
        more = torch.minimum(mass, missing * largest)
        return Interval(lower, lower + more)

    def _from_cells(self, pattern: Pattern) -> Tensor:
        total = torch.zeros(self.graph.shape[:2], dtype=torch.float64)
        if isinstance(pattern, Diagonals):
            for offset in range(pattern.lowest, pattern.highest + 1):
                total += self._diagonal(offset)
            return total
        if isinstance(pattern, HeadKeys):
            return self._on_head_keys(pattern)
        (rows, columns), blocks = cells_of(pattern)
        for of_rows, of_columns in blocks:
            self._add_block(total, of_rows, of_columns, pattern.without)
        if pattern.without is not None:
            others = columns != rows + pattern.without
            rows, columns = rows[others], columns[others]
        self._add_pairs(total, rows, columns)
        return total

    def _on_head_keys(self, pattern: HeadKeys) -> Tensor:
        """The mass of each row on the keys of its head."""
        queries, keys = self._queries_keys
        places = pattern.places
        chosen = keys.gather(1, places[..., None].expand(-1, -1, keys.shape[-1]))
        weights = self._weights(queries @ chosen.transpose(1, 2), self.graph.lse[..., None])
        first, end = self.allowed.first[:, None], self.allowed.end[:, None]
        inside = (places[:, None] >= first) & (places[:, None] < end) & pattern.rows[:, None]
        return torch.where(inside, weights, 0).sum(-1, dtype=torch.float64)

    def _diagonal(self, offset: int) -> Tensor:
        """The weight w_(i, i + offset) of each row; several measures are of the same diagonals."""
        if offset not in self._diagonals:
            total = torch.zeros(self.graph.shape[:2], dtype=torch.float64)
            queries, keys = self.graph.shape[1:]
            first = max(0, -offset)
            rows = torch.arange(first, max(first, min(queries, keys - offset)))
            self._add_pairs(total, rows, rows + offset)
            self._diagonals[offset] = total
        return self._diagonals[offset]

    def _add_pairs(self, total: Tensor, rows: Tensor, columns: Tensor) -> None:
        """Add the weights of single cells to their rows."""
        inside = (columns >= self.allowed.first[rows]) & (columns < self.allowed.end[rows])
        rows, columns = rows[inside], columns[inside]
        queries, keys = self._queries_keys
        size = max(1, BLOCK_CELLS // max(1, queries.shape[0] * queries.shape[2]))
        for start in range(0, len(rows), size):
            i, j = rows[start : start + size], columns[start : start + size]
            products = (queries[:, i] * keys[:, j]).sum(-1)
            total.index_add_(1, i, self._weights(products, self.graph.lse[:, i]).double())

    def _add_block(self, total: Tensor, rows: Tensor, columns: Tensor, without: int | None) -> None:
        """Add the weights of every given column to every given row."""
        queries, keys = self._queries_keys
        of_columns = keys[:, columns].transpose(1, 2)
        size = max(1, BLOCK_CELLS // max(1, queries.shape[0] * len(columns)))
        for start in range(0, len(rows), size):
            i = rows[start : start + size]
            weights = self._weights(queries[:, i] @ of_columns, self.graph.lse[:, i, None])
            inside = (columns >= self.allowed.first[i, None]) & (
                columns < self.allowed.end[i, None]
            )
            if without is not None:
                inside &= columns != i[:, None] + without
            total[:, i] += torch.where(inside, weights, 0).sum(-1, dtype=torch.float64)

    def _weights(self, products: Tensor, lse: Tensor) -> Tensor:
        """Weights from products of queries and keys."""
        scores = products * self.layer.scale
        if self.layer.softcap is not None:
            scores = self.layer.softcap * torch.tanh(scores / self.layer.softcap)
        return (scores - lse.masked_fill(lse == -torch.inf, torch.inf)).exp()

    def _from_tiles(self, pattern: Pattern) -> Tensor:
        """The mass from every cell of the matrix, some rows at a time."""
        total = torch.zeros(self.graph.shape[:2], dtype=torch.float64)
        for head, rows, member in self._tiles(pattern):
            tile = self._whole_matrix[head, rows.start : rows.stop, :]
            mass = torch.where(member, tile, 0).sum(-1, dtype=torch.float64)
            total[head, rows.start : rows.stop] = mass
        return total

    def _sizes_from_tiles(self, pattern: Pattern) -> Tensor:
        """How many keys of its set each row may look at, by the scores of every cell."""
        total = torch.zeros(self.graph.shape[:2], dtype=torch.int64)
        for head, rows, member in self._tiles(pattern):
            shown = self._whole_matrix.scores(head, slice(rows.start, rows.stop)) > -torch.inf
            total[head, rows.start : rows.stop] = (member & shown).sum(-1)
        return total

    def _tiles(self, pattern: Pattern) -> Iterator[tuple[int, range, Tensor]]:
        """Some rows of each head at a time, and which cells of them are the pattern's."""
        heads, queries, keys = self.graph.shape
        size = max(1, BLOCK_CELLS // max(1, keys))
        for start in range(0, queries, size):
            rows = range(start, min(start + size, queries))
            for head, member in enumerate(members(pattern, rows, keys, heads)):
                yield head, rows, member

    def roots(self, start: int, end: int, columns: int, out: Tensor) -> None:
        """Square roots of the weights of some queries on the first keys, exactly.

            sqrt(w_ij) = e^((s_ij - lse_i) / 2)

        out: where they go, (heads, end - start, columns).
        """
        if not self._cells_known or self.layer.softcap is not None:
            matrix = self._whole_matrix
            for head in range(self.layer.heads):
                torch.sqrt(matrix[head, start:end, :columns], out=out[head])
            return
        queries, keys = self._queries_keys
        lse = self.graph.lse[:, start:end, None]
        shift = (-lse / 2).masked_fill(lse == -torch.inf, -torch.inf).expand(-1, -1, columns)
        of_rows = queries[:, start:end] * (self.layer.scale / 2)
        torch.baddbmm(shift, of_rows, keys[:, :columns].transpose(1, 2), out=out)
        out.exp_()
        j = torch.arange(columns)
        first, last = self.allowed.first[start:end, None], self.allowed.end[start:end, None]
        out.masked_fill_((j < first) | (j >= last), 0)

    # Whole matrix

    def distance(self) -> Interval:
        """``sum_j w_ij |i - j|`` of each row, in tokens."""
        position = torch.arange(self.graph.shape[1])
        if self.whole:
            return Interval.exactly(_distance(self.layer, self._whole_matrix))
        places = self.graph.keys
        away = (places - position[:, None]).abs().where(places >= 0, 0)
        lower = (self.graph.weights.double() * away).sum(-1)
        farthest = torch.maximum(position - self.allowed.first, self.allowed.end - 1 - position)
        return Interval(lower, lower + self.left_out[0] * farthest.clamp(min=0))

    def partners(self) -> Interval:
        """``sum_(j != i) w_ij w_ji`` of each row; for a sequence that looks at itself."""
        if self.whole:
            itself = self.mass(Diagonals(0, 0)).lower
            both = self._whole_matrix.reciprocity().double() - itself.square()
            return Interval.exactly(both.clamp(min=0))
        heads, queries, _ = self.graph.shape
        lower = torch.zeros(heads, queries, dtype=torch.float64)
        upper = torch.zeros(heads, queries, dtype=torch.float64)
        for head in range(heads):
            weights: Any = self.graph.adjacency(head).astype("float64")
            weights.setdiag(0)
            weights.eliminate_zeros()
            back = weights.T.tocsr()
            both_kept = weights.astype(bool).multiply(back.astype(bool)).astype("float64")
            mutual = weights.multiply(back).sum(1)
            rest, most = (part[head].numpy() for part in self.left_out)
            # Where one of the two was kept, the other is at most the smallest kept of its row.
            one_way = (weights - weights.multiply(both_kept)) @ most
            other_way = (back - back.multiply(both_kept)).sum(1) * most
            lower[head] = torch.as_tensor(mutual)
            upper[head] = torch.as_tensor(mutual + one_way + other_way + rest * most.max(initial=0))
        return Interval(lower, upper)


def weights_of(layer: TraceLayer | LayerWeights) -> LayerWeights:
    """The weights of a layer, as they are where they were read before."""
    return layer if isinstance(layer, LayerWeights) else LayerWeights(layer)


def _distance(layer: TraceLayer, whole: AttentionMatrix) -> Tensor:
    """Mean distance of each row, from products of the matrix with the positions.

        sum_j w_ij |i - j| = 2 sum_(j <= i) w_ij (i - j) - sum_j w_ij (i - j)

    The keys up to i are those that a causal mask leaves.
    """
    terms = layer.terms
    if terms is None:
        raise InputError(f"layer {layer.name}: its mask is not known: {layer.no_matrix}.")
    _, queries, keys = layer.shape
    position = torch.arange(queries, dtype=torch.float64)
    # Products lose less where the numbers are small.
    columns = torch.stack((torch.ones(keys), torch.arange(keys) / max(keys, 1)), -1)

    def behind(matrix: AttentionMatrix) -> Tensor:
        mass, place = (matrix @ columns).double().unbind(-1)
        return mass * position - place * max(keys, 1)

    if terms.mask == causal():
        return behind(whole)
    up_to = AttentionMatrix(
        whole.queries,
        whole.keys,
        mask=causal() if terms.mask is None else terms.mask & causal(),
        bias=terms.bias,
        relative=terms.relative,
        scale=layer.scale,
        softcap=layer.softcap,
        lse=whole.lse,
    )
    return 2 * behind(up_to) - behind(whole)
