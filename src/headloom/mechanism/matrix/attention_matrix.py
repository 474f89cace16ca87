"""Attention weight matrix as a linear operator: exact, never formed.

Most results reduce to an attention call. With P_ij = e^(s_ij - lse_i):

    P x                 the call itself, with x for values
    P^T y               the call with queries and keys exchanged and -lse as a bias for each key;
                        its lse is the logarithm of the column sums
    sum_j P_ij^2        e^(lse' - 2 lse), lse' at twice the scale
    sum_j P_ij P_ji     e^(lse' - lse), lse' of queries and keys concatenated

so each takes one pass and memory linear in the length. With sinks, or a lse from the caller, each
row of the call is multiplied by e^(call's lse - lse).
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

#: Size of the queries above which `reciprocity` concatenates queries and keys one head at a time.
SIDE_BY_SIDE = 2**22


class AttentionMatrix(DrawnHeads):
    """Weights of every head, (heads, queries, keys), as a linear operator.

    Args:
        queries: (heads, queries, depth), or a batch of these; ``matrix[b]`` is then one input.
        keys: (kv_heads, keys, depth), with the same batch; kv_heads divides heads.
        mask, is_causal, score, bias, relative, scale, softcap, sinks: as for `headloom.attention`.
            If the score is no dot product, operations on columns compute all cells, a block of
            rows at a time.
        lse: each row's log-sum-exp, (heads, queries), if it is known, as from a graph. Weights are
            e^(score - lse) for any lse: it includes the sinks, and may come from queries and keys
            of higher precision.
        backend: as for `headloom.attention`.

    Construction takes one pass, which computes each row's log-sum-exp and entropy; with lse it
    takes none. Half-precision inputs are computed in float32, and so are the results. In a row with
    a log-sum-exp of 1e5 the relative error of the weights is at most 1 %; beyond 1e9 they may
    overflow. Use float64 there.

    >>> tokens = torch.eye(3)[None]
    >>> matrix = AttentionMatrix(tokens, tokens, scale=math.log(2))    # e^score is 2 or 1
    >>> matrix.to_dense()[0]
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
        **dict.fromkeys(("weights", "mean", "max", "argmax"), "to_dense(), a tensor"),
        "sum": "received(), the sums of columns, or to_dense()",
    }
    #: The matrix of each input of a batch (the batch itself has no call); None: there is no batch.
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
            self._with_call(call, sinks, lse)
            return
        self._inputs = [
            copy(self)._with_call(call.of_input(b), sinks, None if lse is None else lse[b])
            for b in range(len(queries))
        ]

    def _with_call(self, call: calls.MatrixCall, sinks: Tensor | None, lse: Tensor | None) -> Self:
        """Set the call of one input, and compute the log-sum-exp of each row."""
        self._call = call
        # Whether lse differs from the lse of the scores; the graph of the scores, without sinks.
        self._rescaled = lse is not None or sinks is not None
        self._row_graph: AttentionGraph | None = None
        if lse is None:
            self._row_graph = call.rows(Top(0))
            lse = self._row_graph.lse
            if sinks is not None:
                lse = torch.logaddexp(lse, sinks.detach().to(lse)[:, None])
                lse = lse.masked_fill(lse == math.inf, math.nan)
        #: Log-sum-exp of each row's scores, with its sink; minus infinity for a row without keys.
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
        """Return the number of inputs of a batch, or of heads."""
        return self.shape[0]

    def __iter__(self) -> Iterator[AttentionMatrix | Tensor]:
        return (self[place] for place in range(len(self)))

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.to_dense().cpu().numpy(), dtype)

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
        """Return ``P x`` for each head.

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
        """Transpose, for products from the left: ``matrix.T @ y``."""
        return TransposedMatrix(self)

    def received(self) -> Tensor:
        """Return the column sums, (heads, keys): the weight that each key gets from all queries."""
        if self._call.by_cells:
            return self.T @ self.queries.new_ones(self.shape[1])
        return self._call.transposed(self.row_bias()).rows(Top(0)).lse.exp()

    @property
    def count(self) -> Tensor:
        """Number of keys visible to each row, (heads, queries)."""
        return self._rows().count

    def entropy(self) -> Tensor:
        """Return the entropy of each row's weights, in nats, (heads, queries)."""
        graph = self._rows()
        return self._entropy(graph) if self._rescaled else graph.entropy

    def sum_of_squares(self) -> Tensor:
        """Return ``sum_j P_ij^2``, (heads, queries): 1 for one key, 1 / n for n equal weights."""
        doubled = self._call.doubled()
        if doubled is None:
            return self._by_blocks(lambda rows, block: block.square().sum(-1))
        return self._exponential(doubled.rows(Top(0)).lse - 2 * self.lse)

    def reciprocity(self) -> Tensor:
        """Return ``sum_j P_ij P_ji``, (heads, queries): how mutual each position's attention is.

        Raises: ShapeError: the numbers of queries and keys differ.
        """
        _, queries, length = self.shape
        if queries != length:
            raise ShapeError(
                f"reciprocity: the matrix is {queries} by {length}; expected a square one, of "
                "self-attention."
            )
        if self._call.by_cells or self._call.softcap is not None:  # s_ij + s_ji is no single call
            back = partial(calls.cells, self._call, self.lse, range(length))
            return self._by_blocks(lambda rows, block: (block * back(rows).mT).sum(-1))
        if self.shape[0] > 1 and self.queries.numel() > SIDE_BY_SIDE:
            return torch.cat([self.of_head(h).reciprocity() for h in range(self.shape[0])])
        both = self._call.plus_transpose(self.row_bias())
        return self._exponential(both.rows(Top(0)).lse - self.lse)

    def mass(self, at: int | Sequence[int] | Tensor) -> Tensor:
        """Return the weight of each row on a diagonal or on a set of keys, (heads, queries).

        at: an offset: the weight of key ``i + at`` for query i (-1: the previous token; 0 if there
        is no such key); or key indices, or a bool tensor (keys,): the sum over them.

        >>> tokens = torch.eye(3)[None]
        >>> matrix = AttentionMatrix(tokens, tokens, scale=math.log(2))
        >>> matrix.mass(-1), matrix.mass([0, 1])
        (tensor([[0.0000, 0.2500, 0.2500]]), tensor([[0.7500, 0.7500, 0.5000]]))
        """
        index = torch.as_tensor(at)
        if not index.ndim:
            return calls.diagonal(self._call, self.lse, whole_number("mass", "at", index))
        indicator = self.queries.new_zeros(self.shape[2])
        if index.numel():
            indicator[index] = 1
        return self @ indicator

    def _by_blocks(self, function: Callable[[range, Tensor], Tensor]) -> Tensor:
        """Concatenate a function of the matrix, computed on one block of rows at a time."""
        parts = [function(rows, block) for rows, block in calls.blocks(self._call, self.lse)]
        return torch.cat(parts, 1) if parts else self.queries.new_zeros(self.shape[:2])

    @overload
    def __getitem__(self, index: tuple[object, ...]) -> Tensor: ...
    @overload
    def __getitem__(self, index: int | slice | list[int]) -> Any: ...
    def __getitem__(self, index: object) -> object:
        """Return a cell, row, column or tile of one or several heads: ``matrix[head, i, j]``.

        ``matrix[b]`` of a batch is the matrix of an input; ``matrix[head]`` is a whole dense head,
        `of_head` the same without forming it.

        Each index is a number, a slice, or a list of numbers; lists are combined as by `numpy.ix_`.
        All cells between the first and the last key are computed.

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

    def to_dense(self, *, force: bool = False) -> Tensor:
        """Return the whole matrix as a tensor.

        Raises: InputError: it is larger than 1 GiB and force is not set.
        """
        if math.prod(self.shape) > DENSE_LIMIT and not force:
            raise InputError(
                f"to_dense: a matrix of {' x '.join(map(str, self.shape))} cells. Ask for tiles: "
                "matrix[head, i:j, k:l], or set force=True."
            )
        if self._inputs is not None:
            return torch.stack([matrix.to_dense(force=True) for matrix in self._inputs])
        if not self.shape[1]:
            return self.queries.new_zeros(self.shape)
        return self._by_blocks(lambda rows, block: block)

    def block_summaries(
        self, head: int, size: int, queries: slice = slice(None), keys: slice = slice(None)
    ) -> tuple[Tensor, Tensor]:
        """Return the largest weight and the sum of each size x size block of one head, in one pass.

        queries, keys: slices; all by default. The first block begins where the slice begins.
        Returns: two tensors (blocks of queries, blocks of keys). The last blocks may be smaller.
        """
        size = whole_number("block_summaries", "size", size, 1)
        head = place_of("matrix", "block_summaries", "head", head, self.shape[0])
        rows, columns = range(self.shape[1])[queries], range(self.shape[2])[keys]
        if (rows.step, columns.step) != (1, 1):
            raise InputError("block_summaries: expected slices of queries and keys without a step.")
        lse = self.lse[head : head + 1]
        return calls.summaries_of_blocks(self._call.head(head), lse, size, rows, columns)

    def top(self, k: int = 32) -> AttentionGraph:
        """Return the graph of the k strongest edges of every query."""
        graph = self._call.rows(Top(k))
        if not self._rescaled:
            return graph
        weights = graph.weights * self._factor(graph)[..., None]
        rest, entropy = (self._mass() - weights.sum(-1)).clamp(min=0), self._entropy(graph)
        return replace(graph, weights=weights, lse=self.lse, entropy=entropy, rest=rest)

    def _mass(self) -> Tensor:
        """Return the mass of each row on keys and sink: 1 or 0; more if the caller's lse is low."""
        nonempty = (self.lse > -math.inf).to(self.queries.dtype)
        mass = self._factor(self._call.rows(Top(0))) if self._rescaled else nonempty
        return nonempty * mass.clamp(min=1)

    def above(self, weight: float) -> AttentionGraph:
        """Return the graph of all edges of at least this weight, at most ``1 / weight`` a row."""
        if not 0 < weight <= 1:
            raise InputError(f"above: weight={weight:g}; expected a weight above 0, at most 1.")
        # One more than possible: rounding may make the largest weights a little too small.
        largest = float(self._mass().max()) if self.lse.numel() else 0.0
        return self.top(math.floor(min(self.shape[2], largest / weight + 1))).above(weight)

    def head(self, h: int) -> LinearOperator:
        """Return one head as a SciPy linear operator, as for `scipy.sparse.linalg.svds`."""
        return linear_operator(self.of_head(h))

    def of_head(self, h: int) -> AttentionMatrix:
        """Return one head as a matrix (1, queries, keys), without a new pass."""
        h = place_of("matrix", "head", "head", h, self.shape[0])
        matrix = copy(self)
        matrix._call = self._call.head(h)
        matrix._row_graph = None if self._row_graph is None else self._row_graph.of_head(h)
        matrix.lse = self.lse[h : h + 1]
        return matrix

    def of_rows(self, h: int, start: int, stop: int) -> AttentionMatrix | None:
        """Return rows of one head as a matrix, (1, stop - start, keys); None: not possible."""
        call = self._call.head(h).some_rows(start, stop)
        if call is None:
            return None
        matrix = copy(self)
        matrix._call, matrix._row_graph, matrix._rescaled = call, None, True
        matrix.lse = self.lse[h : h + 1, start:stop]
        return matrix

    def _rows(self) -> AttentionGraph:
        return self._call.rows(Top(0)) if self._row_graph is None else self._row_graph

    def _factor(self, graph: AttentionGraph) -> Tensor:
        """Return e^(graph's lse - lse): the factor from the weights of the call to these."""
        return self._exponential(graph.lse - self.lse).to(self.queries.dtype)

    def _entropy(self, graph: AttentionGraph) -> Tensor:
        """Return -sum f p log(f p), with the weights p of the call and the factor f."""
        factor = self._factor(graph)
        return factor * graph.entropy - torch.xlogy(factor, factor)

    def row_bias(self) -> Tensor:
        """Return -lse of each row as a bias for keys; minus infinity for rows without keys."""
        empty = self.lse == -math.inf
        return (-self.lse).masked_fill(empty, -math.inf)[None, :, None].to(self.queries.dtype)

    def _exponential(self, logarithms: Tensor) -> Tensor:
        """Return e^x, 0 for rows without keys."""
        return logarithms.masked_fill(self.lse == -math.inf, -math.inf).exp()
