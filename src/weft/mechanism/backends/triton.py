"""attend() on a GPU by the Triton kernel: output and exact graph in one pass, memory linear.

The kernel is forward; gradients are taken by torch's formulas, a block of rows at a time, as
second derivatives are elsewhere. Before it serves a device it is held against plain torch on a
small call there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from weft.mechanism.backends import torch_ops
from weft.mechanism.backends.native_by_torch import torch_gradients
from weft.mechanism.backends.native_request import (
    NativeCall,
    prepare,
    why_form_not_served,
    why_wrapped,
)
from weft.mechanism.backends.rows import Rows
from weft.mechanism.call import AttentionCall
from weft.mechanism.graph import AttentionGraph, Top
from weft.mechanism.masks import causal
from weft.mechanism.scores import ScaledDot
from weft.mechanism.shapes import Output

__all__ = ["attend", "why_not_served"]

#: The first Triton that compiles the kernel; it comes with torch 2.8.
LEAST_TRITON = (3, 4)
#: Depths the kernel takes; of edges, as many as are sorted in registers.
DEEPEST, MOST_KEPT = 256, 512
#: Bytes of candidates that one launch of the kernel may hold; longer calls are several launches.
ROOM = 256 * 2**20
#: Bytes of shared memory of a program on devices that have much: A100 has 166,912, H100 232,448.
MUCH_SHARED = 166_912
#: By how much the small call may differ, of numbers about 1.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 4e-3}


def interpreted() -> bool:
    """Whether Triton interprets kernels, on the CPU, instead of compiling them."""
    return os.environ.get("TRITON_INTERPRET", "") == "1"


def why_not_served(call: AttentionCall, keep: Top) -> str | None:
    """Why the kernel does not serve a call, or None where it does."""
    device, dtype = call.queries.device, call.queries.dtype
    if device.type != "cuda" and not (interpreted() and device.type == "cpu"):
        return f"the tensors are on {device}, the kernel runs on CUDA devices"
    if find_spec("triton") is None:
        return 'Triton is not installed (pip install "weft[gpu]")'
    if (version := _triton_version()) < LEAST_TRITON:
        needed = ".".join(map(str, LEAST_TRITON))
        return f"Triton {'.'.join(map(str, version))} is installed, the kernel needs {needed}"
    wrapped = why_wrapped((call.queries, call.keys, call.values))
    if wrapped is not None:
        return wrapped
    if dtype not in TOLERANCES:
        return f"the tensors are {dtype}, the kernel takes float32, bfloat16 and float16"
    if call.relative is not None and call.relative.tables() is not None:
        return "the kernel has no tables of relative positions"
    if call.received is not None:
        return "it is asked what keys receive, which the kernel does not sum"
    depths = call.keys.shape[3], call.values.shape[3]
    if not 0 < min(depths) <= max(depths) <= DEEPEST:
        return f"the depths are {depths[0]} and {depths[1]}, the kernel takes 1 to {DEEPEST}"
    if min(keep.k, call.keys.shape[2]) > MOST_KEPT:
        return f"{keep.k:,} edges are to be kept, the kernel keeps up to {MOST_KEPT}"
    return why_form_not_served(call) or _difference(device, dtype)


@lru_cache
def _triton_version() -> tuple[int, ...]:
    from triton import __version__

    return tuple(int(part) for part in __version__.split(".")[:2])


@lru_cache
def _difference(device: torch.device, dtype: torch.dtype) -> str | None:
    """What is wrong with the kernel on a device, held against plain torch there; None: nothing."""
    generator = torch.Generator().manual_seed(1)
    length = 70 if interpreted() else 700  # segments and cuts
    queries, keys, values = (
        torch.randn(1, heads, length, 32, generator=generator).to(device, dtype)
        for heads in (4, 2, 2)
    )
    call = AttentionCall(queries, keys, values, ScaledDot(), 32**-0.5, causal())
    with torch.no_grad():
        try:
            output, graph = attend(call, Top(8))
        except Exception as error:  # a compiler's, of which there are many
            return f"on {device} it cannot be compiled or run: {type(error).__name__}: {error}"
        expected, other = torch_ops.attend(call, Top(8))
    pairs = {
        "output": (output, expected), "weights": (graph.weights, other.weights),
        "log-sum-exp": (graph.lse, other.lse), "entropy": (graph.entropy, other.entropy),
        "rest": (graph.rest, other.rest),
    }  # fmt: skip
    for name, (found, wanted) in pairs.items():
        apart = float((found.float() - wanted.float()).abs().max())
        if not apart <= TOLERANCES[dtype]:
            return f"on {device} its {name} is off by {apart:.1e} from plain torch in {dtype}"
    return None


@dataclass(frozen=True, slots=True)
class Device:
    """What the sizes of the kernel depend on.

    shared: bytes of shared memory that a program may take. warp: threads of a warp (of a wavefront,
    as AMD says). amd: whether AMD made it, and Triton compiles for its instructions.
    """

    shared: int
    warp: int = 32
    amd: bool = False


def _power(number: int, least: int) -> int:
    """The power of two that holds a number, and is no smaller than another one."""
    return max(least, 1 << (number - 1).bit_length())


def forward_graph(native: NativeCall, kept: int) -> Rows:
    """Output and graph. kept: how many edges of a row to keep."""
    from weft.mechanism.backends.triton_kernels import attend_kernel

    device = native.queries.device
    batch, heads, count, depth = native.queries.shape
    kv_heads, length, value_depth = native.values.shape[1:]
    k, rows = min(kept, length), (batch, heads, count)
    results = Rows(
        native.queries.new_empty(*rows, value_depth),
        keys=torch.empty(*rows, k, dtype=torch.int32, device=device),
        scores=torch.empty(*rows, k, dtype=torch.float32, device=device),
        weights=torch.empty(*rows, k, dtype=torch.float32, device=device),
        lse=torch.empty(rows, dtype=torch.float32, device=device),
        entropy=torch.empty(rows, dtype=torch.float32, device=device),
        rest=torch.empty(rows, dtype=torch.float32, device=device),
        keys_seen=torch.empty(rows, dtype=torch.int32, device=device),
    )
    if not results.lse.numel():
        return results
    sizes = sizes_of(native, k, described(device))
    room_of_program = sizes["ROWS"] * (sizes["CAPACITY"] + 2)
    blocks = -(-count // sizes["ROWS"])
    programs = blocks * batch * heads
    at_once = max(1, min(programs, ROOM // (8 * room_of_program))) if k else programs
    room = torch.empty(at_once * room_of_program if k else 0, dtype=torch.int64, device=device)
    rules = _rules(native)
    cells = {name: rules[name] for name in ("bias", "allowed")}
    strides = [stride for of in cells.values() for stride in _strides(of, rows)]
    inputs = native.queries, native.keys, native.values
    absent = results.lse  # an address for what is not read
    capped = native.softcap != 0
    added = rules["bias"] is not None or rules["offset_bias"] is not None
    for first in range(0, programs, at_once):
        attend_kernel[(min(at_once, programs - first),)](
            *inputs, results.output,
            results.keys, results.scores, results.weights,
            results.lse, results.entropy, results.rest, results.keys_seen,
            *(absent if tensor is None else tensor for tensor in rules.values()), room,
            *(stride for of in inputs for stride in of.stride()[:3]),
            *strides,
            first, blocks, batch, heads, heads // kv_heads, count, length, depth, value_depth,
            native.scale, native.softcap, *_band(native), k,
            HAS_SINKS=rules["sinks"] is not None, HAS_BIAS=rules["bias"] is not None,
            HAS_OFFSETS=rules["offset_bias"] is not None,
            HAS_ALLOWED=rules["allowed"] is not None,
            HAS_KEY_RANGE=rules["key_range"] is not None,
            HAS_ROW_RANGE=rules["row_range"] is not None,
            BANDED=native.banded, CAPPED=capped, KEEPS=k > 0,
            SCALED=native.scale > 0 and not capped and not added,
            WIDE=interpreted(), **sizes,
        )  # fmt: skip
    return results


def described(device: torch.device) -> Device:
    """A device of torch's, as far as sizes depend on it."""
    if device.type != "cuda":
        return Device(MUCH_SHARED)
    found = torch.cuda.get_device_properties(device)
    shared = getattr(found, "shared_memory_per_block_optin", found.shared_memory_per_block)
    return Device(shared, found.warp_size, torch.version.hip is not None)


