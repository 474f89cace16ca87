"""attend() on a GPU by Triton kernels: output, exact graph and what keys receive, memory linear.

The kernels are forward; gradients are taken by torch's formulas, a block of rows at a time, as
second derivatives are elsewhere. Before they serve a device they are held against plain torch on a
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

from weft.errors import BackendError
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
#: Bytes of candidates and maxima that all programs may hold; where one needs much, fewer run.
ROOM = 2**30
#: Keys that a thread's list can name, beside 7 bits of a row.
MOST_LISTED = 2**25
#: Of how many tiles at most four maxima each are kept where some rows see few of them.
FINE = 512
#: Times that most lists are appended to at most; one that is full is no loss but of time.
LONGEST_LIST = 256
#: Bytes of shared memory of a program on devices that have much: A100 has 166,912, H100 232,448;
#: and on the least since Ampere.
MUCH_SHARED, LEAST_SHARED = 166_912, 101_376
#: What a device says while it runs, and not the compiler.
OF_DEVICES = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))
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
    depths = call.keys.shape[3], call.values.shape[3]
    if not 0 < min(depths) <= max(depths) <= DEEPEST:
        return f"the depths are {depths[0]} and {depths[1]}, the kernel takes 1 to {DEEPEST}"
    if min(keep.k, call.keys.shape[2]) > MOST_KEPT:
        return f"{keep.k:,} edges are to be kept, the kernel keeps up to {MOST_KEPT}"
    return why_form_not_served(call) or _difference(device, dtype, call.received is not None)


@lru_cache
def _triton_version() -> tuple[int, ...]:
    from triton import __version__

    return tuple(int(part) for part in __version__.split(".")[:2])


@lru_cache
def _difference(device: torch.device, dtype: torch.dtype, received: bool) -> str | None:
    """What is wrong with the kernels on a device, held against plain torch there; None: nothing.

    received: whether what keys receive is asked too, by a kernel of its own.
    """
    generator = torch.Generator().manual_seed(1)
    length = 70 if interpreted() else 700  # several tiles
    queries, keys, values = (
        torch.randn(1, heads, length, 32, generator=generator).to(device, dtype)
        for heads in (4, 2, 2)
    )
    alike = keys[:, :, :1].expand_as(keys)  # lists of candidates that are full, and ties
    for of, some_keys in (("", keys), (" of equal scores", alike)):
        call = AttentionCall(
            queries, some_keys, values, ScaledDot(), 32**-0.5, causal(),
            received=9 if received else None,
        )  # fmt: skip
        with torch.no_grad():
            try:
                output, graph = attend(call, Top(8))
            except Exception as error:  # a compiler's, of which there are many
                return f"on {device} it cannot be compiled or run: {type(error).__name__}: {error}"
            expected, other = torch_ops.attend(call, Top(8))
        names = ["weights", "lse", "entropy", "rest"]
        names += ["received", "received_most", "received_last"] if received else []
        pairs = {name: (getattr(graph, name), getattr(other, name)) for name in names}
        pairs |= {"output": (output, expected)}
        if of:
            pairs |= {"keys": (graph.keys, other.keys)}
        for name, (found, wanted) in pairs.items():
            apart = float((found.float() - wanted.float()).abs().max())
            if not apart <= TOLERANCES[dtype]:
                return (
                    f"on {device} its {name}{of} is off by {apart:.1e} from plain torch in {dtype}"
                )
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
    processors: int = 2


def _power(number: int, least: int) -> int:
    """The power of two that holds a number, and is no smaller than another one."""
    return max(least, 1 << (number - 1).bit_length())


def forward_graph(native: NativeCall, kept: int, received: bool = False) -> Rows:
    """Output and graph.

    kept: how many edges of a row to keep. received: whether to sum what each key receives.
    """
    from weft.mechanism.backends.triton_edges import edges_kernel
    from weft.mechanism.backends.triton_received import received_kernel
    from weft.mechanism.backends.triton_softmax import softmax_kernel

    device = native.queries.device
    batch, heads, count, depth = native.queries.shape
    kv_heads, length, value_depth = native.values.shape[1:]
    k, rows = min(kept, length), (batch, heads, count)

    def per_row(*more: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*rows, *more, dtype=dtype, device=device)

    results = Rows(
        native.queries.new_empty(*rows, value_depth),
        keys=per_row(k, dtype=torch.int32), scores=per_row(k), weights=per_row(k),
        lse=per_row(), entropy=per_row(), rest=per_row(), keys_seen=per_row(dtype=torch.int32),
    )  # fmt: skip
    if received:
        names = ("received", "received_most", "received_last")
        by_key = torch.zeros(3, batch, heads, length, device=device)
        asked = names if native.last_queries else names[:2]
        results = results._replace(**dict(zip(asked, by_key, strict=False)))
    if not results.lse.numel():
        return results
    found = described(device)
    sizes = sizes_of(native, k, found)
    blocks, tiles = -(-count // sizes.rows), -(-length // sizes.tile)
    programs, words = blocks * batch * heads, -(-tiles // 128) * 4
    levels = k > 0 or received
    of_row = [per_row() for _ in range(3)] if levels else [results.lse] * 3  # then not read
    again = torch.empty(programs * words if k else 0, dtype=torch.int32, device=device)
    taken = torch.zeros(8, dtype=torch.int32, device=device)  # blocks, by either kernel

    rules = _rules(native)
    flags = {f"HAS_{name.upper()}": rule is not None for name, rule in rules.items()}
    capped, added = native.softcap != 0, flags["HAS_BIAS"] or flags["HAS_OFFSET_BIAS"]
    flags |= {
        "BANDED": native.banded, "CAPPED": capped, "WIDE": interpreted(),
        "SCALED": native.scale > 0 and not capped and not added,
    }  # fmt: skip
    sinks, *others = (results.lse if rule is None else rule for rule in rules.values())
    queries, keys, values = native.queries, native.keys, native.values
    strides = [tensor.stride()[:3] for tensor in (queries, keys, values)]
    cells = _strides(rules["bias"], rows) + _strides(rules["allowed"], rows)
    heads_and_rows = blocks, batch, heads, heads // kv_heads, count, length
    scores = native.scale, native.softcap, *_band(native), k

    groups = min(tiles, sizes.tiles) * sizes.softmax["PARTS"]
    room, running = _room(
        4 * sizes.rows * groups if k else 0, programs, sizes.softmax, found, device
    )
    _launch(
        softmax_kernel, running,
        queries, keys, values, results.output,
        results.lse, results.entropy, results.rest, results.keys_seen,
        sinks, *others, *of_row, again, taken[:1], room.view(torch.float32),
        *strides[0], *strides[1], *strides[2], *cells,
        groups, words, *heads_and_rows, depth, value_depth, *scores,
        KEEPS=k > 0, LEVELS=levels, **flags, **sizes.softmax,
    )  # fmt: skip
    del flags["HAS_SINKS"]
    if received and length:
        _launch(
            received_kernel, tiles * batch * heads,
            queries, keys, *by_key, *others, *of_row[1:],
            *strides[0], *strides[1], *cells,
            tiles, max(count - native.last_queries, 0), *heads_and_rows, depth, *scores[:-1],
            HAS_WINDOW=native.last_queries > 0, **flags, **sizes.both,
        )  # fmt: skip
    if not k:
        return results
    of_program = -(-(_candidates(sizes.rows, sizes.edges) + tiles // 2 + 1) // 16) * 16
    room, running = _room(8 * of_program, programs, sizes.edges, found, device)
    _launch(
        edges_kernel, running,
        queries, keys, results.keys, results.scores, results.weights, results.rest,
        *others, *of_row, again, taken[4:], room,
        *strides[0], *strides[1], *cells,
        of_program, words, *heads_and_rows, depth, *scores,
        **flags, **sizes.edges,
    )  # fmt: skip
    return results


def _launch(kernel: Any, programs: int, *given: Any, **sizes: Any) -> None:
    """Run programs of a kernel, on the device of the first tensor, which need not be the current.

    Raises: BackendError: it cannot be compiled for this call.
    """
    try:
        with torch.cuda.device_of(given[0]):  # type: ignore[no-untyped-call]
            kernel[(programs,)](*given, **sizes)
    except Exception as error:  # a compiler's, of which there are many
        what = (str(error).strip() or "without words").splitlines()[0]
        found = f"{type(error).__name__}: {what}"
        compiling = BackendError(f"the kernel cannot be compiled for this call: {found}")
        raise error if isinstance(error, OF_DEVICES) else compiling  # noqa: B904


def _room(
    of_program: int, programs: int, sizes: dict[str, Any], device: Device, where: torch.device
) -> tuple[Tensor, int]:
    """Memory for the programs that run at once, in numbers of 8 bytes, and how many run."""
    running = min(programs, device.processors * max(1, 8 // sizes["num_warps"]))
    if of_program:
        running = max(1, min(running, ROOM // of_program))
    return torch.empty(-(-running * of_program // 8), dtype=torch.int64, device=where), running


def _candidates(rows: int, sizes: dict[str, Any]) -> int:
    """Numbers of 8 bytes of a program: candidates and two more of each row; lists of threads."""
    of_lists: int = sizes["LISTS"] * (8 * sizes["LIST"] + 1)
    of_rows: int = rows * (sizes["CAPACITY"] + 2)
    return of_lists + of_rows


@lru_cache
def described(device: torch.device) -> Device:
    """A device of torch's, as far as sizes depend on it."""
    if device.type != "cuda":
        return Device(MUCH_SHARED)
    found = torch.cuda.get_device_properties(device)
    shared = getattr(found, "shared_memory_per_block_optin", found.shared_memory_per_block)
    processors = found.multi_processor_count
    return Device(shared, found.warp_size, torch.version.hip is not None, processors)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the parts of the kernels are, and how each is compiled.

    rows, tile: queries of a block and keys of a tile; all kernels take the same. tiles: how many a
    block sees at most. both: what all are given.
    """

    rows: int
    tile: int
    tiles: int
    both: dict[str, Any]
    softmax: dict[str, Any]
    edges: dict[str, Any]


def sizes_of(native: NativeCall, kept: int, device: Device) -> Sizes:
    """The sizes for a call on a device. kept: edges of a row, 0 for none."""
    depths = native.queries.shape[3], native.values.shape[3]
    added = (native.bias, native.offset_bias, native.allowed)
    by_cells = any(tensor is not None for tensor in added)
    single = native.queries.dtype == torch.float32
    length = native.keys.shape[2]
    ranges = (native.key_range, native.row_range)
    uneven = native.banded or any(tensor is not None for tensor in ranges)
    left, right = _band(native)
    widest = max(1, min(length, right - left + 1)) if native.banded else length
    return _sizes(depths, length, widest, uneven, single, by_cells, kept, device, interpreted())


@lru_cache(maxsize=256)
def _sizes(
    depths: tuple[int, int],
    length: int,
    widest: int,
    uneven: bool,
    single: bool,
    by_cells: bool,
    kept: int,
    device: Device,
    interpreting: bool,
) -> Sizes:
    """See `sizes_of`.

    widest: how many keys a row sees at most; uneven: whether some may see far fewer; single:
    whether numbers are float32; by_cells: whether there is something for each score.
    """
    widths = _power(depths[0], 16), _power(depths[1], 16)
    deepest = max(widths)
    if interpreting:
        rows, tile, warps, stages = 16, 32, 4, 1
    elif device.shared < LEAST_SHARED and not device.amd and not single:
        rows, tile, warps, stages = 64, 32, 4, 1
    elif device.amd:
        # Of RDNA's warps of 32 threads each has half as many registers.
        large = device.warp == 64 and not (single and deepest > 128)
        rows, tile = (128, 32) if large else (64, 16)
        warps, stages = 4, 1
    elif single and deepest > 128:
        rows, tile, warps, stages = 16, 16, 8, 1
    elif single:
        rows, tile, warps, stages = (64, 32, 4, 2) if deepest <= 64 else (64, 16, 4, 1)
    elif deepest <= 128 and device.shared >= MUCH_SHARED:
        rows, tile, warps, stages = 128, 64, 8, 3
    elif deepest <= 64:
        rows, tile, warps, stages = 128, 64, 8, 2
    else:
        rows, tile, warps, stages = 64, 32, 4, 2 if deepest <= 128 else 1
    both: dict[str, Any] = {
        "ROWS": rows, "TILE": tile, "DEPTH": widths[0],
        # Of float32 all digits: three products of fewer bits for one, where there are registers;
        # AMD's matrix units multiply float32 itself.
        "PRECISION": "tf32x3" if single and deepest <= 128 and not device.amd else "ieee",
        # Cells are not asked for ahead: they would take the shared memory of many keys.
        "STAGES": 1 if by_cells else stages, "num_warps": warps, "num_stages": stages,
        # Sums of products round once, whichever the default of a Triton is.
        "enable_fp_fusion": True,
    }  # fmt: skip
    threads = warps * device.warp
    fold = _power(2 * kept, 32)
    # A threshold needs maxima of as many groups of keys as edges are kept, in every row.
    tiles = -(-min(length, widest + rows) // tile) + 1
    few = tiles < 4 * kept or (uneven and tiles <= FINE)
    softmax = both | {
        "PARTS": 4 if few else 1, "FOLD": fold,
        "FOLDED_ROWS": max(1, min(rows, 32 * threads // fold)), "VALUE_DEPTH": widths[1],
        "WHOLE_DEPTHS": widths == depths,
    }  # fmt: skip
    left, segment = _power(2 * kept, 16), 2
    full = left + min(left, 256)
    capacity = full + segment * tile
    width = _power(capacity, 16)
    # Each thread has some scores of a tile, and nobody else has these.
    own = rows * tile >= 8 * threads
    listing = own and length <= MOST_LISTED and not (interpreting or device.amd)
    edges = both | {
        "SEGMENT": segment, "LEFT": left, "FULL": full, "CAPACITY": capacity, "WIDTH": width,
        "CUT": max(1, min(rows, 16 * threads // width)),
        "SORTED_ROWS": max(1, min(rows, 16 * threads // left)),
        "LISTS": threads if listing else 0,
        "LIST": min(max(64, _power(4 * kept * rows // threads, 16)), LONGEST_LIST),
        "WHOLE_DEPTHS": widths[0] == depths[0],
    }  # fmt: skip
    return Sizes(rows, tile, tiles, both, softmax, edges)


def _rules(native: NativeCall) -> dict[str, Tensor | None]:
    """What the kernel reads beside queries, keys and values, in its order and on their device."""
    device, (batch, _, count, _) = native.queries.device, native.queries.shape
    rows = native.row_range
    found = {
        "sinks": native.sinks,
        "bias": native.bias,
        "offset_bias": native.offset_bias,
        # A view: a copy would have other strides where cells are shared.
        "allowed": None if native.allowed is None else native.allowed.view(torch.uint8),
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
        ctx: Any, native: NativeCall, kept: int, received: bool, *tensors: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        rows = forward_graph(native, kept, received)
        ctx.native = native.bare()
        constant = (rows.keys, rows.keys_seen, rows.received_most)
        ctx.mark_non_differentiable(*(tensor for tensor in constant if tensor is not None))
        ctx.save_for_backward(*tensors, rows.keys)
        return tuple(rows)

    @staticmethod
    def backward(ctx: Any, *by_rows: Tensor | None) -> tuple[Any, ...]:
        output, _, scores, weights, lse, entropy, rest, _, received, _, last = by_rows
        *tensors, kept = ctx.saved_tensors
        native = ctx.native.with_tensors(tuple(tensors))
        incoming = (output, lse, entropy, scores, weights, rest, received, last)
        needs = ctx.needs_input_grad[-len(tensors) :]
        return None, None, None, *torch_gradients(native, kept, incoming, needs)


_attend: Callable[..., tuple[Any, ...]] = _Attend.apply


def attend(call: AttentionCall, keep: Top) -> tuple[Output, AttentionGraph]:
    """Output and attention graph of a call that the kernel serves; see torch_ops.attend."""
    native = prepare(call)
    k = keep.places(call.keys.shape[2])
    wanted = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in native.tensors
    )
    received = call.received is not None
    if wanted:
        rows = Rows(*_attend(native, k, received, *native.tensors))
    else:
        rows = forward_graph(native, k, received)
    weights = rows.weights.to(call.queries.dtype)
    rows = rows._replace(weights=weights)
    return rows.output, rows.with_places(k).graph(call)
