"""The forward kernel: from a NativeCall to its results."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.mechanism.backends.native_request import NativeCall, kernels
from weft.mechanism.backends.rows import Rows
from weft.mechanism.shapes import Output, PerRow

__all__ = ["forward", "forward_graph", "forward_output"]


def forward(native: NativeCall) -> tuple[Output, PerRow]:
    """Output and log-sum-exp of each row."""
    output, lse = _room_for_output(native), torch.empty(native.queries.shape[:3])
    kernels.forward(native, {"output": output, "lse": lse}, torch.get_num_threads())
    return output, lse


def forward_output(native: NativeCall) -> Output:
    """The output alone."""
    output = _room_for_output(native)
    kernels.forward(native, {"output": output}, torch.get_num_threads())
    return output


def forward_graph(native: NativeCall, kept: int, received: bool = False) -> Rows:
    """Output and graph.

    kept: places for a row's edges, the ones past the last empty. received: whether to sum what each
        key receives, also from the last queries if `native` has such.
    """
    rows = native.queries.shape[:3]
    edges = (*rows, kept)
    results = Rows(
        _room_for_output(native),
        torch.empty(edges, dtype=torch.int32),
        torch.empty(edges),
        torch.empty(edges),
        torch.empty(rows),
        torch.empty(rows),
        torch.empty(rows),
        torch.empty(rows, dtype=torch.int32),
    )
    asked: dict[str, Tensor | int] = {
        "output": results.output,
        "kept": kept,
        "kept_keys": results.keys,
        "kept_scores": results.scores,
        "kept_weights": results.weights,
        "lse": results.lse,
        "entropy": results.entropy,
        "rest": results.rest,
        "count": results.keys_seen,
    }
    if received:
        # The kernels write nothing where there is no query.
        shape = (*rows[:2], native.keys.shape[2])
        results = results._replace(
            received=torch.zeros(shape),
            received_most=torch.zeros(shape),
            received_last=torch.zeros(shape) if native.last_queries else None,
        )
        names = ("received", "received_most", "received_last")
        asked |= {name: found for name in names if (found := getattr(results, name)) is not None}
    kernels.forward(native, asked, torch.get_num_threads())
    return results


def _room_for_output(native: NativeCall) -> Tensor:
    rows, queries = native.queries.shape[:3], native.queries
    return torch.empty((*rows, native.values.shape[3]), dtype=queries.dtype)