def sizes_of(native: NativeCall, kept: int, device: Device) -> dict[str, Any]:
    """How large the blocks, tiles and lists of the kernel are, and how it is compiled.

    Of the sizes that were compiled for each generation of devices these take the fewest
    instructions a tile without moving registers to memory, or almost
    (docs/decisions/0039-compiled-for-gpus.md).

    kept: edges of a row, 0 for none.
    """
    depth, value_depth = native.queries.shape[3], native.values.shape[3]
    widths = _power(depth, 16), _power(value_depth, 16)
    deepest, single = max(widths), native.queries.dtype == torch.float32
    if interpreted():
        rows, tile, warps, stages, segment = 16, 32, 4, 1, 2
    elif device.amd:
        # Of RDNA's warps of 32 threads each has half as many registers.
        large = device.warp == 64 and not (single and deepest > 128)
        rows, tile = (128, 32) if large else (64, 16)
        warps, stages, segment = 4, 1, 4
    elif single and deepest > 128:
        rows, tile, warps, stages, segment = 16, 16, 8, 1, 4
    elif single:
        rows, tile, stages = (64, 32, 2) if deepest <= 64 else (64, 16, 1)
        warps, segment = 4, 4
    elif deepest <= 64 or (deepest <= 128 and device.shared >= MUCH_SHARED):
        rows, tile, warps, stages, segment = 128, 64, 8, 2, 4
    else:
        rows, tile, warps, stages, segment = 64, 32, 4, 2 if deepest <= 128 else 1, 4
    left = _power(kept + kept // 4 + 1, 16)
    full = left + min(left, 256)
    # Of float32 all digits: three products of fewer bits for one, where there are registers; AMD's
    # matrix units multiply float32 itself.
    precision = "tf32x3" if single and deepest <= 128 and not device.amd else "ieee"
    return {
        "ROWS": rows, "TILE": tile, "SEGMENT": segment, "PRECISION": precision,
        "CUT": min(rows, 4 * warps), "PIECE": 64, "LEFT": left, "FULL": full,
        "CAPACITY": full + segment * tile,
        "SORTED_ROWS": max(1, min(rows, 512 * warps // left)),
        "DEPTH": widths[0], "VALUE_DEPTH": widths[1],
        "WHOLE_DEPTHS": widths == (depth, value_depth),
        "PTX": not (interpreted() or device.amd),
        # Sums of products round once, whichever the default of a Triton is.
        "num_warps": warps, "num_stages": stages, "enable_fp_fusion": True,
    }  # fmt: skip


def _rules(native: NativeCall) -> dict[str, Tensor | None]:
    """What the kernel reads beside queries, keys and values, in its order and on their device."""
    device, (batch, _, count, _) = native.queries.device, native.queries.shape
    rows = native.row_range
    found = {
        "sinks": native.sinks,
        "bias": native.bias,
        "offset_bias": native.offset_bias,
        "allowed": None if native.allowed is None else native.allowed.to(torch.uint8),
        "key_range": None if native.key_range is None else native.key_range.int(),
        "row_range": None if rows is None else rows.expand(2, batch, count).int(),
    }
    cells = ("bias", "allowed")
    return {
        name: tensor
        if tensor is None or (name in cells and tensor.device == device)
        else tensor.to(device).contiguous()
        for name, tensor in found.items()
    }


def _strides(cells: Tensor | None, rows: tuple[int, int, int]) -> tuple[int, ...]:
    """Of cells of which each dimension is whole or 1, but for the keys."""
    if cells is None:
        return (0, 0, 0)
    return tuple(
        0 if size == 1 else stride for size, stride in zip(cells.shape, cells.stride(), strict=True)
    )[:3]


def _band(native: NativeCall) -> tuple[int, int]:
    """Its two sides, of which an open one reaches beyond every key."""
    beyond = native.queries.shape[2] + native.keys.shape[2]
    return max(native.left, -beyond), min(native.right, beyond)


class _Attend(torch.autograd.Function):
    """Output and graph, differentiable but for the kept keys and the counts."""

    @staticmethod
    def forward(
        ctx: Any, native: NativeCall, kept: int, *tensors: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        rows = forward_graph(native, kept)
        ctx.native = native.bare()
        ctx.mark_non_differentiable(rows.keys, rows.keys_seen)
        ctx.save_for_backward(*tensors, rows.keys)
        totals = rows.lse, rows.entropy, rows.rest, rows.keys_seen
        return rows.output, rows.keys, rows.scores, rows.weights, *totals

    @staticmethod
    def backward(ctx: Any, *by_rows: Tensor | None) -> tuple[Any, ...]:
        output, _, scores, weights, lse, entropy, rest, _ = by_rows
        *tensors, kept = ctx.saved_tensors
        native = ctx.native.with_tensors(tuple(tensors))
        incoming = (output, lse, entropy, scores, weights, rest)
        needs = ctx.needs_input_grad[-len(tensors) :]
        return None, None, *torch_gradients(native, kept, incoming, needs)


_attend: Callable[..., tuple[Tensor, ...]] = _Attend.apply


def attend(call: AttentionCall, keep: Top) -> tuple[Output, AttentionGraph]:
    """Output and attention graph of a call that the kernel serves; see torch_ops.attend."""
    native = prepare(call)
    k = keep.places(call.keys.shape[2])
    wanted = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in native.tensors
    )
    rows = Rows(*_attend(native, k, *native.tensors)) if wanted else forward_graph(native, k)
    weights = rows.weights.to(call.queries.dtype)
    rows = rows._replace(weights=weights)
    return rows.output, rows.with_places(k).graph(call)
