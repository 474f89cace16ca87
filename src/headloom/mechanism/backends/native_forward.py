"""The forward kernel: from a NativeCall to its results."""

from __future__ import annotations

import torch
from torch import Tensor

from headloom.mechanism.backends.native_request import NativeCall, kernels
from headloom.mechanism.backends.rows import Rows
from headloom.mechanism.shapes import Output, PerRow

__all__ = ["forward", "forward_graph", "forward_output", "room_for_exact"]


#: Multiply-adds below which one thread computes a call. It takes some 8 microseconds at most: with
#: another it took as long, and where the other core is busy milliseconds, until that is awake.
LITTLE = 2**16


def forward(native: NativeCall, exact: Output | None = None) -> tuple[Output, PerRow]:
    """Output and log-sum-exp of each row.

    exact: from `room_for_exact`; filled.
    """
    output = _room_for_output(native)
    lse = torch.empty(native.queries.shape[:3], dtype=torch.float32)
    asked = {"output": output, "lse": lse}
    if exact is not None:
        asked["exact_output"] = exact
    kernels.forward(native, asked, _threads(native))
    return output, lse


def forward_output(native: NativeCall) -> Output:
    """The output alone."""
    output = _room_for_output(native)
    kernels.forward(native, {"output": output}, _threads(native))
    return output


def forward_graph(
    native: NativeCall, kept: int, received: bool = False, exact: Output | None = None
) -> Rows:
    """Output and graph.

    kept: places for a row's edges, the ones past the last empty. received: whether to sum what each
        key receives, also from the last queries if `native` has such. exact: as in `forward`.
    """
    rows = native.queries.shape[:3]
    # The types are the kernels', whatever torch's default is. (empty_like takes half of the time of
    # empty, which calls of a few microseconds feel.)
    alike, whole = torch.empty_like, torch.int32
    scores = torch.empty((*rows, kept), dtype=torch.float32)
    lse = torch.empty(rows, dtype=torch.float32)
    results = Rows(
        _room_for_output(native),
        alike(scores, dtype=whole),
        scores,
        alike(scores),
        lse,
        alike(lse),
        alike(lse),
        alike(lse, dtype=whole),
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
    if exact is not None:
        asked["exact_output"] = exact
    if received:
        # The kernels write nothing where there is no query.
        shape = (*rows[:2], native.keys.shape[2])
        results = results._replace(
            received=torch.zeros(shape, dtype=torch.float32),
            received_most=torch.zeros(shape, dtype=torch.float32),
            received_last=(
                torch.zeros(shape, dtype=torch.float32) if native.last_queries else None
            ),
        )
        names = ("received", "received_most", "received_last")
        asked |= {name: found for name in names if (found := getattr(results, name)) is not None}
    kernels.forward(native, asked, _threads(native))
    return results


def room_for_exact(native: NativeCall) -> Output | None:
    """Room for the output before it is rounded, in float32; None where it is not rounded.

    For the backward pass, which subtracts dO . O from what each key of a row gives: an error of it
    does not cancel in a row's sums, and grows with the distances or keys that these multiply.
    """
    if not native.bfloat16:
        return None
    return torch.empty((*native.queries.shape[:3], native.values.shape[3]), dtype=torch.float32)


def _room_for_output(native: NativeCall) -> Tensor:
    queries, depth = native.queries, native.values.shape[3]
    if queries.shape[3] == depth and queries.is_contiguous():
        return torch.empty_like(queries)
    return torch.empty((*queries.shape[:3], depth), dtype=queries.dtype)


def _threads(native: NativeCall) -> int:
    """How many threads compute a call; results do not depend on it."""
    threads = torch.get_num_threads()
    if threads > 1:
        batch, heads, queries, depth = native.queries.shape
        keys, value_depth = native.values.shape[2:]
        if batch * heads * queries * keys * (depth + value_depth) < LITTLE:
            return 1
    return threads
