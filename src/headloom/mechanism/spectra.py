"""Measures of the learned matrices: symmetry, directionality and effective rank of W_Q W_K^T.

``M = W_Q W_K^T`` is the bilinear form of a head's scores, x_i^T M x_j. It is width x width but its
rank is at most the depth, so that every measure here works on the two factors.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.mechanism.shapes import describe


def finite(operation: str, matrix: Tensor) -> Tensor:
    """Return the matrix; raise an InputError if a number in it is infinite or NaN."""
    if not bool(matrix.isfinite().all()):
        raise InputError(
            f"{operation}: a matrix of {describe(matrix)} has numbers that are infinite or NaN; "
            "expected finite ones. Diverged training or a damaged file may be the cause: use an "
            "earlier snapshot, or another file."
        )
    return matrix


def singular_values(operation: str, matrix: Tensor) -> Tensor:
    """Return singular values, largest first, (..., rank); raise an InputError as `finite`."""
    values: Tensor = torch.linalg.svdvals(finite(operation, matrix))
    return values


def product_norm(left: Tensor, right: Tensor) -> Tensor:
    """Return the Frobenius norm of ``L R^T``, sqrt(tr(L^T L R^T R)); L, R: (..., width, depth)."""
    left_gram = left.transpose(-2, -1) @ left
    right_gram = right.transpose(-2, -1) @ right
    return (left_gram * right_gram).sum((-2, -1)).clamp(min=0).sqrt()


def symmetry(left: Tensor, right: Tensor) -> Tensor:
    """Return the symmetry of ``M = left right^T``: 1 symmetric, 0 random (or 0), -1 antisymmetric.

        (|M_sym|^2 - |M_anti|^2) / |M|^2 = tr(M M) / |M|^2

    M_sym = (M + M^T) / 2, M_anti = (M - M^T) / 2. (The authors' code: |M_sym|^2 / |M|^2.)

    left, right: W_Q and W_K, (..., width, depth). Source: Saponati et al. 2025.
    """
    cross = right.transpose(-2, -1) @ left
    trace = (cross * cross.transpose(-2, -1)).sum((-2, -1))
    square = product_norm(left, right).square()
    return torch.where(square > 0, trace / square.clamp(min=torch.finfo(square.dtype).tiny), 0.0)


def directionality(left: Tensor, right: Tensor, spread: float = 2.0) -> Tensor:
    """Compare the long columns (+) of ``M = left right^T`` with its long rows (-).

        (c - r) / (c + r), c = sum of column norms above mean + spread * std, r the same for rows,
        std = sqrt(sum of (norm - mean)^2 / (n - 1)) over the n norms

    It is 0 if both sums are equal, as in a symmetric M.

    Args:
        left: W_Q, (..., width, depth).
        right: W_K, (..., width, depth).
        spread: number of standard deviations above the mean from which a norm counts as long.

    Returns: (...); 0 if no row or column is long. Source: Saponati et al. 2025, definition 3.4.
    """
    left_gram = left.transpose(-2, -1) @ left
    right_gram = right.transpose(-2, -1) @ right
    rows = ((left @ right_gram) * left).sum(-1).clamp(min=0).sqrt()
    columns = ((right @ left_gram) * right).sum(-1).clamp(min=0).sqrt()

    def long_norms(norms: Tensor) -> Tensor:
        # A single norm has no spread.
        deviation = norms.std(-1, keepdim=True, correction=min(1, norms.shape[-1] - 1))
        limit = norms.mean(-1, keepdim=True) + spread * deviation
        return torch.where(norms > limit, norms, 0.0).sum(-1)

    long_rows, long_columns = long_norms(rows), long_norms(columns)
    total = long_rows + long_columns
    return torch.where(total > 0, (long_columns - long_rows) / total.clamp(min=1e-30), 0.0)


def product_spectrum(left: Tensor, right: Tensor) -> Tensor:
    """Return the singular values of ``left right^T``, largest first, by two thin QR decompositions.

    left, right: (..., width, depth).
    Returns: (..., min(width, depth)); the others are 0.
    Raises: InputError: the matrices or their product have numbers that are infinite or NaN.
    """
    left_triangle = torch.linalg.qr(left, mode="r").R
    right_triangle = torch.linalg.qr(right, mode="r").R
    return singular_values("spectrum", left_triangle @ right_triangle.transpose(-2, -1))


def effective_rank(spectrum: Tensor) -> Tensor:
    """Return the effective rank of a spectrum s, (..., rank): e to the entropy of its shares.

        exp(-sum_i p_i log p_i), p_i = s_i / sum_j s_j

    Returns: (...): from 1 to rank; 0 for the zero matrix. Source: Roy and Vetterli 2007.
    """
    total = spectrum.sum(-1, keepdim=True)
    share = spectrum / total.clamp(min=torch.finfo(spectrum.dtype).tiny)
    rank = torch.exp(-torch.xlogy(share, share).sum(-1))
    return torch.where(total.squeeze(-1) > 0, rank, 0.0)


#: Learned matrices of a head.
MATRICES = ("W_Q", "W_K", "W_V", "W_O")
#: Measures of a head: Frobenius norms of its matrices and of their gradients; effective rank,
#: symmetry and directionality of W_Q W_K^T.
MEASURES = (
    *(f"norm_{name}" for name in MATRICES),
    *(f"gradient_norm_{name}" for name in MATRICES),
    "effective_rank",
    "symmetry",
    "directionality",
)

#: A number, or None, for each head.
Numbers = list[float | None]


def matrix_measures(
    matrices: Mapping[str, Tensor], gradients: Mapping[str, Tensor] | None, heads: int | None = None
) -> dict[str, Numbers]:
    """Compute MEASURES of a layer's matrices.

    matrices: those of MATRICES that are known, (heads, rows, columns); W_K and W_V of grouped
        queries (kv_heads, ...). gradients: of the loss by each, in the same shapes, if known.
    heads: number of heads of the layer; None: that of W_Q.
    """
    heads = len(matrices["W_Q"]) if heads is None else heads
    measures: dict[str, Numbers] = {name: [None] * heads for name in MEASURES}
    for prefix, parts in (("norm", matrices), ("gradient_norm", gradients or {})):
        for name, matrix in parts.items():
            norms = matrix.norm(dim=(1, 2)).repeat_interleave(heads // len(matrix))
            measures[f"{prefix}_{name}"] = norms.tolist()
    if "W_Q" in matrices and "W_K" in matrices:
        queries, keys = matrices["W_Q"], _of_each_head(matrices["W_Q"], matrices["W_K"])
        measures["effective_rank"] = effective_rank(product_spectrum(queries, keys)).tolist()
        if queries.shape[1] == keys.shape[1]:
            measures["symmetry"] = symmetry(queries, keys).tolist()
        measures["directionality"] = directionality(queries, keys).tolist()
    return measures


def query_key_measures(queries: Tensor, keys: Tensor) -> dict[str, Tensor]:
    """Return the cheap measures of W_Q and W_K: their norms, norm and symmetry of the product.

    queries: W_Q, (heads, width, depth). keys: W_K, (kv_heads, source_width, depth).
    Returns: "norm_W_Q", "norm_W_K", "norm" and, if the widths are equal, "symmetry": (heads,).
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
    """Return W_K of each query head."""
    return keys.repeat_interleave(len(queries) // len(keys), 0)


def product_cells(queries: Tensor, keys: Tensor, size: int) -> Tensor:
    """Return W_Q W_K^T of each head, reduced to at most `size` rows and columns.

    Each block of rows and columns becomes its cell with the largest absolute value, with its sign.
    One head is formed at a time.

    queries: W_Q, (heads, width, depth). keys: W_K, (kv_heads, width, depth).
    Returns: (heads, n, n), n at most `size`.
    Raises: ShapeError: the widths differ.
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
        padded = matrix.new_zeros(small * block, small * block)
        padded[:width, :width] = matrix @ keys[head // group].T
        blocks = padded.reshape(small, block, small, block).transpose(1, 2).flatten(2)
        furthest = blocks.abs().argmax(-1, keepdim=True)
        cells[head] = blocks.gather(-1, furthest)[..., 0]
    return cells
