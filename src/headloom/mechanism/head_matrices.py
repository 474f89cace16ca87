"""What is kept of the learned matrices of each head along a training: measures, and a picture."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from headloom.errors import ShapeError
from headloom.mechanism.shapes import describe
from headloom.mechanism.spectra import (
    directionality,
    effective_rank,
    product_norm,
    product_spectrum,
    symmetry,
)

__all__ = ["MATRICES", "MEASURES", "matrix_measures", "product_cells", "query_key_measures"]

#: The learned matrices of a head.
MATRICES = ("W_Q", "W_K", "W_V", "W_O")

#: The measures of a head: Frobenius norms of its matrices and of their gradients, and of
#: W_Q W_K^T the effective rank, the symmetry and the directionality (headloom.mechanism.spectra).
MEASURES = (
    *(f"norm_{name}" for name in MATRICES),
    *(f"gradient_norm_{name}" for name in MATRICES),
    "effective_rank",
    "symmetry",
    "directionality",
)

#: One number for each head; None where there is none.
Numbers = list[float | None]


def _norms(matrix: Tensor | None, heads: int) -> Numbers:
    """The Frobenius norm of each head's matrix; heads of a group share theirs."""
    if matrix is None:
        return [None] * heads
    norms: Numbers = matrix.norm(dim=(1, 2)).repeat_interleave(heads // len(matrix)).tolist()
    return norms


def matrix_measures(
    matrices: Mapping[str, Tensor], gradients: Mapping[str, Tensor] | None, heads: int | None = None
) -> dict[str, Numbers]:
    """MEASURES of a layer's matrices.

    Args:
        matrices: those of MATRICES that are known, (heads, rows, columns); of a group that shares
            W_K and W_V, (kv_heads, ...).
        gradients: likewise, of the loss by each; None: there are none.
        heads: of the layer; None: those of W_Q.
    """
    heads = len(matrices["W_Q"]) if heads is None else heads
    gradients = {} if gradients is None else gradients
    measures = {f"norm_{name}": _norms(matrices.get(name), heads) for name in MATRICES}
    for name in MATRICES:
        measures[f"gradient_norm_{name}"] = _norms(gradients.get(name), heads)
    measures |= {name: [None] * heads for name in ("effective_rank", "symmetry", "directionality")}
    if "W_Q" in matrices and "W_K" in matrices:
        queries, keys = matrices["W_Q"], _of_each_head(matrices["W_Q"], matrices["W_K"])
        measures["effective_rank"] = effective_rank(product_spectrum(queries, keys)).tolist()
        if queries.shape[1] == keys.shape[1]:
            measures["symmetry"] = symmetry(queries, keys).tolist()
        measures["directionality"] = directionality(queries, keys).tolist()
    return measures


def query_key_measures(queries: Tensor, keys: Tensor) -> dict[str, Tensor]:
    """What is cheap to know of W_Q W_K^T: the norms of both, the norm and symmetry of the product.

    Args: queries: W_Q, (heads, width, depth). keys: W_K, (kv_heads, source_width, depth).
    Returns: "norm_W_Q", "norm_W_K", "norm" and, where the widths agree, "symmetry": (heads,).
    """
    keys = _of_each_head(queries, keys)
    measures = {
        "norm_W_Q": queries.norm(dim=(1, 2)),
        "norm_W_K": keys.norm(dim=(1, 2)),
        "norm": product_norm(queries, keys),
    }
    if queries.shape[1] == keys.shape[1]:
        measures["symmetry"] = symmetry(queries, keys)
    return measures


def _of_each_head(queries: Tensor, keys: Tensor) -> Tensor:
    """W_K of each head of queries."""
    return keys.repeat_interleave(len(queries) // len(keys), 0)


def product_cells(queries: Tensor, keys: Tensor, size: int) -> Tensor:
    """W_Q W_K^T of each head on at most `size` rows and columns, never formed for all heads.

    Rows and columns that are more are joined in blocks; of each block stands the cell that is
    furthest from 0, with its sign.

    Args: queries: W_Q, (heads, width, depth). keys: W_K, (kv_heads, width, depth).
    Returns: (heads, n, n), n at most `size`.
    Raises: ShapeError: the widths differ.

    >>> import torch
    >>> W = torch.eye(4)[None]
    >>> product_cells(W, -3 * W, 2)
    tensor([[[-3.,  0.],
             [ 0., -3.]]])
    """
    if queries.shape[1] != keys.shape[1]:
        raise ShapeError(
            f"product: W_Q is {describe(queries)}, W_K {describe(keys)}; expected one width."
        )
    width, group = queries.shape[1], len(queries) // len(keys)
    block = -(-width // size)
    small = -(-width // block)
    cells = queries.new_zeros(len(queries), small, small)
    for head, matrix in enumerate(queries):
        whole = matrix.new_zeros(small * block, small * block)
        whole[:width, :width] = matrix @ keys[head // group].T
        blocks = whole.reshape(small, block, small, block).transpose(1, 2).flatten(2)
        furthest = blocks.abs().argmax(-1, keepdim=True)
        cells[head] = blocks.gather(-1, furthest)[..., 0]
    return cells
