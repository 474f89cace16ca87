"""The forward kernel: from a NativeCall to its results, and the addresses that kernels read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.mechanism.backends.native_request import NativeCall, kernels
from weft.mechanism.backends.rows import Rows
from weft.mechanism.shapes import Output, PerRow

__all__ = ["forward", "forward_graph", "request", "strided"]


def forward(native: NativeCall, with_lse: bool = True) -> tuple[Output, PerRow]:
    """Output and log-sum-exp of each row, which is left empty where it is not asked for."""
    rows = native.queries.shape[:3]
    output = native.queries.new_empty(*rows, native.values.shape[3])
    lse = torch.empty(rows if with_lse else 0)  # at address 0 if empty: not asked for
    _run(native, {"output": output, "lse": lse})
    return output, lse


def forward_graph(native: NativeCall, kept: int, received: bool = False) -> Rows:
    """Output and graph.

    kept: how many edges of a row to keep. received: whether to sum what each key receives, also
        from the last queries if `native` has such.
    """
    rows, k = native.queries.shape[:3], min(kept, native.values.shape[2])
    results = Rows(
        native.queries.new_empty(*rows, native.values.shape[3]),
        keys=torch.empty(*rows, k, dtype=torch.int32),
        scores=torch.empty(*rows, k),
        weights=torch.empty(*rows, k),
        lse=torch.empty(rows),
        entropy=torch.empty(rows),
        rest=torch.empty(rows),
        keys_seen=torch.empty(rows, dtype=torch.int32),
    )
    edges = {f"kept_{name}": getattr(results, name) for name in ("keys", "scores", "weights")}
    totals = {name: getattr(results, name) for name in ("output", "lse", "entropy", "rest")}
    asked = totals | edges | {"count": results.keys_seen}
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
    _run(native, asked, k)
    return results


def _run(native: NativeCall, results: dict[str, Tensor], kept: int = 0) -> None:
    call = request(native)
    call.kept = kept
    for name, tensor in results.items():
        setattr(call, name, tensor.data_ptr())
    kernels.forward(call, torch.get_num_threads(), native.instruction_set)


def strided(tensor: Tensor) -> Any:
    """The kernels' view of a tensor of up to four dimensions: see native/call.h."""
    # Without a loop: short calls feel it.
    batch, heads, rows = (1, 1, 1, *tensor.shape)[-4:-1]
    by_batch, by_head, by_row = (0, 0, 0, *tensor.stride())[-4:-1]
    return kernels.Tensor(
        tensor.data_ptr(),
        0 if batch == 1 else by_batch,
        0 if heads == 1 else by_head,
        0 if rows == 1 else by_row,
    )


def request(native: NativeCall) -> Any:
    """The kernels' view of a call: addresses into tensors that `native` keeps alive."""
    call = kernels.Call()
    call.batch, call.heads, call.queries_count, call.depth = native.queries.shape
    call.kv_heads, call.keys_count, call.value_depth = native.values.shape[1:]
    call.bfloat16 = native.queries.dtype == torch.bfloat16
    for name in NativeCall.numbers:
        setattr(call, name, getattr(native, name))
    for name in NativeCall.addressed:
        tensor = getattr(native, name)
        if tensor is not None:
            setattr(call, name, strided(tensor))
    return call
