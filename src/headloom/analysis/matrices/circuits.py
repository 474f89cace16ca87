"""QK and OV circuits: what a head does, as two matrices of low rank that are never formed.

    QK = W_Q W_K^T    (width, source_width): who looks at whom; scores are x QK y^T
    OV = W_V W_O      (source_width, width): what is written where it is looked at

Seen from tokens to tokens, with the embedding W_E (tokens, width) and the output W_U (width,
tokens): W_E QK W_E^T and W_E OV W_U.

Source: Elhage et al. 2021, "A mathematical framework for transformer circuits".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headloom.analysis.matrices.projections import LayerMatrices
from headloom.errors import InputError, ShapeError
from headloom.mechanism import spectra
from headloom.mechanism.shapes import check_type, describe, place_of, real_tensor

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

__all__ = ["Circuit", "ov_circuit", "qk_circuit"]


_EXPECTED = "matrices of a layer, as matrices_of(model)[0]"


@dataclass(frozen=True, eq=False)
class Circuit:
    """``left right^T`` of each head, which has the rank of a head's depth at most.

    left: (heads, rows, depth); right: (heads, columns, depth).

    >>> half = Circuit(torch.eye(3)[None, :, :2], torch.eye(3)[None, :, :2])   # a projection
    >>> half.eigenvalues().real, half.copying()
    (tensor([[1., 1.]]), tensor([1.]))
    """

    left: Tensor
    right: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """(heads, rows, columns)."""
        return self.left.shape[0], self.left.shape[1], self.right.shape[1]

    def norm(self) -> Tensor:
        """Frobenius norm, (heads,)."""
        return spectra.product_norm(self.left, self.right)

    def singular_values(self) -> Tensor:
        """The largest ones, (heads, depth) or as many as rows or columns; all others are 0."""
        return spectra.product_spectrum(self.left, self.right)

    def effective_rank(self) -> Tensor:
        """How many directions are in use, (heads,): see `headloom.mechanism.spectra`."""
        return spectra.effective_rank(self.singular_values())

    def eigenvalues(self) -> Tensor:
        """Those of right^T left, (heads, depth), complex: all of the circuit's that are not 0.

        Some are 0 where the circuit has a lower rank than the head has depth.

        Raises: InputError: the circuit does not lead from a space to itself.
        """
        self._square("eigenvalues")
        turned = spectra.finite("eigenvalues", self.right.transpose(-2, -1) @ self.left)
        values: Tensor = torch.linalg.eigvals(turned)
        return values

    def copying(self) -> Tensor:
        """How far the circuit makes more of what it reads: of OV, whether the head copies.

            sum_i lambda_i / sum_i |lambda_i|

        1: all eigenvalues are positive: what is looked at is written again; -1: it is taken away;
        about 0: neither, as of random matrices. The sum of the eigenvalues is real.

        Returns: (heads,); 0 where all are 0.
        Source: Elhage et al. 2021, "Detecting copying behavior".
        """
        eigenvalues = self.eigenvalues()
        size = eigenvalues.abs().sum(-1)
        return torch.where(size > 0, eigenvalues.real.sum(-1) / size.clamp(min=1e-30), 0.0)

    def symmetry(self) -> Tensor:
        """1 symmetric, 0 random, -1 antisymmetric, (heads,): see `headloom.mechanism.spectra`."""
        self._square("symmetry")
        return spectra.symmetry(self.left, self.right)

    def directionality(self) -> Tensor:
        """Long columns (above 0) or long rows (below), (heads,): see
        `headloom.mechanism.spectra`.
        """
        return spectra.directionality(self.left, self.right)

    def transposed(self) -> Circuit:
        """The other way round: of QK, who is looked at by whom."""
        return Circuit(self.right, self.left)

    def together(self) -> Circuit:
        """The sum over heads, as one circuit of one head: of QK, the layer's W_Q W_K^T."""
        left, right = (part.permute(1, 0, 2).flatten(1)[None] for part in (self.left, self.right))
        return Circuit(left, right)

    def dense(self, head: int) -> Tensor:
        """The matrix of a head, (rows, columns)."""
        head = place_of("circuit", "dense", "head", head, len(self.left))
        return self.left[head] @ self.right[head].T

    def operator(self, head: int) -> LinearOperator:
        """The matrix of a head for SciPy, never formed."""
        from scipy.sparse.linalg import aslinearoperator

        head = place_of("circuit", "operator", "head", head, len(self.left))
        left, right = self.left[head].numpy(), self.right[head].numpy()
        product: LinearOperator = aslinearoperator(left) @ aslinearoperator(right.T)
        return product

    def _square(self, operation: str) -> None:
        _, rows, columns = self.shape
        if rows != columns:
            raise InputError(
                f"{operation}: the circuit is {rows} x {columns}; expected a square one, of a "
                "sequence that looks at itself."
            )


def qk_circuit(layer: LayerMatrices, embedding: Tensor | None = None) -> Circuit:
    """``W_Q W_K^T`` of each head; with an embedding (tokens, width), from token to token.

    Returns: a Circuit of (heads, width, source_width), or (heads, tokens, tokens).
    """
    check_type("qk_circuit", "the layer", layer, LayerMatrices, _EXPECTED)
    layer = layer.repeated()
    if embedding is None:
        return Circuit(layer.W_Q, layer.W_K)
    _check_embedding("qk_circuit", "embedding", embedding, layer.W_Q.shape[1], 1)
    return Circuit(embedding @ layer.W_Q, embedding @ layer.W_K)


def ov_circuit(
    layer: LayerMatrices, embedding: Tensor | None = None, unembedding: Tensor | None = None
) -> Circuit:
    """``W_V W_O`` of each head; with embeddings, from token to logits, ``W_E W_V W_O W_U``.

    Args:
        layer: its matrices.
        embedding: W_E, (tokens, width).
        unembedding: W_U, (width, tokens); None: W_E^T.

    Returns: a Circuit of (heads, source_width, width), or (heads, tokens, tokens).

    Raises: InputError: the layer's W_O is not known.
    """
    check_type("ov_circuit", "the layer", layer, LayerMatrices, _EXPECTED)
    layer = layer.repeated()
    if layer.W_O is None:
        raise InputError(f"ov_circuit: W_O of layer {layer.name} is not known.")
    written = layer.W_O.transpose(-2, -1)
    if embedding is None:
        return Circuit(layer.W_V, written)
    _check_embedding("ov_circuit", "embedding", embedding, layer.W_V.shape[1], 1)
    if unembedding is not None:
        _check_embedding("ov_circuit", "unembedding", unembedding, layer.W_O.shape[2], 0)
    out = embedding if unembedding is None else unembedding.T
    return Circuit(embedding @ layer.W_V, out @ written)


def _check_embedding(operation: str, name: str, matrix: object, width: int, side: int) -> None:
    """Raise an InputError unless a matrix has the width of a layer on a side."""
    given = real_tensor(operation, name, matrix)
    if given.ndim != 2 or given.shape[side] != width:
        shape = f"(tokens, {width})" if side else f"({width}, tokens)"
        raise ShapeError(f"{operation}: {name} is {describe(given)}; expected {shape}.")
