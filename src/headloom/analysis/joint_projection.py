"""A head's queries and keys on one plane: their joint principal components.

    C = 1/n sum_x (x - mean)(x - mean)^T         over all queries and keys, n of them
    C u_1 = lambda_1 u_1, C u_2 = lambda_2 u_2   its two largest eigenvalues
    x -> (u_1 . (x - mean), u_2 . (x - mean))    share of axis i: lambda_i / trace C

One mean and two axes for both, so that distances between a query and a key are comparable. It is
the plane on which they spread most, which need not be where they match: a score is an inner product
in all dimensions.

Source: Pearson 1901; for queries and keys of a head together: Yeh et al. 2023 (AttentionViz).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.mechanism.shapes import describe, real_tensor


@dataclass(frozen=True, eq=False)
class JointProjection:
    """queries, keys: (n, 2), float64. shares: of the variance on each axis, 0 to 1."""

    queries: Tensor
    keys: Tensor
    shares: tuple[float, float]


def joint_projection(queries: Tensor, keys: Tensor) -> JointProjection:
    """Project queries (queries, depth) and keys (keys, depth) to the two axes of most variance.

    The largest number of an axis is positive, so that the picture does not flip. Without any
    variance all lie at 0, and the shares are 0; so does what has depth 1 on the second axis.

    Raises: InputError: a number is not finite.

    >>> found = joint_projection(torch.tensor([[3.0, 0.0]]), torch.tensor([[-1.0, 0.0]]))
    >>> found.queries.tolist(), found.keys.tolist(), found.shares
    ([[2.0, 0.0]], [[-2.0, 0.0]], (1.0, 0.0))
    """
    for name, tensor in (("queries", queries), ("keys", keys)):
        real_tensor("projection", f"the tensor of {name}", tensor)
    if not queries.ndim == keys.ndim == 2 or queries.shape[1] != keys.shape[1]:
        raise ShapeError(
            f"projection: queries {describe(queries)} and keys {describe(keys)}; expected "
            "(positions, depth) of a head, of one depth."
        )
    points = torch.cat((queries, keys)).detach().cpu().double()
    if not bool(torch.isfinite(points).all()):
        raise InputError("projection: a query or a key holds a number that is not finite.")
    if not len(points):
        return JointProjection(points.new_zeros(0, 2), points.new_zeros(0, 2), (0.0, 0.0))
    centred = points - points.mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(points))
    values, axes = values.flip(0).clamp(min=0), vectors.flip(1)[:, :2]
    total = float(values.sum())
    if total == 0:
        axes = torch.zeros_like(axes)
    signs = axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    placed = centred @ (axes * signs)
    if placed.shape[1] < 2:
        placed = torch.cat((placed, torch.zeros_like(placed)), 1)
    placed = placed + 0.0  # never -0
    shares = [float(value) / total if total else 0.0 for value in values[:2]] + [0.0]
    return JointProjection(placed[: len(queries)], placed[len(queries) :], (shares[0], shares[1]))
