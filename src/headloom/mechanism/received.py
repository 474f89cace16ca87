"""What each key receives: the columns of the weights, summed over queries, and their largest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism.shapes import FARTHEST, Weights, in_words, whole_number


@dataclass(frozen=True)
class LastQueries:
    """Ask what keys receive from all queries and, besides, from the last ``number`` of them.

    Source: a window of the last queries, Li et al. 2024 (SnapKV), section 4.
    """

    number: int

    def __post_init__(self) -> None:
        number = min(whole_number("LastQueries", "number", self.number, 1, None), FARTHEST)
        object.__setattr__(self, "number", number)  # NumPy's whole numbers become Python's.


class Received(NamedTuple):
    """Tensors of an `AttentionGraph`, each (batch, heads, keys); None: not asked."""

    received: Tensor | None = None
    received_most: Tensor | None = None
    received_last: Tensor | None = None


def last_queries(received: bool | LastQueries, operation: str) -> int | None:
    """How many last queries are summed by themselves, 0: none; None: nobody asks."""
    if isinstance(received, LastQueries):
        return received.number
    if isinstance(received, bool):
        return 0 if received else None
    raise InputError(
        f"{operation}: received={in_words(received)}; expected True, False, or "
        f"headloom.LastQueries(n)."
    )


def in_window(rows: range, queries: int, last: int) -> slice:
    """Those of some rows that are among the last queries."""
    count = rows.stop - rows.start
    return slice(min(max(queries - last - rows.start, 0), count), count)


def of_rows(weights: Weights, rows: range, queries: int, last: int) -> Received:
    """What keys receive from some rows of the weights, (batch, heads, rows, keys)."""
    with torch.no_grad():
        none = weights.new_zeros(*weights.shape[:-2], weights.shape[-1])
        most = weights.amax(-2) if weights.shape[-2] else none
    window = None
    if last and type(queries) is int:
        window = weights[..., in_window(rows, queries, last), :].sum(-2)
    elif last:  # in a program that is compiled for any number of them
        early = torch.arange(rows.start, rows.stop, device=weights.device) < queries - last
        window = weights.masked_fill(early[:, None], 0).sum(-2)
    return Received(weights.sum(-2), most, window)


def of_edges(
    weights: Tensor, rows: Tensor, columns: Tensor, shape: tuple[int, int], last: int | None
) -> Received:
    """What keys receive along edges, without a batch; weights: (edges, heads)."""
    if last is None:
        return Received()
    queries, keys = shape
    nothing = weights.new_zeros(keys, weights.shape[1])
    columns = columns.long()
    with torch.no_grad():
        there = columns[:, None].expand(-1, weights.shape[1])
        most = nothing.scatter_reduce(0, there, weights.detach(), "amax")
    window = None
    if last:
        window = nothing.index_add(0, columns, weights * (rows >= queries - last)[:, None]).T
    return Received(nothing.index_add(0, columns, weights).T, most.T, window)
