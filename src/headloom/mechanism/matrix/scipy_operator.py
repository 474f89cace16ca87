"""One head of an attention matrix for SciPy: `svds`, `eigs` and the like, without the matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

    from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
    from headloom.mechanism.matrix.transposed import TransposedMatrix

__all__ = ["linear_operator"]


def linear_operator(one: AttentionMatrix) -> LinearOperator:
    """A matrix with one head as a (queries, keys) operator on NumPy vectors."""
    from scipy.sparse.linalg import LinearOperator

    dtype = one.queries.dtype

    def times(matrix: AttentionMatrix | TransposedMatrix) -> Any:
        def product(vectors: Any) -> Any:
            tensor = torch.as_tensor(vectors, dtype=dtype)
            columns = tensor.reshape(len(tensor), -1)
            return (matrix @ columns)[0].reshape(-1, *tensor.shape[1:]).numpy()

        return product

    forward, backward = times(one), times(one.T)
    return LinearOperator(
        one.shape[1:],
        matvec=forward,
        rmatvec=backward,
        matmat=forward,
        rmatmat=backward,
        dtype=torch.empty(0, dtype=dtype).numpy().dtype,
    )
