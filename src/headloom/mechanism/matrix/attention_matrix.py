"""The attention weight matrix as a linear operator: exact, never formed.

Most of what one asks of the matrix is an attention call in disguise. With P_ij = e^(s_ij - lse_i):

    P x                 the call itself, with x for values
    P^T y               the call with queries and keys exchanged and -lse as a bias for each key,
                        whose lse is the logarithm of the column sums
    sum_j P_ij^2        e^(lse' - 2 lse), lse' at twice the scale
    sum_j P_ij P_ji     e^(lse' - lse), lse' of the queries beside the keys

so each takes one pass and memory linear in the length. Sinks, or a lse that the caller gives, make
each row the call's own times e^(own lse - lse).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, overload

import numpy as np
import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.mechanism.drawn import DrawnHeads
from headloom.mechanism.function import Backend
from headloom.mechanism.graph import DENSE_LIMIT, AttentionGraph, Top
from headloom.mechanism.masks import MaskLike, read_mask
from headloom.mechanism.matrix import calls
from headloom.mechanism.matrix.operators import TransposedMatrix, as_values, linear_operator
from headloom.mechanism.positions import Relative
from headloom.mechanism.scores import Score
from headloom.mechanism.shapes import describe, place_of, whole_number

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

#: Numbers of the queries above which `reciprocity` lays queries and keys side by side head by head.
SIDE_BY_SIDE = 2**22


class AttentionMatrix(DrawnHeads):
    """The weights of every head, (heads, queries, keys), as an operator.

    Args:
        queries: (heads, queries, depth), or a batch of these, whose inputs are ``matrix[b]``.
        keys: (kv_heads, keys, depth), and the batch; kv_heads divides heads.
        mask, is_causal, score, bias, relative, scale, softcap, sinks: as for `headloom.attention`.
            What is asked of columns goes through all cells, some rows at a time, where the score is
            no product.
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

    _elsewhere: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("numpy", "to_numpy", "toarray", "todense"), "numpy.asarray(matrix)"),
        **dict.fromkeys(("to_dense", "weights", "mean", "max", "argmax"), "dense(), a tensor"),
        "sum": "received(), the sums of columns, or dense()",
    }
    #: The matrix of each input of a batch, which has nothing else; None: there is no batch.
    _inputs: list[AttentionMatrix] | None = None

    def __init__(
        self,
        queries: Tensor,
        keys: Tensor,
        *,
        mask: MaskLike = None,
        is_causal: bool = False,
        score: Score | None = None,
        bias: Tensor | None = None,
        relative: Relative | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
        backend: Backend | None = None,
    ) -> None:
        call = calls.matrix_call(
            queries, keys, mask=read_mask(mask, is_causal), score=score, bias=bias,
            relative=relative, scale=scale, softcap=softcap, sinks=sinks, backend=backend,
        )  # fmt: skip
        if lse is not None and lse.shape != queries.shape[:-1]:
            raise ShapeError(
                f"AttentionMatrix: lse is {describe(lse)}; expected one number for each head and "
                f"query, {tuple(queries.shape[:-1])}."
            )
        if queries.ndim == 3:
            self._begin(call, sinks, lse)
            return
        self._inputs = [
            copy(self)._begin(call.of_input(b), sinks, None if lse is None else lse[b])
            for b in range(len(queries))
        ]

    def _begin(self, call: calls.MatrixCall, sinks: Tensor | None, lse: Tensor | None) -> Self:
        """Find the log-sum-exp of each row of one input."""
        self._call = call
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
        return self

    if not TYPE_CHECKING:  # as in `Hints`

        def __getattr__(self, name: str) -> object:
            if name in ("_call", "lse") and self._inputs is not None:
                raise InputError(
                    f"AttentionMatrix: a batch of {len(self._inputs)}. Choose one, as matrix[0]."
                )
            return super().__getattr__(name)

    @property
    def shape(self) -> tuple[int, ...]:
        """(heads, queries, keys), the batch before it if any."""
        if self._inputs is None:
            return self._call.shape
        return len(self._inputs), *(self._inputs[0].shape if self._inputs else (0, 0, 0))

    def __len__(self) -> int:
        """The number of inputs of a batch, or of heads."""
        return self.shape[0]

    def __iter__(self) -> Iterator[AttentionMatrix | Tensor]:
        return (self[place] for place in range(len(self)))

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.dense().cpu().numpy(), dtype)

    @property
    def queries(self) -> Tensor:
        """(heads, queries, depth)."""
        return self._call.queries[0]

    @property
    def keys(self) -> Tensor:
        """(kv_heads, keys, depth)."""
        return self._call.keys[0]

    def __repr__(self) -> str:
        dtype = "" if self._inputs is not None else f", dtype={self.queries.dtype}"
        return f"AttentionMatrix(shape={self.shape}{dtype})"

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """``P x`` for each head.

        vectors: (keys,), (keys, columns) or (heads, keys, columns).
        Returns: (heads, queries) or (heads, queries, columns).
        """
        heads, _, keys = self._call.shape
        values, flat = as_values("@", vectors, heads, keys, self.queries.dtype)
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
        return self._call.transposed(self.row_bias()).rows(Top(0)).lse.exp()

    @property
    def count(self) -> Tensor:
        """Number of keys each row sees, (heads, queries)."""
        return self._rows().count

    def entropy(self) -> Tensor:
        """Of each row's weights, in nats, (heads, queries)."""
        graph = self._rows()
        return self._entropy(graph) if self._rescaled else graph.entropy

    def sum_of_squares(self) -> Tensor:
        """``sum_j P_ij^2``: 1 of a row on one key, 1 / n of one spread over n; (heads, queries)."""
        doubled = self._call.doubled()
        if doubled is None:
            return self._by_blocks(lambda rows, block: block.square().sum(-1))
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
            every = range(length)
            back = partial(calls.cells, self._call, self.lse, every)
            return self._by_blocks(lambda rows, block: (block * back(rows).mT).sum(-1))
        if self.shape[0] > 1 and self.queries.numel() > SIDE_BY_SIDE:
            return torch.cat([self.of_head(h).reciprocity() for h in range(self.shape[0])])
        both = self._call.plus_transpose(self.row_bias())
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
        chosen = torch.as_tensor(at)
        if not chosen.ndim:
            return calls.diagonal(self._call, self.lse, whole_number("mass", "at", chosen))
        member = self.queries.new_zeros(self.shape[2])
        if chosen.numel():
            member[chosen] = 1
        return self @ member

    def _by_blocks(self, of_rows: Callable[[range, Tensor], Tensor]) -> Tensor:
        """A number of each row, (heads, queries), from the matrix some rows at a time."""
        parts = [of_rows(rows, block) for rows, block in calls.blocks(self._call, self.lse)]
        return torch.cat(parts, 1) if parts else self.queries.new_zeros(self.shape[:2])

    @overload
    def __getitem__(self, index: tuple[object, ...]) -> Tensor: ...
    @overload
    def __getitem__(self, index: int | slice | list[int]) -> Any: ...
    def __getitem__(self, index: object) -> object:
        """``matrix[head, i, j]``: a cell, a row, a column or a tile, of one head or of several.

        ``matrix[b]`` of a batch is the matrix of an input; ``matrix[head]`` is all of a head, which
        `of_head` has without forming it.

        Each of the three is a number, a slice, or a list of numbers; lists choose rows and columns
        alike, as `numpy.ix_` does. It costs the cells between the first key and the last.

        >>> tokens = torch.eye(4)[None]
        >>> matrix = AttentionMatrix(tokens, tokens, scale=math.log(2))    # 2/5 and 1/5
        >>> matrix[0, [0, 3], ::3]
        tensor([[0.4000, 0.2000],
                [0.2000, 0.4000]])
        """
        if self._inputs is not None:
            place, *rest = index if isinstance(index, tuple) else (index,)
            place = place_of("batch", "matrix[b]", "input", place, len(self._inputs))
            return self._inputs[place][tuple(rest)] if rest else self._inputs[place]
        heads, rows, columns, numbers = calls.places_of(index, self._call.shape)
        tiles = [self.queries.new_zeros(0, len(rows), len(columns))]
        for head in heads:
            lse = self.lse[head : head + 1]
            tiles.append(calls.tile(self._call.head(head), lse, rows, columns))
        return torch.cat(tiles).squeeze(tuple(numbers))

    def dense(self, *, force: bool = False) -> Tensor:
        """The whole matrix, of the `shape`.

        Raises: InputError: it is larger than a gigabyte and force is not set.
        """
        if math.prod(self.shape) > DENSE_LIMIT and not force:
            raise InputError(
                f"dense: the matrix has {' x '.join(map(str, self.shape))} cells. Ask for tiles, "
                "matrix[head, i:j, k:l], or set force=True."
            )
        if self._inputs is not None:
            return torch.stack([each.dense(force=True) for each in self._inputs])
        if not self.shape[1]:
            return self.queries.new_zeros(self.shape)
        return self._by_blocks(lambda rows, block: block)

    def block_summaries(
        self, head: int, size: int, queries: slice = slice(None), keys: slice = slice(None)
    ) -> tuple[Tensor, Tensor]:
        """The largest weight, and the sum, of each size x size block of one head, in one pass.

        queries, keys: which; all by default. Blocks are counted from where they start.
        Returns: two of (blocks of queries, blocks of keys). The last blocks may be smaller.
        """
        size = whole_number("block_summaries", "size", size, 1)
        head = place_of("matrix", "block_summaries", "head", head, self.shape[0])
        rows, columns = range(self.shape[1])[queries], range(self.shape[2])[keys]
        if (rows.step, columns.step) != (1, 1):
            raise InputError("block_summaries: expected slices of queries and keys without a step.")
        lse = self.lse[head : head + 1]
        return calls.summaries_of_blocks(self._call.head(head), lse, size, rows, columns)

    def top(self, k: int = 32) -> AttentionGraph:
        """The k strongest edges of every query."""
        graph = self._call.rows(Top(k))
        if not self._rescaled:
            return graph
        weights = graph.weights * self._factor(graph)[..., None]
        rest, entropy = (self._mass() - weights.sum(-1)).clamp(min=0), self._entropy(graph)
        return replace(graph, weights=weights, lse=self.lse, entropy=entropy, rest=rest)

    def _mass(self) -> Tensor:
        """What a row has on its keys and its sink: 1, or 0; or more, by a log-sum-exp given."""
        looks = (self.lse > -math.inf).to(self.queries.dtype)
        own = self._factor(self._call.rows(Top(0))) if self._rescaled else looks
        return looks * own.clamp(min=1)

    def above(self, weight: float) -> AttentionGraph:
        """Every edge of at least this weight; a row of mass 1 has at most ``1 / weight``."""
        if not 0 < weight <= 1:
            raise InputError(f"above: weight={weight:g}; expected a weight above 0, at most 1.")
        # One more than there can be: the largest weights may round to a little less than they are.
        largest = float(self._mass().max()) if self.lse.numel() else 0.0
        return self.top(math.floor(min(self.shape[2], largest / weight + 1))).above(weight)

    def head(self, h: int) -> LinearOperator:
        """One head as a SciPy linear operator, for `scipy.sparse.linalg.svds` and the like."""
        return linear_operator(self.of_head(h))

    def of_head(self, h: int) -> AttentionMatrix:
        """One head's matrix, sharing what is known of its rows."""
        h = place_of("matrix", "head", "head", h, self.shape[0])
        one = copy(self)
        one._call = self._call.head(h)
        one._own = None if self._own is None else self._own.of_head(h)
        one.lse = self.lse[h : h + 1]
        return one

    def of_rows(self, h: int, start: int, stop: int) -> AttentionMatrix | None:
        """Some rows of one head as a matrix, (1, stop - start, keys); None: they cannot be cut."""
        call = self._call.head(h).some_rows(start, stop)
        if call is None:
            return None
        some = copy(self)
        some._call, some._own, some._rescaled = call, None, True
        some.lse = self.lse[h : h + 1, start:stop]
        return some

    def _rows(self) -> AttentionGraph:
        return self._call.rows(Top(0)) if self._own is None else self._own

    def _factor(self, graph: AttentionGraph) -> Tensor:
        """e^(own lse - lse) for each row: its weights are so many times the call's own."""
        return self._exponential(graph.lse - self.lse).to(self.queries.dtype)

    def _entropy(self, graph: AttentionGraph) -> Tensor:
        """-sum f p log(f p), for the call's own weights p and the factor f."""
        factor = self._factor(graph)
        return factor * graph.entropy - torch.xlogy(factor, factor)

    def row_bias(self) -> Tensor:
        """-lse for each row, as a bias for keys; rows that see nothing give nothing."""
        blind = self.lse == -math.inf
        return (-self.lse).masked_fill(blind, -math.inf)[None, :, None].to(self.queries.dtype)

    def _exponential(self, logarithms: Tensor) -> Tensor:
        """e^x, 0 for rows that see no key."""
        return logarithms.masked_fill(self.lse == -math.inf, -math.inf).exp()
