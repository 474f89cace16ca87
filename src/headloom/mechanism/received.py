"""Received attention: sum and maximum of each column of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism.shapes import FARTHEST, Weights, in_words, whole_number


@dataclass(frozen=True)
class LastQueries:
    """Option to sum the columns over all queries and, besides, over the last ``number`` of them.

    Source: a window of the last queries, Li et al. 2024 (SnapKV), section 4.
    """

    number: int

    def __post_init__(self) -> None:
        number = min(whole_number("LastQueries", "number", self.number, 1, None), FARTHEST)
        object.__setattr__(self, "number", number)  # as a Python int


class Received(NamedTuple):
    """Tensors of an `AttentionGraph`, each (batch, heads, keys); None: not requested."""

    received: Tensor | None = None
    received_most: Tensor | None = None
    received_last: Tensor | None = None


def last_queries(received: bool | LastQueries, operation: str) -> int | None:
    """Return the number of last queries that are summed separately, 0: none; None: no sums."""
    if isinstance(received, LastQueries):
        return received.number
    if isinstance(received, bool):
        return 0 if received else None
    raise InputError(
        f"{operation}: received={in_words(received)}; expected True, False, or "
        "headloom.LastQueries(n)."
    )


def in_window(rows: range, queries: int, last: int) -> slice:
    """Return the slice of some rows that are among the last queries."""
    count = rows.stop - rows.start
    return slice(min(max(queries - last - rows.start, 0), count), count)


def of_rows(weights: Weights, rows: range, queries: int, last: int) -> Received:
    """Sum the columns of some rows of the weights, (batch, heads, rows, keys)."""
    with torch.no_grad():
        zeros = weights.new_zeros(*weights.shape[:-2], weights.shape[-1])
        most = weights.amax(-2) if weights.shape[-2] else zeros
    window = None
    if last and type(queries) is int:
        window = weights[..., in_window(rows, queries, last), :].sum(-2)
    elif last:  # in a program compiled for a dynamic number of queries
        earlier = torch.arange(rows.start, rows.stop, device=weights.device) < queries - last
        window = weights.masked_fill(earlier[:, None], 0).sum(-2)
    return Received(weights.sum(-2), most, window)


def of_edges(
    weights: Tensor, rows: Tensor, columns: Tensor, shape: tuple[int, int], last: int | None
) -> Received:
    """Sum the weights of the edges to each key, without a batch; weights: (edges, heads)."""
    if last is None:
        return Received()
    queries, keys = shape
    zeros = weights.new_zeros(keys, weights.shape[1])
    columns = columns.long()
    with torch.no_grad():
        index = columns[:, None].expand(-1, weights.shape[1])
        most = zeros.scatter_reduce(0, index, weights.detach(), "amax")
    window = None
    if last:
        window = zeros.index_add(0, columns, weights * (rows >= queries - last)[:, None]).T
    return Received(zeros.index_add(0, columns, weights).T, most.T, window)
