"""The transpose of an attention matrix, and one head of it for SciPy, without the matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from headloom.errors import ShapeError
from headloom.mechanism.shapes import describe, real_tensor

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

__all__ = ["Products", "TransposedMatrix", "as_values", "linear_operator"]


class Products(Protocol):
    """A matrix for each head, by its products from either side; what `AttentionMatrix` has."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(heads, rows, columns)."""

    def __matmul__(self, vectors: Tensor) -> Tensor: ...
    def transposed_product(self, vectors: Tensor) -> Tensor:
        """``P^T y`` for each head."""


class TransposedMatrix:
    """The transpose of an attention matrix, (heads, keys, queries), for products from the left."""

    def __init__(self, matrix: Products) -> None:
        self.T = matrix  #: The matrix itself.

    @property
    def shape(self) -> tuple[int, int, int]:
        """(heads, keys, queries)."""
        heads, queries, keys = self.T.shape
        return heads, keys, queries

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """``P^T y`` for each head.

        vectors: (queries,), (queries, columns) or (heads, queries, columns).
        Returns: (heads, keys) or (heads, keys, columns).
        """
        return self.T.transposed_product(vectors)


def as_values(
    operation: str, vectors: Tensor, heads: int, length: int, dtype: torch.dtype
) -> tuple[Tensor, bool]:
    """Vectors as values of a call, and whether there was one without a column dimension."""
    flat = real_tensor(operation, "the vectors", vectors).ndim == 1
    columns = vectors[:, None] if flat else vectors
    if tuple(columns.shape[:-1]) not in ((length,), (heads, length)):
        raise ShapeError(
            f"{operation}: the vectors are {describe(vectors)}; expected ({length},), "
            f"({length}, columns) or ({heads}, {length}, columns)."
        )
    return columns.to(dtype), flat


def linear_operator(one: Products, dtype: torch.dtype) -> LinearOperator:
    """A matrix with one head as a (queries, keys) operator on NumPy vectors."""
    from scipy.sparse.linalg import LinearOperator

    def times(product: Callable[[Tensor], Tensor]) -> Callable[[np.ndarray], np.ndarray]:
        def of_array(vectors: np.ndarray) -> np.ndarray:
            tensor = torch.as_tensor(vectors, dtype=dtype)
            columns = tensor.reshape(len(tensor), -1)
            return product(columns)[0].reshape(-1, *tensor.shape[1:]).numpy()

        return of_array

    forward, backward = times(one.__matmul__), times(one.transposed_product)
    return LinearOperator(
        one.shape[1:],
        matvec=forward,
        rmatvec=backward,
        matmat=forward,
        rmatmat=backward,
        dtype=torch.empty(0, dtype=dtype).numpy().dtype,
    )
