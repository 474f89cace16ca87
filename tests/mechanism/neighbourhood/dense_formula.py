"""Attention over neighbours with a matrix of all scores, in float64: shares no code with
headloom."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["dense_output", "dense_scores", "kink_distance"]


def dense_scores(kind: int, parts: dict[str, Tensor], slope: float, scale: float) -> Tensor:
    """Scores (heads, targets, sources) without what edges add, before an additive LeakyReLU."""
    if kind == 0:
        a, b = parts["target_terms"], parts["source_terms"]
        return a.T[:, :, None] + b.T[:, None, :]
    q, k = parts["queries"], parts["keys"]
    if kind == 2:
        return scale * torch.einsum("ihd,jhd->hij", q, k)
    z = q[:, None] + k[None]
    return torch.einsum("ijhd,hd->hij", torch.where(z > 0, z, slope * z), parts["vector"])


def dense_output(
    kind: int,
    edge_index: Tensor,
    targets: int,
    parts: dict[str, Tensor],
    slope: float,
    scale: float,
    factors: Tensor | None = None,
) -> Tensor:
    """The output, (targets, heads, depth), edge by edge and row by row.

    factors: what weights are multiplied by after the softmax, (edges, heads).
    """
    values = parts["values"]
    rows = []
    for i in range(targets):
        numbers = [n for n in range(edge_index.shape[1]) if int(edge_index[1, n]) == i]
        if not numbers:
            rows.append(values.new_zeros(values.shape[1:]))
            continue
        scores = torch.stack(
            [edge_score(kind, edge_index, n, parts, slope, scale) for n in numbers]
        )
        exponentials = (scores - scores.max(0).values).exp()
        weights = exponentials / exponentials.sum(0)
        if factors is not None:
            weights = weights * factors[numbers]
        rows.append(torch.einsum("nh,nhd->hd", weights, values[edge_index[0, numbers]]))
    return torch.stack(rows) if rows else values.new_zeros(0, *values.shape[1:])


def edge_score(
    kind: int, edge_index: Tensor, n: int, parts: dict[str, Tensor], slope: float, scale: float
) -> Tensor:
    """The score of one edge, (heads,)."""

    def leaky(x: Tensor) -> Tensor:
        return torch.where(x > 0, x, slope * x)

    j, i = (int(end) for end in edge_index[:, n])
    term = parts["edge_terms"][n] if "edge_terms" in parts else 0
    if kind == 0:
        return leaky(parts["target_terms"][i] + parts["source_terms"][j] + term)
    q, k = parts["queries"][i], parts["keys"][j]
    if kind == 2:
        return scale * (q * k).sum(-1) + term
    z = q + k
    if "edge_rows" in parts:
        z = z + parts["edge_rows"][n]
    return (parts["vector"] * leaky(z)).sum(-1) + term


def kink_distance(kind: int, edge_index: Tensor, parts: dict[str, Tensor]) -> float:
    """How near to 0 a sum comes that a LeakyReLU takes: there its gradient jumps."""
    j, i = edge_index
    if kind == 2 or not j.numel():
        return float("inf")
    if kind == 0:
        z = parts["target_terms"][i] + parts["source_terms"][j] + parts.get("edge_terms", 0)
    else:
        z = parts["queries"][i] + parts["keys"][j]
        z = z + parts.get("edge_rows", 0)
    return float(z.abs().min())
