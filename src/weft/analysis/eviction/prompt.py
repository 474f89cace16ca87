"""A prompt that was read: what a policy may look at when it chooses which keys to keep."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from weft.mechanism.matrix.attention_matrix import AttentionMatrix
from weft.mechanism.shapes import check_type, whole_number

__all__ = ["Prompt", "column_sums", "rows_of"]

#: One row of so many is few; and cells of them that are formed at a time.
_FEW, _CELLS = 4, 2**22


def column_sums(matrix: AttentionMatrix, rows: range) -> Tensor:
    """What each key gets from some queries, (heads, keys).

        sum_{i in rows} P_ij

    The one place where eviction takes column sums: of many rows by one pass over queries and keys,
    of few by their weights, some rows at a time.
    """
    heads, queries, keys = matrix.shape
    if rows == range(queries):
        return matrix.received()
    if len(rows) * _FEW < queries:
        sums = matrix.queries.new_zeros(heads, keys)
        size = max(1, _CELLS // max(1, heads * keys))
        for start in range(rows.start, rows.stop, size):
            some = range(start, min(start + size, rows.stop))
            sums += rows_of(matrix, some, keys).sum(1)
        return sums
    chosen = matrix.queries.new_zeros(queries)
    chosen[rows.start : rows.stop] = 1
    return matrix.T @ chosen


def rows_of(matrix: AttentionMatrix, rows: range, keys: int, heads: range | None = None) -> Tensor:
    """The weights of some queries on the first keys, (heads, rows, keys), exactly.

    heads: which; None: all.
    """
    tiles = [
        matrix[head, rows.start : rows.stop, 0:keys]
        for head in (range(matrix.shape[0]) if heads is None else heads)
    ]
    return torch.stack(tiles)


class Prompt:
    """The first positions of a layer, of which a policy chooses those whose keys are kept.

    Args:
        matrix: the exact weights of the layer, over the prompt and what follows it.
        length: positions of the prompt. A policy sees its rows and columns, and no later ones.
        name: the path of the layer in the model.
        values: (kv_heads, keys, value_depth) where they are known.
    """

    def __init__(
        self, matrix: AttentionMatrix, length: int, name: str = "", values: Tensor | None = None
    ) -> None:
        check_type("Prompt", "the matrix", matrix, AttentionMatrix, "that of a layer, layer.matrix")
        length = whole_number("Prompt", "length", length, 1, matrix.shape[1])
        self._matrix, self._values = matrix, values
        self.length, self.name = length, name

    @property
    def heads(self) -> int:
        """Heads of queries."""
        return self._matrix.shape[0]

    @property
    def kv_heads(self) -> int:
        """Heads of keys: each serves ``heads / kv_heads`` heads of queries side by side."""
        return self._matrix.keys.shape[0]

    @property
    def queries(self) -> Tensor:
        """As they are scored, (heads, length, depth); a copy."""
        return self._matrix.queries[:, : self.length].clone()

    @property
    def keys(self) -> Tensor:
        """As they are scored, (kv_heads, length, depth); a copy."""
        return self._matrix.keys[:, : self.length].clone()

    @property
    def values(self) -> Tensor | None:
        """(kv_heads, length, value_depth), where they are known."""
        return None if self._values is None else self._values[:, : self.length]

    def last(self, rows: int) -> Tensor:
        """The weights of the last queries, exact: (heads, rows, length)."""
        return rows_of(self._matrix, range(self.length - rows, self.length), self.length)

    @property
    def received(self) -> Tensor:
        """What each key got from all queries of the prompt, (heads, length); a copy."""
        return self._received.clone()

    @cached_property
    def _received(self) -> Tensor:
        return column_sums(self._matrix, range(self.length))[:, : self.length]

    def by_kv_head(self, of_heads: Tensor) -> Tensor:
        """The mean over the heads that share keys: (heads, ...) -> (kv_heads, ...)."""
        return of_heads.reshape(self.kv_heads, -1, *of_heads.shape[1:]).mean(1)
