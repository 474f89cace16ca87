"""The transpose of an attention matrix, for products from the left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from headloom.mechanism.graph import Top
from headloom.mechanism.matrix.cells import blocks

if TYPE_CHECKING:
    from headloom.mechanism.matrix.attention_matrix import AttentionMatrix

__all__ = ["TransposedMatrix"]


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
        heads, keys, queries = self.shape
        values, flat = matrix._vectors(vectors, queries, "T @")
        if matrix._call.by_cells:
            result = values.new_zeros(heads, keys, values.shape[-1])
            for rows, block in blocks(matrix._call, matrix.lse):
                result += block.transpose(1, 2) @ values[..., rows.start : rows.stop, :]
        else:
            output, graph = matrix._call.transposed(matrix._row_bias()).attend(values, Top(0))
            result = output * graph.lse.exp()[..., None].to(output.dtype)
        return result[..., 0] if flat else result
