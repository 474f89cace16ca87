"""The attention weight matrix as a linear operator: exact, never formed.

Most of what one asks of the matrix is an attention call in disguise. With P_ij = e^(s_ij - lse_i):

    P x                 the call itself, with x for values
    P^T y               the call with queries and keys exchanged and -lse as a bias for each key,
                        whose lse is the logarithm of the column sums
    sum_j P_ij^2        e^(lse' - 2 lse), lse' at twice the scale
    sum_j P_ij P_ji     e^(lse' - lse), lse' of the queries beside the keys

so each takes one pass over queries and keys and memory linear in the length. Sinks, or a lse that
the caller gives, make each row the call's own times e^(own lse - lse).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.mechanism.function import Backend
from headloom.mechanism.graph import DENSE_LIMIT, AttentionGraph, Top
from headloom.mechanism.masks import Mask, Window
from headloom.mechanism.matrix.blocks import summaries_of_blocks
from headloom.mechanism.matrix.calls import COLUMNS, matrix_call
from headloom.mechanism.matrix.cells import (
    block_size_of,
    blocks,
    cells,
    diagonal,
    maxima_of_blocks,
    places_of,
    sizes_of_blocks,
    tile,
)
from headloom.mechanism.matrix.scipy_operator import linear_operator
from headloom.mechanism.matrix.transposed import TransposedMatrix
from headloom.mechanism.positions import Relative
from headloom.mechanism.scores import Score
from headloom.mechanism.shapes import describe, finite_number, in_words, place_of, real_tensor

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

__all__ = ["AttentionMatrix"]

#: Numbers of the queries above which `reciprocity` lays queries and keys side by side head by head.
SIDE_BY_SIDE = 2**22


class AttentionMatrix:
    """The weights of every head, (heads, queries, keys), as an operator.

    Args:
        queries: (heads, queries, depth), or a batch of one.
        keys: (kv_heads, keys, depth); kv_heads divides heads.
        mask, score, bias, relative, scale, softcap, sinks: as for `headloom.attention`. What a
        score
            that is no product is asked of columns goes through all cells, some rows at a time.
        lse: each row's log-sum-exp, (heads, queries), where it is known, as from a graph. Weights
            are e^(score - lse) whatever it is: it holds the sinks, and may come from more exact
            queries and keys.
        backend: as for `headloom.attention`.

    Making one takes one pass, which finds each row's log-sum-exp and entropy; with lse it takes
    none. Half-precision queries and keys are computed, and questions answered, in float32: of a
    row whose log-sum-exp is 1e5, weights are within a hundredth of themselves, and of one beyond
    1e9 they may overflow. Give float64 there.

    >>> tokens = torch.eye(3)[None]
    >>> matrix = AttentionMatrix(tokens, tokens, scale=math.log(2))    # e^score is 2 or 1
    >>> matrix.dense()[0]
    tensor([[0.5000, 0.2500, 0.2500],
            [0.2500, 0.5000, 0.2500],
            [0.2500, 0.2500, 0.5000]])
    >>> (matrix @ torch.tensor([4., 0., 0.])).round(decimals=4)
    tensor([[2., 1., 1.]])
    >>> matrix.sum_of_squares()
    tensor([[0.3750, 0.3750, 0.3750]])
    """

    def __init__(
        self,
        queries: Tensor,
        keys: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        score: Score | None = None,
        bias: Tensor | None = None,
        relative: Relative | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
        backend: Backend | None = None,
    ) -> None:
        self._call = call = matrix_call(
            queries, keys, mask, bias, relative, scale, softcap, sinks, backend, score
        )
        heads_and_queries = call.queries.shape[:2]
        if lse is not None:
            real_tensor("AttentionMatrix", "lse", lse)
        if lse is not None and lse.ndim == 3 and len(lse) == 1:
            lse = lse[0]
        if lse is not None and lse.shape != heads_and_queries:
            raise ShapeError(
                f"AttentionMatrix: lse is {describe(lse)}; expected one number for each head and "
                f"query, {tuple(heads_and_queries)}."
            )
        # Whether lse is another than the rows' own, and the rows as their own scores make them.
        self._rescaled = lse is not None or sinks is not None
        self._own: AttentionGraph | None = None
        if lse is None:
            self._own = own = call.rows(Top(0))
            lse = own.lse
            if sinks is not None:
                lse = torch.logaddexp(lse, sinks.detach().to(lse)[:, None])
                lse = lse.masked_fill(lse == math.inf, math.nan)
        #: Log-sum-exp of each row's scores, its sink among them; minus infinity where it sees no
        #: key.
        self.lse: Tensor = lse.detach().to(call.queries.dtype)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(heads, queries, keys)."""
        return self._call.shape

    @property
    def queries(self) -> Tensor:
        """(heads, queries, depth)."""
        return self._call.queries

    @property
    def keys(self) -> Tensor:
        """(kv_heads, keys, depth)."""
        return self._call.keys

    def __repr__(self) -> str:
        return f"AttentionMatrix(shape={self.shape}, dtype={self.queries.dtype})"

    # Products

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """``P x`` for each head.

        vectors: (keys,), (keys, columns) or (heads, keys, columns).
        Returns: (heads, queries) or (heads, queries, columns).
        """
        values, flat = self._vectors(vectors, self.shape[2], "@")
        result, graph = self._call.attend(values, Top(0))
        if self._rescaled:
            result = result * self._factor(graph)[..., None]
        return result[..., 0] if flat else result

    @property
    def T(self) -> TransposedMatrix:  # noqa: N802
        """The transpose, for products from the left: ``matrix.T @ y``."""
        return TransposedMatrix(self)

    def received(self) -> Tensor:
        """What each key gets from all queries: the column sums, (heads, keys)."""
        if self._call.by_cells:
            return self.T @ self.queries.new_ones(self.shape[1])
        return self._call.transposed(self._row_bias()).rows(Top(0)).lse.exp()

    # Rows

    @property
    def count(self) -> Tensor:
        """Number of keys each row sees, (heads, queries)."""
        return self._rows().count

    def entropy(self) -> Tensor:
        """Of each row's weights, in nats, (heads, queries)."""
        graph = self._rows()
        return self._entropy(graph) if self._rescaled else graph.entropy

    def sum_of_squares(self) -> Tensor:
        """``sum_j P_ij^2``: 1 for a row on one key, 1 / n for one spread over n; (heads, queries).

        One over it is the row's effective number of keys.
        """
        doubled = self._call.doubled()
        if doubled is None:
            parts = [block.square().sum(-1) for _, block in blocks(self._call, self.lse)]
            return torch.cat(parts, 1) if parts else self.queries.new_zeros(self.shape[:2])
        return self._exponential(doubled.rows(Top(0)).lse - 2 * self.lse)

    def reciprocity(self) -> Tensor:
        """``sum_j P_ij P_ji``: how much each position is looked back at, (heads, queries).

        Raises: ShapeError: as many queries as keys are needed.
        """
        _, queries, length = self.shape
        if queries != length:
            raise ShapeError(
                f"reciprocity: the matrix is {queries} by {length}; expected a square one, of a "
                "sequence that looks at itself."
            )
        if self._call.by_cells or self._call.softcap is not None:  # no sum of scores is one call
            parts = [
                (block * cells(self._call, self.lse, range(length), rows).transpose(1, 2)).sum(-1)
                for rows, block in blocks(self._call, self.lse)
            ]
            return torch.cat(parts, 1) if parts else self.queries.new_zeros(self.shape[:2])
        if self.shape[0] > 1 and self.queries.numel() > SIDE_BY_SIDE:
            return torch.cat([self.of_head(h).reciprocity() for h in range(self.shape[0])])
        both = self._call.plus_transpose(self._row_bias())
        return self._exponential(both.rows(Top(0)).lse - self.lse)

    def mass(self, at: int | Sequence[int] | Tensor) -> Tensor:
        """What each row puts on a diagonal or on a set of keys, (heads, queries).

        at: an offset: the weight of key ``i + at`` for query i (-1: the previous token; 0 where
        there is no such key); or key indices, or a bool tensor (keys,): the sum over them.

        >>> tokens = torch.eye(3)[None]
        >>> matrix = AttentionMatrix(tokens, tokens, scale=math.log(2))
        >>> matrix.mass(-1), matrix.mass([0, 1])
        (tensor([[0.0000, 0.2500, 0.2500]]), tensor([[0.7500, 0.7500, 0.5000]]))
        """
        try:
            chosen = torch.as_tensor(at)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise InputError(
                f"mass: at is {type(at).__name__}; expected an offset, as -1, or a set of keys."
            ) from None
        if chosen.ndim == 0:
            if chosen.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8):
                raise InputError(
                    f"mass: at={in_words(at)}; expected an offset, as -1, or a set of keys."
                )
            return diagonal(self._call, self.lse, int(chosen))
        member = self.queries.new_zeros(self.shape[2])
        if chosen.numel():
            try:
                member[chosen] = 1
            except (IndexError, RuntimeError):
                raise InputError(
                    f"mass: no such keys, {describe(chosen)} of {chosen.dtype}; expected an "
                    f"offset, indices below {self.shape[2]}, or a bool tensor ({self.shape[2]},)."
                ) from None
        return self @ member

    # Cells

    def __getitem__(self, index: Any) -> Tensor:
        """``matrix[head, i, j]``: a cell, a row, a column or a tile, of one head or of several.

        Each of the three is a number, a slice, or a list of numbers; lists choose rows and columns
        alike, as `numpy.ix_` does. It costs the cells between the first key and the last.

        >>> tokens = torch.eye(4)[None]
        >>> matrix = AttentionMatrix(tokens, tokens, scale=math.log(2))    # 2/5 and 1/5
        >>> matrix[0, [0, 3], ::3]
        tensor([[0.4000, 0.2000],
                [0.2000, 0.4000]])
        """
        heads, rows, columns, numbers = places_of(index, self.shape)
        tiles = [
            tile(self._call.head(head), self.lse[head : head + 1], rows, columns) for head in heads
        ]
        found = torch.cat(tiles) if tiles else self.queries.new_zeros(0, len(rows), len(columns))
        for dimension in reversed(numbers):
            found = found.squeeze(dimension)
        return found

    def scores(self, head: int, queries: slice = slice(None), keys: slice = slice(None)) -> Tensor:
        """The scores of a tile of one head, as softmax takes them: -inf where the mask hides.

        queries, keys: which, without steps; all by default.
        Returns: (queries, keys).

        >>> from headloom.mechanism.masks import causal
        >>> tokens = torch.eye(3)[None]
        >>> AttentionMatrix(tokens, tokens, mask=causal(), scale=2.0).scores(0, slice(1, 3))
        tensor([[0., 2., -inf],
                [0., 0., 2.]])
        """
        head, rows, columns = self._tile("scores", head, queries, keys)
        return self._call.head(head).scores(rows, columns)[0]

    def largest_score(self) -> float:
        """What no score exceeds in magnitude: of products ``scale max|q| max|k|``."""
        return self._call.largest_score()

    def dense(self, *, force: bool = False) -> Tensor:
        """The whole matrix, (heads, queries, keys).

        Raises: InputError: it is larger than a gigabyte and force is not set.
        """
        heads, queries, keys = self.shape
        if heads * queries * keys > DENSE_LIMIT and not force:
            raise InputError(
                f"dense: the matrix has {heads} x {queries} x {keys} cells. Ask for tiles, "
                "matrix[head, i:j, k:l], or set force=True."
            )
        parts = [block for _, block in blocks(self._call, self.lse)]
        return torch.cat(parts, 1) if parts else self.queries.new_zeros(self.shape)

    def block_means(self, size: int) -> Tensor:
        """Means of the weights over blocks of size x size cells, (heads, blocks, blocks).

        For a view of the whole matrix, small enough to draw. The last blocks may be smaller.
        """
        size = block_size_of("block_means", size)
        heads, queries, keys = self.shape
        total = self.queries.new_zeros(heads, -(-queries // size), -(-keys // size))
        key_block, query_block = (
            torch.arange(length, device=total.device) // size for length in (keys, queries)
        )
        for first in range(0, total.shape[2], COLUMNS):
            block = torch.arange(first, min(first + COLUMNS, total.shape[2]), device=total.device)
            member = (key_block[:, None] == block).to(self.queries.dtype)
            total[..., first : first + COLUMNS].index_add_(1, query_block, self @ member)
        return total / sizes_of_blocks(queries, keys, size).to(total.device)

    def block_maxima(self, size: int) -> Tensor:
        """Largest weights of blocks of size x size cells, (heads, blocks, blocks)."""
        return maxima_of_blocks(self._call, self.lse, block_size_of("block_maxima", size))

    def block_summaries(
        self, head: int, size: int, queries: slice = slice(None), keys: slice = slice(None)
    ) -> tuple[Tensor, Tensor]:
        """The largest weight, and the sum, of each size x size block of one head, in one pass.

        queries, keys: which; all by default. Blocks are counted from where they start.
        Returns: two of (blocks of queries, blocks of keys). The last blocks may be smaller.

        >>> tokens = torch.eye(4)[None]
        >>> matrix = AttentionMatrix(tokens, tokens, scale=math.log(2))    # 2/5 and 1/5
        >>> largest, sums = matrix.block_summaries(0, 2)
        >>> [[round(x, 4) for x in row] for row in largest.tolist()]
        [[0.4, 0.2], [0.2, 0.4]]
        >>> [[round(x, 4) for x in row] for row in sums.tolist()]
        [[1.2, 0.8], [0.8, 1.2]]
        """
        size = block_size_of("block_summaries", size)
        head, rows, columns = self._tile("block_summaries", head, queries, keys)
        lse = self.lse[head : head + 1]
        return summaries_of_blocks(self._call.head(head), lse, size, rows, columns)

    # Edges

    def top(self, k: int = 32) -> AttentionGraph:
        """The k strongest edges of every query."""
        graph = self._call.rows(Top(k))
        if not self._rescaled:
            return graph
        weights = graph.weights * self._factor(graph)[..., None]
        rest = (self._mass() - weights.sum(-1)).clamp(min=0)
        return replace(
            graph, weights=weights, lse=self.lse, entropy=self._entropy(graph), rest=rest
        )

    def _mass(self) -> Tensor:
        """What a row has on its keys and its sink: 1, or 0; or more, by a log-sum-exp given."""
        looks = (self.lse > -math.inf).to(self.queries.dtype)
        if not self._rescaled:
            return looks
        return looks * self._factor(self._call.rows(Top(0))).clamp(min=1)

    def above(self, weight: float) -> AttentionGraph:
        """Every edge of at least this weight; a row of mass 1 has at most ``1 / weight``."""
        weight = finite_number("above", "weight", weight)
        if not 0 < weight <= 1:
            raise InputError(f"above: weight={weight:g}; expected a weight above 0, at most 1.")
        # One more than there can be: the largest weights may round to a little less than they are.
        largest = float(self._mass().max()) if self.lse.numel() else 0.0
        graph = self.top(math.floor(min(self.shape[2], largest / weight + 1)))
        kept = (graph.keys >= 0) & (graph.weights >= weight)
        most = int(kept.sum(-1).max()) if kept.numel() else 0
        keys, scores, weights = (
            tensor[..., :most].masked_fill(~kept[..., :most], past)
            for tensor, past in ((graph.keys, -1), (graph.scores, -math.inf), (graph.weights, 0))
        )
        rest = (self._mass() - weights.sum(-1)).clamp(min=0)
        return replace(graph, keys=keys, scores=scores, weights=weights, rest=rest)

    def head(self, h: int) -> LinearOperator:
        """One head as a SciPy linear operator, for `scipy.sparse.linalg.svds` and the like."""
        return linear_operator(self.of_head(h))

    # Behind them

    def of_head(self, h: int) -> AttentionMatrix:
        """One head's matrix, sharing what is known of its rows."""
        h = place_of("matrix", "head", "head", h, self.shape[0])
        one = copy(self)
        one._call = self._call.head(h)
        one._own = None if self._own is None else self._own.of_head(h)
        one.lse = self.lse[h : h + 1]
        return one

    def of_rows(self, h: int, start: int, stop: int) -> AttentionMatrix | None:
        """Some rows of one head as a matrix, (1, stop - start, keys).

        None where what enters the scores cannot be cut in rows: a bias, relative positions, a score
        that is no product, or a mask that is not a window.
        """
        call = self._call
        mask = call.mask
        if call.bias is not None or call.relative is not None or not call.of_products:
            return None
        if mask is not None:
            if not isinstance(mask, Window):
                return None
            mask = Window(mask.left, mask.right, mask.offset + start)
        group = self.shape[0] // self.keys.shape[0]
        return AttentionMatrix(
            self.queries[h : h + 1, start:stop],
            self.keys[h // group : h // group + 1],
            mask=mask,
            scale=call.scale,
            softcap=call.softcap,
            lse=self.lse[h : h + 1, start:stop],
        )

    def _tile(
        self, operation: str, head: int, queries: slice, keys: slice
    ) -> tuple[int, range, range]:
        """The head, rows and columns that are asked for, checked."""
        heads, rows, columns, numbers = places_of((head, queries, keys), self.shape)
        if not (isinstance(rows, range) and isinstance(columns, range)) or (
            0 not in numbers or (rows.step, columns.step) != (1, 1)
        ):
            raise InputError(
                f"{operation}: expected the number of a head, and slices of queries and keys "
                "without a step."
            )
        return heads[0], rows, columns

    def _vectors(self, vectors: Tensor, length: int, operation: str) -> tuple[Tensor, bool]:
        """Vectors as values of a call, and whether there was one without a column dimension."""
        real_tensor(operation, "the vectors", vectors)
        flat = vectors.ndim == 1
        columns = vectors[:, None] if flat else vectors
        heads = self.shape[0]
        if (
            columns.ndim not in (2, 3)
            or columns.shape[-2] != length
            or (columns.ndim == 3 and columns.shape[0] != heads)
        ):
            raise ShapeError(
                f"{operation}: the vectors are {describe(vectors)}; expected ({length},), "
                f"({length}, columns) or ({heads}, {length}, columns)."
            )
        return columns.to(self.queries.dtype), flat

    def _rows(self) -> AttentionGraph:
        return self._call.rows(Top(0)) if self._own is None else self._own

    def _factor(self, graph: AttentionGraph) -> Tensor:
        """e^(own lse - lse) for each row: what its weights are times the call's own."""
        return self._exponential(graph.lse - self.lse).to(self.queries.dtype)

    def _entropy(self, graph: AttentionGraph) -> Tensor:
        """-sum f p log(f p), for the call's own weights p and the factor f."""
        factor = self._factor(graph)
        return factor * graph.entropy - torch.xlogy(factor, factor)

    def _row_bias(self) -> Tensor:
        """-lse for each row, as a bias for keys; rows that see nothing give nothing."""
        blind = self.lse == -math.inf
        return (-self.lse).masked_fill(blind, -math.inf)[:, None, :].to(self.queries.dtype)

    def _exponential(self, logarithms: Tensor) -> Tensor:
        """e^x, 0 for rows that see no key."""
        return logarithms.masked_fill(self.lse == -math.inf, -math.inf).exp()
