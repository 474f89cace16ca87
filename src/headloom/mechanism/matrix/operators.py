"""Transpose of an attention matrix, and a head as a SciPy linear operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headloom.errors import ShapeError
from headloom.mechanism.graph import Top
from headloom.mechanism.matrix import calls
from headloom.mechanism.shapes import describe, real_tensor

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

    from headloom.mechanism.matrix.attention_matrix import AttentionMatrix


class TransposedMatrix:
    """Transpose of an attention matrix, (heads, keys, queries), for products from the left."""

    def __init__(self, matrix: AttentionMatrix) -> None:
        self.T = matrix  #: The matrix itself.

    @property
    def shape(self) -> tuple[int, ...]:
        """(heads, keys, queries)."""
        heads, queries, keys = self.T.shape
        return heads, keys, queries

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """Return ``P^T y`` for each head.

        vectors: (queries,), (queries, columns) or (heads, queries, columns).
        Returns: (heads, keys) or (heads, keys, columns).
        """
        matrix, call = self.T, self.T._call
        heads, queries, keys = call.shape
        values, flat = as_values("T @", vectors, heads, queries, matrix.queries.dtype)
        if call.by_cells:
            result = values.new_zeros(heads, keys, values.shape[-1])
            for rows, block in calls.blocks(call, matrix.lse):
                result += block.transpose(1, 2) @ values[..., rows.start : rows.stop, :]
        else:
            output, graph = call.transposed(matrix.row_bias()).attend(values, Top(0))
            result = output * graph.lse.exp()[..., None].to(output.dtype)
        return result[..., 0] if flat else result


def as_values(
    operation: str, vectors: Tensor, heads: int, length: int, dtype: torch.dtype
) -> tuple[Tensor, bool]:
    """Return vectors as values of a call, and whether it was one vector without columns."""
    flat = real_tensor(operation, "the vectors", vectors).ndim == 1
    columns = vectors[:, None] if flat else vectors
    if tuple(columns.shape[:-1]) not in ((length,), (heads, length)):
        raise ShapeError(
            f"{operation}: the vectors are {describe(vectors)}; expected ({length},), "
            f"({length}, columns) or ({heads}, {length}, columns)."
        )
    return columns.to(dtype), flat


def linear_operator(head: AttentionMatrix) -> LinearOperator:
    """Return the matrix of one head as a SciPy linear operator, (queries, keys)."""
    from scipy.sparse.linalg import LinearOperator

    def product(matrix: AttentionMatrix | TransposedMatrix) -> Callable[[np.ndarray], np.ndarray]:
        def multiply(vectors: np.ndarray) -> np.ndarray:
            tensor = torch.as_tensor(vectors, dtype=head.queries.dtype)
            columns = tensor.reshape(len(tensor), -1)
            return (matrix @ columns)[0].reshape(-1, *tensor.shape[1:]).numpy()

        return multiply

    forward, back = product(head), product(head.T)
    dtype = head.queries.new_empty(0, device="cpu").numpy().dtype
    return LinearOperator(
        head.shape[1:], matvec=forward, rmatvec=back, matmat=forward, rmatmat=back, dtype=dtype
    )
