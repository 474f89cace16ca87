"""The attention weight matrix as a linear operator: exact, never formed.

Most of what one asks of the matrix is an attention call in disguise. With P_ij = e^(s_ij - lse_i):

    P x                 the call itself, with x for values
    P^T y               the call with queries and keys exchanged and -lse as a bias for each key,
                        whose lse is the logarithm of the column sums
    sum_j P_ij^2        e^(lse' - 2 lse), lse' at twice the scale
    sum_j P_ij P_ji     e^(lse' - lse), lse' of the queries beside the keys

so each takes one pass over queries and keys and memory linear in the length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.errors import InputError, ShapeError
from weft.mechanism.call import AttentionCall
from weft.mechanism.function import Backend, attend, attention
from weft.mechanism.graph import DENSE_LIMIT, AttentionGraph, Top
from weft.mechanism.masks import Mask, Window, as_mask
from weft.mechanism.positions import Relative, Shaw
from weft.mechanism.scores import Dot
from weft.mechanism.shapes import describe, repeat_kv_heads
from weft.mechanism.torch_ops import block_scores
from weft.mechanism.transposed import ByDistance, transposed_mask, transposed_relative

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

__all__ = ["AttentionMatrix", "TransposedMatrix"]

#: Cells of a block of rows that is formed on the way: 64 MiB of float32.
BLOCK_CELLS = 2**24


class AttentionMatrix:
    """The weights of every head, (heads, queries, keys), as an operator.

    Args:
        queries: (heads, queries, depth).
        keys: (kv_heads, keys, depth); kv_heads divides heads.
        mask, bias, relative, scale, softcap, sinks: as for `weft.attention`, without a batch.
        lse: each row's log-sum-exp, (heads, queries), where it is known already.
        backend: as for `weft.attention`.

    Making one takes one pass, which finds each row's log-sum-exp and entropy; where the first is
    given, none.

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
        bias: Tensor | None = None,
        relative: Relative | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
        backend: Backend | None = None,
    ) -> None:
        for name, tensor in (("queries", queries), ("keys", keys)):
            if tensor.ndim != 3:
                raise ShapeError(
                    f"AttentionMatrix: {name} are {describe(tensor)}; expected (heads, positions, "
                    "depth). Take one sequence of a batch at a time."
                )
        self.queries, self.keys = queries.detach(), keys.detach()
        self.mask = None if mask is None else as_mask(mask)
        self.bias = None if bias is None else bias.detach()
        self.relative = relative
        self.scale = 1 / math.sqrt(max(queries.shape[2], 1)) if scale is None else float(scale)
        self.softcap = softcap
        self.sinks = None if sinks is None else sinks.detach()
        self.backend = backend
        self._graph: AttentionGraph | None = None
        if lse is not None and lse.shape != self.shape[:2]:
            raise ShapeError(
                f"AttentionMatrix: lse is {describe(lse)}; expected one number for each head and "
                f"query, {self.shape[:2]}."
            )
        #: Log-sum-exp of each row's scores, its sink's with them; minus infinity where there is
        #: nothing to sum.
        self.lse: Tensor = self._rows().lse if lse is None else lse.detach()

    @property
    def shape(self) -> tuple[int, int, int]:
        """(heads, queries, keys)."""
        return self.queries.shape[0], self.queries.shape[1], self.keys.shape[1]

    def __repr__(self) -> str:
        return f"AttentionMatrix(shape={self.shape}, dtype={self.queries.dtype})"

    # Products

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """``P x`` for each head.

        vectors: (keys,), (keys, columns) or (heads, keys, columns).
        Returns: (heads, queries) or (heads, queries, columns).
        """
        values, flat = self._vectors(vectors, self.shape[2], "@")
        result = self._attention(values)
        return result[..., 0] if flat else result

    @property
    def T(self) -> TransposedMatrix:  # noqa: N802
        """The transpose, for products from the left: ``matrix.T @ y``."""
        return TransposedMatrix(self)

    def received(self) -> Tensor:
        """What each key gets from all queries: the column sums, (heads, keys)."""
        if self._shaw:
            return self.T @ self.queries.new_ones(self.shape[1])
        graph = self._transposed(self._nothing(self.shape[1]))[1]
        return graph.lse.exp()

    # Rows

    def entropy(self) -> Tensor:
        """Of each row's weights, in nats, (heads, queries)."""
        return self._rows().entropy

    @property
    def count(self) -> Tensor:
        """Number of keys each row sees, (heads, queries)."""
        return self._rows().count

    def sum_of_squares(self) -> Tensor:
        """``sum_j P_ij^2``: 1 for a row on one key, 1 / n for one spread over n; (heads, queries).

        One over it is the row's effective number of keys.
        """
        relative = self.relative
        if relative is not None and not self._shaw:
            relative = self._by_distance(2.0)
        bias = None if self.bias is None else 2 * self.bias
        graph = self._attend(
            Top(0),
            scale=2 * self.scale,
            bias=bias,
            relative=relative,
            softcap=None if self.softcap is None else 2 * self.softcap,
            sinks=None,
        )
        return self._exponential(graph.lse - 2 * self.lse)

    def reciprocity(self) -> Tensor:
        """``sum_j P_ij P_ji``: how much each position is looked back at, (heads, queries).

        Raises: ShapeError: as many queries as keys are needed.
        """
        heads, queries, length = self.shape
        if queries != length:
            raise ShapeError(
                f"reciprocity: the matrix is {queries} by {length}; expected a square one, of a "
                "sequence that looks at itself."
            )
        if self._shaw or self.softcap is not None:
            return self._reciprocity_by_blocks()
        keys = self._repeated_keys()
        both = torch.cat((self.queries, keys), -1), torch.cat((keys, self.queries), -1)
        turned = transposed_mask(self.mask, queries, length)
        relative = self.relative
        if relative is not None and length:
            there = self._by_distance(1.0).values
            relative = ByDistance(there + there.flip(1), length - 1)
        bias = self._row_bias()
        if self.bias is not None:
            bias = bias + self.bias + self.bias.transpose(-2, -1)
        graph = attend(
            *both,
            self._nothing(length).expand(heads, -1, -1),
            mask=None if self.mask is None or turned is None else self.mask & turned,
            bias=bias,
            relative=relative,
            scale=self.scale,
            keep=Top(0),
            backend=self.backend,
        )[1]
        return self._exponential(graph.lse - self.lse)

    def mass(self, at: int | Sequence[int] | Tensor) -> Tensor:
        """What each row puts on a diagonal or on a set of keys, (heads, queries).

        at: an offset: the weight of key ``i + at`` for query i (-1: the previous token; 0 where
        there is no such key); or key indices, or a bool tensor (keys,): the sum over them.

        >>> tokens = torch.eye(3)[None]
        >>> matrix = AttentionMatrix(tokens, tokens, scale=math.log(2))
        >>> matrix.mass(-1), matrix.mass([0, 1])
        (tensor([[0.0000, 0.2500, 0.2500]]), tensor([[0.7500, 0.7500, 0.5000]]))
        """
        if isinstance(at, int):
            return self._diagonal(at)
        chosen = torch.as_tensor(at)
        member = self.queries.new_zeros(self.shape[2])
        if chosen.numel():
            member[chosen] = 1
        return self @ member

    # Cells

    def __getitem__(self, index: Any) -> Tensor:
        """``matrix[head, i, j]``, with slices for i and j: a cell, a row, a column or a tile."""
        if not (isinstance(index, tuple) and len(index) == 3 and isinstance(index[0], int)):
            raise InputError(
                f"matrix[{index!r}]: expected matrix[head, queries, keys], the head a number, the "
                "others numbers or slices."
            )
        ranges = []
        for part, size, name in zip(index[1:], self.shape[1:], ("query", "key"), strict=True):
            if isinstance(part, slice) and part.step in (None, 1):
                start, stop, _ = part.indices(size)
                ranges.append(range(start, max(start, stop)))
            elif isinstance(part, int) and -size <= part < size:
                ranges.append(range(part % size, part % size + 1))
            else:
                raise InputError(
                    f"matrix[{index!r}]: no such {name}; expected a number below {size}, or a "
                    "slice without a step."
                )
        tile = self._tile(range(self.shape[0])[index[0]], *ranges)
        for dimension in (1, 0):
            if isinstance(index[dimension + 1], int):
                tile = tile.squeeze(dimension)
        return tile

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
        blocks = [block for _, block in self._blocks()]
        return torch.cat(blocks, 1) if blocks else self.queries.new_zeros(self.shape)

    def block_means(self, size: int) -> Tensor:
        """Means of the weights over blocks of size x size cells, (heads, blocks, blocks).

        For a view of the whole matrix, small enough to draw. The last blocks may be smaller.
        """
        heads, queries, keys = self.shape
        block = torch.arange(keys) // size
        member = torch.nn.functional.one_hot(block, -(-keys // size)).to(self.queries.dtype)
        rows = self @ member
        total = rows.new_zeros(heads, -(-queries // size), member.shape[1])
        row_block = torch.arange(queries) // size
        total.index_add_(1, row_block, rows)
        cells = row_block.bincount()[:, None] * block.bincount()[None, :]
        return total / cells

    def block_maxima(self, size: int) -> Tensor:
        """Largest weights of blocks of size x size cells, (heads, blocks, blocks)."""
        heads, queries, keys = self.shape
        found = self.queries.new_zeros(heads, -(-queries // size), -(-keys // size))
        for rows, block in self._blocks():
            padded = torch.nn.functional.pad(block, (0, -keys % size))
            columns = padded.reshape(heads, len(rows), -1, size).amax(3)
            index = (torch.arange(rows.start, rows.stop) // size)[None, :, None]
            found.scatter_reduce_(1, index.expand_as(columns), columns, "amax")
        return found

    # Edges

    def top(self, k: int = 32) -> AttentionGraph:
        """The k strongest edges of every query."""
        return self._attend(Top(k))

    def above(self, weight: float) -> AttentionGraph:
        """Every edge of at least this weight. A row has at most ``1 / weight`` of them."""
        if not 0 < weight <= 1:
            raise InputError(f"above: weight={weight}; expected a weight above 0, at most 1.")
        graph = self.top(min(self.shape[2], math.floor(1 / weight)))
        there = (graph.keys >= 0) & (graph.weights >= weight)
        most = int(there.sum(-1).max()) if there.numel() else 0
        keys, scores, weights = (
            tensor[..., :most].masked_fill(~there[..., :most], past)
            for tensor, past in ((graph.keys, -1), (graph.scores, -math.inf), (graph.weights, 0))
        )
        mass = (graph.count > 0).to(weights.dtype)
        rest = (mass - weights.sum(-1)).clamp(min=0)
        return replace(graph, keys=keys, scores=scores, weights=weights, rest=rest)

    def head(self, h: int) -> LinearOperator:
        """One head as a SciPy linear operator, for `scipy.sparse.linalg.svds` and the like."""
        from scipy.sparse.linalg import LinearOperator

        one = self._of_head(h)

        def times(matrix: AttentionMatrix | TransposedMatrix) -> Any:
            def product(vectors: Any) -> Any:
                given = torch.as_tensor(vectors, dtype=self.queries.dtype)
                columns = given.reshape(len(given), -1)
                return (matrix @ columns)[0].reshape(-1, *given.shape[1:]).numpy()

            return product

        forward, backward = times(one), times(one.T)
        return LinearOperator(
            one.shape[1:],
            matvec=forward,
            rmatvec=backward,
            matmat=forward,
            rmatmat=backward,
            dtype=torch.empty(0, dtype=self.queries.dtype).numpy().dtype,
        )

    # The calls behind them

    @property
    def _shaw(self) -> bool:
        return isinstance(self.relative, Shaw)

    def _rows(self) -> AttentionGraph:
        """The rows of the matrix, without edges."""
        if self._graph is None:
            self._graph = self._attend(Top(0))
        return self._graph

    def _nothing(self, length: int) -> Tensor:
        """Values without columns, for calls that are asked for their rows alone."""
        return self.queries.new_empty(length, 0)

    def _of_head(self, h: int) -> AttentionMatrix:
        """One head's matrix, sharing what is known of its rows."""
        heads = self.shape[0]
        if not -heads <= h < heads:
            raise InputError(f"head: no head {h}; the matrix has {heads}, counted from 0.")
        h %= heads
        one = object.__new__(AttentionMatrix)
        one.__dict__.update(self.__dict__)
        group = heads // self.keys.shape[0]
        one.queries, one.keys = self.queries[h : h + 1], self.keys[h // group : h // group + 1]
        if self.bias is not None and self.bias.ndim == 3 and self.bias.shape[0] > 1:
            one.bias = self.bias[h : h + 1]
        if self.mask is not None and not isinstance(self.mask, Window):
            allowed = self.mask.block(range(1), self.shape[2], torch.device("cpu"))
            if allowed.shape[1] > 1:
                one.mask = as_mask(self.mask.dense(*self.shape[1:])[:, h : h + 1])
        if self._shaw:
            assert isinstance(self.relative, Shaw)
            tables = (self.relative.key_table, self.relative.value_table)
            key_table, value_table = (
                table[h : h + 1] if table is not None and table.ndim == 3 else table
                for table in tables
            )
            assert key_table is not None
            one.relative = replace(self.relative, key_table=key_table, value_table=value_table)
        elif self.relative is not None and self.shape[1] and self.shape[2]:
            by_distance = self._by_distance(1.0).values
            one.relative = ByDistance(
                by_distance[h : h + 1] if len(by_distance) > 1 else by_distance, self.shape[1] - 1
            )
        one.lse = self.lse[h : h + 1]
        one.sinks = None if self.sinks is None else self.sinks[h : h + 1]
        one._graph = None if self._graph is None else self._graph._map(lambda of: of[h : h + 1])
        return one

    def _vectors(self, vectors: Tensor, length: int, operation: str) -> tuple[Tensor, bool]:
        """Vectors as values of a call, and whether there was one without a column dimension."""
        flat = vectors.ndim == 1
        columns = vectors[:, None] if flat else vectors
        if columns.ndim not in (2, 3) or columns.shape[-2] != length:
            raise ShapeError(
                f"{operation}: the vectors are {describe(vectors)}; expected ({length},), "
                f"({length}, columns) or (heads, {length}, columns)."
            )
        return columns.to(self.queries.dtype), flat

    def _plain_relative(self) -> Relative | None:
        """Shaw's tables without that for values: the matrix has none."""
        if isinstance(self.relative, Shaw):
            return replace(self.relative, value_table=None)
        return self.relative

    def _attention(self, values: Tensor) -> Tensor:
        # Each head has values of its own where they come by head: then keys are repeated too.
        own = values.ndim == 3
        keys = self._repeated_keys() if own else self.keys
        return attention(
            self.queries,
            keys,
            values.expand(keys.shape[0], -1, -1),
            mask=self.mask,
            bias=self.bias,
            relative=self._plain_relative(),
            scale=self.scale,
            softcap=self.softcap,
            sinks=self.sinks,
            backend=self.backend,
        )

    def _attend(self, keep: Top, **changed: Any) -> AttentionGraph:
        """The graph of the call, with some options changed."""
        options = {
            "mask": self.mask,
            "bias": self.bias,
            "relative": self._plain_relative(),
            "scale": self.scale,
            "softcap": self.softcap,
            "sinks": self.sinks,
            "backend": self.backend,
            **changed,
        }
        if isinstance(options["relative"], Shaw):
            options["relative"] = replace(options["relative"], value_table=None)
        values = self._nothing(self.shape[2]).expand(self.keys.shape[0], -1, -1)
        graph: AttentionGraph
        _, graph = attend(self.queries, self.keys, values, keep=keep, **options)
        return graph

    def _row_bias(self) -> Tensor:
        """-lse for each row, as a bias for keys; rows that see nothing give nothing."""
        blind = self.lse == -math.inf
        return (-self.lse).masked_fill(blind, -math.inf)[:, None, :].to(self.queries.dtype)

    def _transposed(self, values: Tensor) -> tuple[Tensor, AttentionGraph]:
        """The call with queries and keys exchanged and -lse as a bias for each key."""
        _, queries, keys = self.shape
        bias = self._row_bias()
        if self.bias is not None:
            bias = bias + self.bias.transpose(-2, -1)
        relative = self.relative
        if relative is not None and queries and keys:
            relative = transposed_relative(relative, queries, keys)
        return attend(
            self._repeated_keys(),
            self.queries,
            values.expand(self.shape[0], -1, -1),
            mask=transposed_mask(self.mask, queries, keys),
            bias=bias,
            relative=relative,
            scale=self.scale,
            softcap=self.softcap,
            keep=Top(0),
            backend=self.backend,
        )

    def _repeated_keys(self) -> Tensor:
        return repeat_kv_heads(self.keys[None], self.shape[0])[0]

    def _by_distance(self, factor: float) -> ByDistance:
        """The relative bias as a vector by distance, times a factor."""
        _, queries, keys = self.shape
        turned = transposed_relative(self.relative, queries, keys)
        assert isinstance(turned, ByDistance)
        return ByDistance(factor * turned.values.flip(1), queries - 1)

    def _exponential(self, logarithms: Tensor) -> Tensor:
        """e^x, 0 for rows that see no key."""
        return logarithms.masked_fill(self.lse == -math.inf, -math.inf).exp()

    # By blocks of cells, for what no call expresses

    def _call(self, relative: Relative | None, bias: Tensor | None) -> AttentionCall:
        queries, keys = self.queries[None], self._repeated_keys()[None]
        if bias is not None:
            bias = bias.reshape((1,) * (4 - bias.ndim) + tuple(bias.shape))
        return AttentionCall(
            queries, keys, keys, Dot(), self.scale, None, relative, bias, self.softcap
        )

    def _tile(self, head: int, rows: range, columns: range) -> Tensor:
        one = self._of_head(head)
        return one._cells(rows, columns)[0]

    def _cells(self, rows: range, columns: range) -> Tensor:
        """Weights of some rows and columns, (heads, rows, columns)."""
        inside = slice(columns.start, columns.stop)
        relative = self._plain_relative()
        if relative is not None:
            # Key 0 of the tile is key columns.start of the matrix.
            relative = replace(relative, offset=relative.offset - columns.start)  # type: ignore[type-var]
        bias = self.bias
        if bias is not None and bias.shape[-1] > 1:
            bias = bias[..., inside]
        call = self._call(relative, bias)
        scores = block_scores(
            call,
            call.queries[:, :, rows.start : rows.stop],
            call.keys[:, :, inside],
            rows,
        )[0]
        if self.mask is not None:
            allowed = self.mask.block(rows, self.shape[2], scores.device)[0][..., inside]
            scores = scores.masked_fill(~allowed, -math.inf)
        lse = self.lse[:, rows.start : rows.stop, None].to(scores.dtype)
        return (scores - lse.masked_fill(lse == -math.inf, 0)).exp()

    def _blocks(self) -> Iterator[tuple[range, Tensor]]:
        """The matrix, some rows at a time."""
        heads, queries, keys = self.shape
        size = max(1, BLOCK_CELLS // max(1, heads * keys))
        for start in range(0, queries, size):
            rows = range(start, min(start + size, queries))
            yield rows, self._cells(rows, range(keys))

    def _diagonal(self, offset: int) -> Tensor:
        _, queries, keys = self.shape
        found = self.queries.new_zeros(self.shape[:2])
        size = 256
        for start in range(0, queries, size):
            first = max(start, -offset)
            end = min(start + size, queries, keys - offset)
            if first < end:
                cells = self._cells(range(first, end), range(first + offset, end + offset))
                found[:, first:end] = cells.diagonal(dim1=1, dim2=2)
        return found

    def _reciprocity_by_blocks(self) -> Tensor:
        parts = [
            (block * self._cells(range(self.shape[1]), rows).transpose(1, 2)).sum(-1)
            for rows, block in self._blocks()
        ]
        return torch.cat(parts, 1) if parts else self.queries.new_zeros(self.shape[:2])


class TransposedMatrix:
    """The transpose of an attention matrix: (heads, keys, queries)."""

    def __init__(self, matrix: AttentionMatrix) -> None:
        self.matrix = matrix

    @property
    def shape(self) -> tuple[int, int, int]:
        """(heads, keys, queries)."""
        heads, queries, keys = self.matrix.shape
        return heads, keys, queries

    @property
    def T(self) -> AttentionMatrix:  # noqa: N802
        """The matrix itself."""
        return self.matrix

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """``P^T y`` for each head.

        vectors: (queries,), (queries, columns) or (heads, queries, columns).
        Returns: (heads, keys) or (heads, keys, columns).
        """
        matrix = self.matrix
        values, flat = matrix._vectors(vectors, matrix.shape[1], "T @")
        if matrix._shaw:
            result = self._by_blocks(values)
        else:
            output, graph = matrix._transposed(values)
            result = output * graph.lse.exp()[..., None].to(output.dtype)
        return result[..., 0] if flat else result

    def _by_blocks(self, values: Tensor) -> Tensor:
        heads, _, keys = self.matrix.shape
        total = values.new_zeros(heads, keys, values.shape[-1])
        for rows, block in self.matrix._blocks():
            total += block.transpose(1, 2) @ values[..., rows.start : rows.stop, :]
        return total
